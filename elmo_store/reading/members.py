"""The members of a collection that are laid out alike, as one reader: their objects end to end, as if they were one store's.

A member begins with a shard and a chunk of ``sentence_start`` of its own, so rows and sentences are numbered here with gaps
between members, which nobody asks for. A read of many sentences is as many requests as one store's, all of them at once.
`elmo_store.reading.collection` numbers what a version keeps, without gaps.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.format import layout
from elmo_store.format.ids import HashTables, hashes
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import PartRange
from elmo_store.format.version import Member, Version
from elmo_store.forms.shards import row_reader
from elmo_store.reading.member import opened_member
from elmo_store.reading.sentences import SentenceTable, read_index
from elmo_store.reading.store import Readers, StoreReader
from elmo_store.reading.text_index import GatheredTexts, TextIndex, Texts, UInt64, check_size, cut_bytes
from elmo_store.storage.data import Range
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
T = TypeVar("T")
THREADS = 16  # that ask members elsewhere
_OBJECT = re.compile(r"(.*/(?:c/|part-))(\d+)(.*)")


@dataclass(frozen=True)
class Row:
    """Members side by side: facts alone, so that what reads them holds no reader in a circle, which would outlive its use.

    Attributes:
        collection: the collection's root.
        version: that the members are of.
        members: in order.
        shards, chunks, parts: number of each member's first one, and at last, how many there are [n + 1].
        first_sentences, first_rows: the number here of each member's first sentence and row [n].
        checked: places of members that were found to be what the version says.
    """

    collection: Root
    version: Version
    members: Sequence[Member]
    shards: Sequence[int]
    chunks: Sequence[int]
    parts: Sequence[int]
    first_sentences: Int64
    first_rows: Int64
    checked: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, collection: Root, version: Version, numbers: Sequence[int]) -> "Row":
        """``numbers``: the members' places in the version."""
        members, own = [version.members[number] for number in numbers], version.sizes[numbers]
        like = members[0].inside or version.store
        firsts = np.zeros((3, len(numbers) + 1), np.int64)
        n_objects = np.stack([own[:, 2], -(-(own[:, 0] + 1) // like.sentence_chunk), own[:, 3]])
        np.cumsum(n_objects, axis=1, out=firsts[:, 1:])
        first_sentences, first_rows = firsts[1, :-1] * like.sentence_chunk, firsts[0, :-1] * like.shard_rows
        shards, chunks, parts = firsts.tolist()
        return cls(collection, version, members, shards, chunks, parts, first_sentences, first_rows)

    def located(self, rel: str) -> str:
        """Where an object of the row stands in the collection."""
        match = _OBJECT.fullmatch(rel)
        if match is None:
            return rel
        head, digits, tail = match.groups()
        is_part = head.startswith(layout.SENTENCES)
        firsts = self.parts if is_part else self.chunks if "/sentence_start/" in head else self.shards
        number = int(digits)
        member = bisect_right(firsts, number) - 1
        if self.collection.is_local:
            self._check(member)
        elif member not in self.checked:
            self.of_all(self._check)
        width = 5 if head.endswith("part-") else 1
        return f"{layout.member(self.members[member].name)}/{head}{number - firsts[member]:0{width}d}{tail}"

    def root_of(self, member: int) -> Root:
        """A member's own root. Errors as `opened_member`'s, when it is first asked for."""
        self._check(member)
        return Root(self.collection.url(layout.member(self.members[member].name)), self.collection.storage_options)

    def _check(self, member: int) -> None:
        if member not in self.checked:
            opened_member(self.collection, self.version, self.members[member])
            self.checked.add(member)

    def manifest_of(self, member: int) -> Manifest:
        """A member's manifest as far as readers need it."""
        return self.version.manifest_of(self.members[member])

    def of_all(self, work: Callable[[int], T]) -> list[T]:
        """What ``work`` gives for each member, by its place; side by side where each is a request."""
        places = range(len(self.members))
        if self.collection.is_local:
            return list(map(work, places))
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(work, places))


class RowRoot(Root):
    """The collection's root, at which the objects of a row of members have the row's numbers."""

    def __init__(self, row: Row) -> None:
        super().__init__(str(row.collection), row.collection.storage_options)
        self._row = row

    def _name(self, rel: str) -> str:
        return super()._name(self._row.located(rel))

    def read_ranges(self, ranges: Sequence[Range]) -> None:
        super().read_ranges([piece._replace(rel=self._row.located(piece.rel)) for piece in ranges])


@dataclass(frozen=True, kw_only=True)
class RowManifest(Manifest):
    """What readers ask of a manifest, of a row of members."""

    row: Row

    @classmethod
    def of(cls, row: Row) -> "RowManifest":
        """``row``'s manifest."""
        like = row.manifest_of(0)
        n_shards, n_parts = row.shards[-1], row.parts[-1]
        sizes = {"sentences": row.chunks[-1] * like.sentence_chunk, "rows": n_shards * like.shard_rows}
        counts = replace(like.sizes, **sizes, shards=n_shards, parts=n_parts)
        return cls(**(vars(like) | {"counts": counts}), row=row)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row and the row after the last of shard ``shard``."""
        member = bisect_right(self.row.shards, shard) - 1
        base = self.row.shards[member]
        first, stop = layout.shard_range(shard - base, self.row.members[member].counts.rows, self.shard_rows)
        return first + base * self.shard_rows, stop + base * self.shard_rows


class MemberRow(StoreReader):
    """Members that are laid out alike."""

    def __init__(self, row: Row, form: str) -> None:
        self.row = row
        self._describe(RowRoot(row), RowManifest.of(row), form)

    def _make_readers(self) -> Readers:
        rows = row_reader(self.root, self.manifest, self.form)
        return Readers(_RowSentences(self.root, self.manifest, self.row), rows, _RowTexts(self.row))


class _RowSentences(SentenceTable):
    """The sentences of a row of members."""

    def __init__(self, root: Root, manifest: Manifest, row: Row) -> None:
        super().__init__(root, manifest, len(row.members))
        self._row = row

    def find(self, ids: Sequence[str]) -> list[list[int]]:
        pairs = hashes(ids)
        matches = self._row.of_all(lambda member: self._tables[member].find_all(pairs))
        firsts = self._row.first_sentences.tolist()
        return [
            [first + number for first, own in zip(firsts, found, strict=True) for number in own]
            for found in zip(*matches, strict=True)
        ]

    @cached_property
    def _tables(self) -> list[HashTables]:
        row = self._row
        return [HashTables(row.root_of(i), member.counts.sentences) for i, member in enumerate(row.members)]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that all members have, by the first part of each."""
        places: dict[int, int] = {}
        for place, part in enumerate(self._index()[0]):
            places.setdefault(bisect_right(self._row.parts, part.part) - 1, place)
        if not places:
            return super().schema
        first, *others = (footer.schema for footer in self._footers.get_all(places.values(), self._read_footers))
        return pa.schema([field for field in first if all(field.name in other.names for other in others)])

    def _read_parts(self) -> list[PartRange]:
        row = self._row
        parts = []
        tables = row.of_all(lambda member: read_index(row.root_of(member), row.manifest_of(member)))
        for member, own in enumerate(tables):
            sentence, line = int(row.first_sentences[member]), int(row.first_rows[member])
            for part in own:
                first = (row.parts[member] + part.part, sentence + part.first_sentence)
                parts.append(PartRange(*first, part.n_sentences, line + part.first_row, part.n_rows))
        return parts

    def _read_chunks(self, chunks: list[int]) -> list[Int64]:
        row = self._row
        members = [bisect_right(row.chunks, chunk) - 1 for chunk in chunks]
        return [starts + row.first_rows[member] for starts, member in zip(super()._read_chunks(chunks), members, strict=True)]

    def _read_groups(self, keys: list[tuple[int, int]], footers: dict[int, Any]) -> list[dict[str, Any]]:
        row, parts = self._row, self._index()[0]
        moved = []
        for columns, (held, _) in zip(super()._read_groups(keys, footers), keys, strict=True):
            member = bisect_right(row.parts, parts[held].part) - 1
            own = {"sentence": row.first_sentences[member], "first_row": row.first_rows[member]}
            moved.append(columns | {name: columns[name] + first for name, first in own.items()})
        return moved


class _RowTexts:
    """Finds sentences of a row of members by their tokens: by each member's index, or by its hashes in memory.

    An index knows the first sentence alone that has a text: where some are removed, hashes of the others are gathered.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self._lock = Lock()
        self._finders: list[Texts] | None = None

    def find(self, pairs: UInt64) -> list[int | None]:
        """The number of the first sentence that has each hash [n, 2], None without one. Errors as `TextIndex.find`'s."""
        with self._lock:
            finders = self._finders = self._finders or self._row.of_all(self._finder)
        matches: list[int | None] = [None] * len(pairs)
        for first, finder in zip(self._row.first_sentences.tolist(), finders, strict=True):
            left = [place for place, number in enumerate(matches) if number is None]
            for place, number in zip(left, finder.find(pairs[left]), strict=True):
                matches[place] = None if number is None else first + number
        return matches

    def _finder(self, place: int) -> Texts:
        root, manifest, member = self._row.root_of(place), self._row.manifest_of(place), self._row.members[place]
        table = SentenceTable(root, manifest)
        if not member.removed:
            return TextIndex(root, manifest, table, member.sha256)
        check_size(member.counts.sentences, f"{root}, of which some are removed,")
        return GatheredTexts(table.token_lists(), cut_bytes(manifest), [run.span for run in member.removed])
