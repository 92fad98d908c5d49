"""A version of a collection as one store: sentences and rows that it keeps, numbered without gaps over all its members."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.format import layout
from elmo_store.format.version import Inside, Member, Version
from elmo_store.reading.joined import Joined, Runs, renumber
from elmo_store.reading.member import opened_member
from elmo_store.reading.members import MemberRow, Row
from elmo_store.reading.rows import Int64
from elmo_store.reading.sentences import read_index
from elmo_store.reading.store import Held, StoreReader
from elmo_store.storage.root import Root


@dataclass(frozen=True)
class Kept:
    """Runs of sentences that a version keeps, in order.

    Attributes:
        member: number of the member that each run is of [n].
        own_sentences, own_rows: its first sentence and row in that member [n].
        sentences, rows: its first sentence and row in the collection, and at last, how many there are [n + 1].
    """

    member: Int64
    own_sentences: Int64
    own_rows: Int64
    sentences: Int64
    rows: Int64

    @classmethod
    def of(cls, version: Version) -> "Kept":
        """What the members hold without what is removed of them."""
        if any(member.removed for member in version.members):
            runs = [(number, *run) for number, member in enumerate(version.members) for run in _kept(member)]
            table = np.array(runs, np.int64)  # member, first sentence, sentences, first row, rows
        else:
            table = np.zeros((len(version.members), 5), np.int64)
            table[:, 0], table[:, [2, 4]] = np.arange(len(table)), version.sizes[:, :2]
        table = table[table[:, 2] > 0]
        edges = np.zeros((2, len(table) + 1), np.int64)
        np.cumsum(table[:, [2, 4]].T, axis=1, out=edges[:, 1:])
        return cls(table[:, 0], table[:, 1], table[:, 3], *edges)

    def own(self, numbers: Sequence[int] | Int64) -> list[int]:
        """Numbers of sentences in their members."""
        wanted = np.asarray(numbers, np.int64)
        run = np.searchsorted(self.sentences, wanted, "right") - 1
        own: list[int] = (wanted - self.sentences[run] + self.own_sentences[run]).tolist()
        return own


def _kept(member: Member) -> Iterator[tuple[int, int, int, int]]:
    sentence = row = 0
    for run in member.removed:
        yield sentence, run.first_sentence - sentence, row, run.first_row - row
        sentence, row = run.span[1], run.first_row + run.n_rows
    yield sentence, member.counts.sentences - sentence, row, member.counts.rows - row


class VersionRoot(Root):
    """The root of a collection of which a version is open: whoever opens it again opens that version."""

    def __init__(self, root: Root, number: int) -> None:
        super().__init__(str(root), root.storage_options)
        self.number = number

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"number": self.number}


class CollectionReader(Joined, StoreReader):
    """What `elmo_store.Collection` reads.

    Members lie in as many `MemberRow`s as there are layouts among them, most often one; a read of many sentences is one read of
    each.
    """

    def __init__(self, root: Root, version: Version, form: str) -> None:
        self.version = version
        self._describe(VersionRoot(root, version.number), version.store, form)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.version, self.form)

    @cached_property
    def kept(self) -> Kept:
        """What the version keeps."""
        return Kept.of(self.version)

    @cached_property
    def _runs(self) -> Runs:  # type: ignore[override]
        members, kept, by_layout = self.version.members, self.kept, dict[Inside | None, list[int]]()
        for number, member in enumerate(members):
            by_layout.setdefault(member.inside, []).append(number)
        row_of, firsts, rows = np.zeros(len(members), np.int64), np.zeros((2, len(members)), np.int64), []
        for place, numbers in enumerate(by_layout.values()):
            row = Row.of(self.root, self.version, numbers)
            row_of[numbers], firsts[:, numbers] = place, (row.first_sentences, row.first_rows)
            rows.append(MemberRow(row, self.form))
        slots = firsts[:, kept.member] + (kept.own_sentences, kept.own_rows)
        return Runs.of(rows, row_of[kept.member], slots, np.diff((kept.sentences, kept.rows)))

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
        kept = self.kept
        runs = np.flatnonzero(kept.member == number)
        numbers_of = partial(renumber, kept.own_sentences[runs], np.diff(kept.sentences)[runs], kept.sentences[runs])
        form = self.form if self.form in manifest.forms else manifest.forms[0]
        return Held(StoreReader(root, manifest, form), numbers_of, sum(run.n_sentences for run in member.removed))


def rejects_in(store: CollectionReader, numbers: range) -> list[dict[str, Any]]:
    """Refused records of some neighbours of a collection, which are one or more."""
    edges = [numbers[0], numbers[-1]]
    (low, high), runs = store.kept.own(edges), np.searchsorted(store.kept.sentences, edges, "right") - 1
    first, last = store.kept.member[runs].tolist()
    found = []
    for member, held in enumerate(store.held()):
        if first <= member <= last:
            own = rejects_of(held, low if member == first else 0, high + 1 if member == last else None)
            found += [reject for reject in own if reject["sentence"] in numbers]
    return found


def rejects_of(held: Held, first: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """Refused records of the parts that hold sentences ``first … stop`` of the store, ``sentence`` as ``held`` numbers it.

    Those of sentences that are removed are left out. ShardCorruptError for a line that is none.
    """
    root, manifest = held.store.root, held.store.manifest
    for part in read_index(root, manifest) if manifest.sizes.rejected else ():
        if part.first_sentence + part.n_sentences <= first or (stop is not None and part.first_sentence >= stop):
            continue
        rel = layout.rejects_part(part.part)
        try:
            lines = root.get(rel).split(b"\n")[:-1]
        except FileNotFoundError:  # a part without any
            continue
        try:
            rejects = [json.loads(line) for line in lines]
            numbers = held.numbers_of(np.array([reject["sentence"] for reject in rejects], np.int64)).tolist()
        except (ValueError, KeyError, TypeError) as error:
            raise ShardCorruptError(f"{root.url(rel)} is no list of refused records ({error!r}): restore it") from error
        yield from (reject | {"sentence": number} for reject, number in zip(rejects, numbers, strict=True) if number >= 0)
