"""A version of a collection as one store: sentences and rows that it keeps, numbered without gaps over all its members."""

import json
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.format import layout
from elmo_store.format.version import Member, Version
from elmo_store.reading.joined import Joined
from elmo_store.reading.opening import opened_member
from elmo_store.reading.row_readers import row_reader
from elmo_store.reading.sentences import SentenceTable, read_index
from elmo_store.reading.store import Held, Readers, Runs, StoreReader
from elmo_store.storage.root import Root


def _kept(member: Member) -> Iterator[tuple[int, int, int, int]]:
    sentence = row = 0
    for run in member.removed:
        yield sentence, run.first_sentence - sentence, row, run.first_row - row
        sentence, row = run.span[1], run.first_row + run.n_rows
    yield sentence, member.counts.sentences - sentence, row, member.counts.rows - row


class MemberReader(StoreReader):
    """A member of a version, by what the version says of it; when it is first read, its manifest is compared with that."""

    def __init__(
        self, collection: Root, version: Version, member: Member, form: str, *, mapped: bool
    ) -> None:
        self._collection, self._version, self._member = collection, version, member
        root = Root(collection.url(layout.member(member.name)), collection.storage_options)
        self._describe(root, version.manifest_of(member), form, mapped=mapped)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MemberReader, mapped=self.mapped), (
            self._collection,
            self._version,
            self._member,
            self.form,
        )

    @cached_property
    def _now(self) -> Readers:
        self.root, manifest = opened_member(self._collection, self._version, self._member)
        share = manifest.sizes.sentences / max(
            1, int(self._version.sizes[:, 0].sum())
        )  # together they keep what one store may
        return Readers(
            SentenceTable(self.root, manifest, share),
            row_reader(self.root, manifest, self.form, mapped=self.mapped, share=share),
        )


class CollectionReader(Joined, StoreReader):
    """What `elmo_store.Collection` reads."""

    def __init__(self, root: Root, version: Version, form: str, *, mapped: bool = True) -> None:
        self.version = version
        self._describe(root, version.store, form, mapped=mapped)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), mapped=self.mapped), (self.root, self.version, self.form)

    def _make_runs(self) -> Runs:
        """What the members hold without what is removed of them."""
        members = self.version.members
        stores = [
            MemberReader(self.root, self.version, member, self.form, mapped=self.mapped)
            for member in members
        ]
        if any(member.removed for member in members):
            runs = [
                (number, *run) for number, member in enumerate(members) for run in _kept(member)
            ]
            table = np.array(runs, np.int64)  # member, first sentence, sentences, first row, rows
        else:
            table = np.zeros((len(members), 5), np.int64)
            table[:, 0], table[:, [2, 4]] = np.arange(len(table)), self.version.sizes[:, :2]
        table = table[table[:, 2] > 0]
        return Runs.of(stores, table[:, 0], table[:, [1, 3]].T, table[:, [2, 4]].T)

    def held(self, faults: list[StoreError] | None = None) -> list[Held]:
        """Its members, each opened. Errors as `opened_member`'s; with ``faults`` they go there, and such members are left out."""
        opened = []
        for number, member in enumerate(self.version.members):
            try:
                opened.append(self._held(number, member))
            except StoreError as error:
                if faults is None:
                    raise
                faults.append(error)
        return opened

    def _held(self, number: int, member: Member) -> Held:
        root, manifest = opened_member(self.root, self.version, member)
        form = self.form if self.form in manifest.forms else manifest.forms[0]
        return Held(
            StoreReader(root, manifest, form, mapped=self.mapped),
            partial(self.runs.numbers, number),
        )


def rejects_in(store: CollectionReader, numbers: range) -> list[dict[str, Any]]:
    """Refused records of some neighbours of a collection, which are one or more."""
    edges = [numbers[0], numbers[-1]]
    runs, (low, high) = store.runs.own(edges)
    first, last = store.runs.store_of[runs].tolist()
    found = []
    for member, held in enumerate(store.held()):
        if first <= member <= last:
            own = rejects_of(
                held, low if member == first else 0, high + 1 if member == last else None
            )
            found += [reject for reject in own if reject["sentence"] in numbers]
    return found


def rejects_of(held: Held, first: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """Refused records of the parts that hold sentences ``first … stop`` of the store, ``sentence`` as ``held`` numbers it.

    Those of sentences that are removed are left out. ShardCorruptError for a line that is none.
    """
    root, manifest = held.store.root, held.store.manifest
    for part in read_index(root, manifest) if manifest.sizes.rejected else ():
        if part.first_sentence + part.n_sentences <= first or (
            stop is not None and part.first_sentence >= stop
        ):
            continue
        rel = layout.rejects_part(part.part)
        try:
            lines = root.get(rel).split(b"\n")[:-1]
        except FileNotFoundError:  # a part without any
            continue
        try:
            rejects = [json.loads(line) for line in lines]
            numbers = held.numbers_of(
                np.array([reject["sentence"] for reject in rejects], np.int64)
            ).tolist()
        except (ValueError, KeyError, TypeError) as error:
            raise ShardCorruptError(
                f"{root.url(rel)} is not a list of refused records ({error!r}): restore it"
            ) from error
        yield from (
            reject | {"sentence": number}
            for reject, number in zip(rejects, numbers, strict=True)
            if number >= 0
        )
