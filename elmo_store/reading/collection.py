"""A version of a collection as one store: sentences and rows that it keeps, numbered without gaps over all its members."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import SentenceNotFoundError, ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.format.version import Inside, Member, Version
from elmo_store.forms.runs import Places
from elmo_store.reading.members import MemberRow
from elmo_store.reading.rows import Int64, Span, Spans
from elmo_store.reading.sentences import SentenceRecord, renumbered
from elmo_store.reading.store import Held, StoreReader
from elmo_store.reading.text_index import UInt64
from elmo_store.reading.watched import opened_store
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


class CollectionReader(StoreReader):
    """What `elmo_store.Collection` reads.

    Members lie in as many `MemberRow`s as there are layouts among them, most often one; a read of many sentences is one read of
    each. "Slots" are numbers there.
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
    def _slots(self) -> "_Slots":
        return _Slots.of(self.root, self.version, self.form, self.kept)

    def held(self) -> list[Held]:
        """Its members, each opened. ShardCorruptError for one that is not the version's."""
        return [self._held(number, member) for number, member in enumerate(self.version.members)]

    def _held(self, number: int, member: Member) -> Held:
        url = self.root.url(layout.member(member.name))
        root, manifest = opened_store(url, self.root.storage_options)
        if manifest.to_json()["sha256"] != member.sha256:
            raise ShardCorruptError(f"{url} is not the member that version {self.version.number} names: restore it")
        kept = self.kept
        runs = np.flatnonzero(kept.member == number)
        firsts, counts = kept.own_sentences[runs], np.diff(kept.sentences)[runs]

        def numbers_of(own: Int64) -> Int64:
            if not len(runs):
                return np.full(len(own), -1)
            run = np.searchsorted(firsts, own, "right") - 1
            offset = own - firsts[run]
            return np.where((run >= 0) & (offset < counts[run]), kept.sentences[runs[run]] + offset, -1)

        form = self.form if self.form in manifest.forms else manifest.forms[0]
        return Held(StoreReader(root, manifest, form), numbers_of, sum(run.n_sentences for run in member.removed))

    def _runs_of(self, numbers: Sequence[int] | Int64) -> tuple[Int64, Int64]:
        """The sentences' runs and their slots. SentenceNotFoundError."""
        wanted = np.asarray(numbers, np.int64)
        outside = wanted[(wanted < 0) | (wanted >= self.n_sentences)]
        if len(outside):
            raise self._no_sentence(int(outside[0]))
        run = np.searchsorted(self.kept.sentences, wanted, "right") - 1
        return run, wanted + self._slots.sentence_shift[run]

    def _no_sentence(self, number: int) -> SentenceNotFoundError:
        return SentenceNotFoundError(f"no sentence {number} in {self.url}: it has {self.n_sentences}, counted from 0")

    def _span(self, number: int) -> Span:
        slots = self._slots
        if not 0 <= number < self.n_sentences:
            raise self._no_sentence(number)
        row, sentence_shift, row_shift = slots.listed[bisect_right(slots.sentences, number) - 1]
        first, stop = row._span(number + sentence_shift)
        return first - row_shift, stop - row_shift

    def _spans(self, numbers: Sequence[int] | Int64) -> Int64:
        if isinstance(numbers, range) and numbers and numbers.step == 1:
            return self._spans_of_range(numbers)
        run, slots = self._runs_of(numbers)
        spans = np.empty((len(slots), 2), np.int64)
        for row, own in self._slots.rows_of(run):
            spans[own] = row._spans(slots[own])
        return spans - self._slots.row_shift[run][:, None]

    def _spans_of_range(self, numbers: range) -> Int64:
        """Neighbours, run by run."""
        slots, spans = self._slots, []
        if not 0 <= numbers[0] <= numbers[-1] < self.n_sentences:
            raise self._no_sentence(numbers[-1] if numbers[0] >= 0 else numbers[0])
        first, run = numbers.start, bisect_right(slots.sentences, numbers.start) - 1
        while first < numbers.stop:
            stop = min(numbers.stop, slots.sentences[run + 1])
            row, sentence_shift, row_shift = slots.listed[run]
            spans.append(row._spans(range(first + sentence_shift, stop + sentence_shift)) - row_shift)
            first, run = stop, run + 1
        return spans[0] if len(spans) == 1 else np.concatenate(spans)

    def _records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        if len(numbers) == 1 and 0 <= numbers[0] < self.n_sentences:  # sooner than by way of arrays
            row, sentence_shift, row_shift = self._slots.listed[bisect_right(self._slots.sentences, numbers[0]) - 1]
            (record,) = row._records([numbers[0] + sentence_shift])
            return [replace(record, index=int(numbers[0]), first_row=record.first_row - row_shift)]
        run, slots = self._runs_of(numbers)
        records: list[SentenceRecord | None] = [None] * len(slots)
        for row, own in self._slots.rows_of(run):
            places = np.arange(len(slots))[own].tolist()
            for place, record in zip(places, row._records(slots[own].tolist()), strict=True):
                first_row = record.first_row - int(self._slots.row_shift[run[place]])
                records[place] = replace(record, index=int(numbers[place]), first_row=first_row)
        return [record for record in records if record is not None]

    def _columns(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        run, slots = self._runs_of(numbers)
        tables, places = [self._slots.rows[0]._columns([], names)], [np.zeros(0, np.int64)]
        for row, own in self._slots.rows_of(run):
            tables.append(row._columns(slots[own].tolist(), names))
            places.append(np.flatnonzero(own))
        table = pa.concat_tables(tables).take(np.argsort(np.concatenate(places)))
        return renumbered(table, {"sentence": list(numbers), "first_row": self._spans(numbers)[:, 0]})

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `sentences` that all members have."""
        first, *others = (row.columns for row in self._slots.rows)
        return [name for name in first if all(name in other for other in others)]

    def _matches(self, ids: Sequence[str]) -> list[list[int]]:
        of_rows = [
            [self._kept_numbers(place, found) for found in row._matches(ids)] for place, row in enumerate(self._slots.rows)
        ]
        return [sorted(number for own in found for number in own) for found in zip(*of_rows, strict=True)]

    def _find_hashes(self, pairs: UInt64) -> list[int | None]:
        found: list[list[int]] = [[] for _ in pairs]
        for place, row in enumerate(self._slots.rows):
            for numbers, slot in zip(found, row._find_hashes(pairs), strict=True):
                numbers += self._kept_numbers(place, [] if slot is None else [slot])
        return [min(numbers) if numbers else None for numbers in found]

    def _kept_numbers(self, place: int, slots: Sequence[int]) -> list[int]:
        """Numbers of the slots of a row of members, those that are kept."""
        return self._slots.numbers(place, np.array(slots, np.int64), self.kept).tolist() if slots else []

    def _read(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        slots = self._slots
        if len(spans) == 1:  # the usual case
            first, stop = int(spans[0][0]), int(spans[0][1])
            run = bisect_right(slots.row_edges, first) - 1
            if stop > first and stop <= slots.row_edges[run + 1]:
                row, _, shift = slots.listed[run]
                return row._read(states, [(first + shift, stop + shift)], raw, empty)
        run_of, pieces = self._pieces(np.asarray(spans, np.int64).reshape(-1, 2))
        of_rows = slots.rows_of(run_of)
        if len(of_rows) < 2:
            return (of_rows[0][0] if of_rows else slots.rows[0])._read(states, pieces, raw, empty)
        ends = np.cumsum(pieces[:, 1] - pieces[:, 0])
        places = np.split(np.arange(ends[-1]), ends[:-1])
        out: Any = None
        for row, own in of_rows:
            rows = row._read(states, pieces[own], raw)
            if out is None:
                shape = (int(ends[-1]), *rows[0:0].values.shape[1:]) if raw else (int(ends[-1]), *rows.shape[1:])
                out = Int8Rows(np.empty(shape, np.int8), np.empty(shape[:2], np.float32)) if raw else np.empty(shape, rows.dtype)
            to = np.concatenate([places[i] for i in np.flatnonzero(own)])
            for whole, some in zip(out, rows, strict=True) if raw else ((out, rows),):
                whole[to] = some
        return out

    def _read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        run_of, pieces = self._pieces(spans)  # as many: none of a sentence is cut
        return all(
            row._read_into(states, pieces[own], Places(places.first[own], places.step[own]), out)
            for row, own in self._slots.rows_of(run_of)
        )

    def _pieces(self, spans: Int64) -> tuple[Int64, Int64]:
        """Spans of rows cut where runs meet, empty ones left out: the run of each piece, and its rows as slots [n, 2]."""
        edges = self.kept.rows
        spans = spans[spans[:, 1] > spans[:, 0]]
        low = np.searchsorted(edges, spans[:, 0], "right") - 1
        most = np.searchsorted(edges, spans[:, 1], "left") - low
        span = np.repeat(np.arange(len(spans)), most)
        run = low[span] + np.arange(len(span)) - (np.cumsum(most) - most)[span]
        pieces = np.stack([np.maximum(spans[span, 0], edges[run]), np.minimum(spans[span, 1], edges[run + 1])], axis=1)
        filled = pieces[:, 1] > pieces[:, 0]  # runs of blank sentences have no rows
        run = run[filled]
        return run, pieces[filled] + self._slots.row_shift[run][:, None]

    def _tokens(self, first: int, stop: int) -> list[str]:
        run, pieces = self._pieces(np.array([[first, stop]], np.int64))
        listed = self._slots.listed
        return [
            token
            for at, (low, high) in zip(run.tolist(), pieces.tolist(), strict=True)
            for token in listed[at][0]._tokens(low, high)
        ]


@dataclass(frozen=True)
class _Slots:
    """Where the runs of a version lie.

    Attributes:
        rows: of members.
        row_of: of each run, the row that has it [n].
        sentence_shift, row_shift: what a number of the collection lacks to the slot [n].
        sentences, row_edges: `Kept.sentences` and `Kept.rows`, and ``listed``: (row, shifts) of each run, as lists.
    """

    rows: tuple[MemberRow, ...]
    row_of: Int64
    sentence_shift: Int64
    row_shift: Int64
    sentences: list[int]
    row_edges: list[int]
    listed: list[tuple[MemberRow, int, int]]

    @classmethod
    def of(cls, root: Root, version: Version, form: str, kept: Kept) -> "_Slots":
        by_layout: dict[Inside | None, list[int]] = {}
        for number, member in enumerate(version.members):
            by_layout.setdefault(member.inside, []).append(number)
        n = len(version.members)
        row_of_member, sentence, line = (np.zeros(n, np.int64) for _ in range(3))
        rows = []
        for place, numbers in enumerate(by_layout.values()):
            row = MemberRow(root, version, numbers, form)
            row_of_member[numbers], sentence[numbers], line[numbers] = place, row.first_sentences, row.first_rows
            rows.append(row)
        row_of = row_of_member[kept.member]
        sentence_shift = sentence[kept.member] + kept.own_sentences - kept.sentences[:-1]
        row_shift = line[kept.member] + kept.own_rows - kept.rows[:-1]
        shifts = zip(row_of.tolist(), sentence_shift.tolist(), row_shift.tolist(), strict=True)
        listed = [(rows[place], *own) for place, *own in shifts]
        return cls(
            tuple(rows),
            row_of,
            sentence_shift,
            row_shift,
            kept.sentences.tolist(),
            kept.rows.tolist(),
            listed,
        )

    def rows_of(self, run: Int64) -> "list[tuple[MemberRow, npt.NDArray[np.bool_]]]":
        """Each row of members that has some of the runs, and which of them."""
        if len(self.rows) == 1:
            return [(self.rows[0], np.ones(len(run), bool))] if len(run) else []
        own = self.row_of[run]
        return [(self.rows[place], own == place) for place in np.unique(own).tolist()]

    def numbers(self, place: int, slots: Int64, kept: Kept) -> Int64:
        """Numbers in the collection of slots of a row of members, those that are kept, in order."""
        runs = np.flatnonzero(self.row_of == place)
        if not len(runs):
            return np.zeros(0, np.int64)
        firsts = kept.sentences[:-1][runs] + self.sentence_shift[runs]  # sorted: members of a row are in order
        run = np.searchsorted(firsts, slots, "right") - 1
        offset = slots - firsts[run]
        held = (run >= 0) & (offset < np.diff(kept.sentences)[runs[run]])
        numbers: Int64 = (kept.sentences[runs[run]] + offset)[held]
        return numbers
