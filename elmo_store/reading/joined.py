"""Several stores, or runs of sentences of them, one after the other as one: `Joined`, and `concat` of whole stores."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from elmo_store.errors import SentenceNotFoundError, StoreError
from elmo_store.format.numbers import Array, Empty, joined
from elmo_store.forms.runs import Places
from elmo_store.reading.rows import Int64, Readable, Span, Spans
from elmo_store.reading.sentences import SentenceRecord, renumbered
from elmo_store.reading.store import StoreReader
from elmo_store.reading.text_index import Text, UInt64


@dataclass(frozen=True)
class Runs:
    """Runs of sentences of some stores, in order. "Slots" are numbers in a store.

    Attributes:
        stores: that the runs are of.
        store_of: of each run the place of its store [n].
        sentences, rows: each run's first sentence and row in all of them, and at last, how many there are [n + 1].
        sentence_shift, row_shift: what numbers of all of them lack to the slots [n].
        lists: ``sentences``, ``rows``, ``store_of`` and the shifts as lists, for reads of one sentence.
    """

    stores: Sequence[StoreReader]
    store_of: Int64
    sentences: Int64
    rows: Int64
    sentence_shift: Int64
    row_shift: Int64
    lists: tuple[list[int], list[int], list[int], list[int], list[int]]

    @classmethod
    def of(cls, stores: Sequence[StoreReader], store_of: Int64, first_slots: Int64, sizes: Int64) -> "Runs":
        """``first_slots``: first sentence and row of each run in its store [2, n]; ``sizes``: how many it has of both [2, n]."""
        edges = np.zeros((2, sizes.shape[1] + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        shifts = first_slots - edges[:, :-1]
        columns = (edges[0], edges[1], store_of, shifts[0], shifts[1])
        sentences, rows, places, *moved = (column.tolist() for column in columns)
        return cls(stores, store_of, edges[0], edges[1], shifts[0], shifts[1], (sentences, rows, places, *moved))

    def of_sentence(self, number: int) -> tuple[StoreReader, int, int]:
        """The store that has a sentence, and the shifts of its run."""
        return self.at(bisect_right(self.lists[0], number) - 1)

    def at(self, run: int) -> tuple[StoreReader, int, int]:
        """A run's store and shifts."""
        _, _, store_of, sentence_shift, row_shift = self.lists
        return self.stores[store_of[run]], sentence_shift[run], row_shift[run]

    def of_stores(self, run: Int64) -> list[tuple[StoreReader, npt.NDArray[np.bool_]]]:
        """Each store that has some of the runs, and which of them."""
        if len(self.stores) == 1:
            return [(self.stores[0], np.ones(len(run), bool))] if len(run) else []
        own = self.store_of[run]
        return [(self.stores[place], own == place) for place in np.unique(own).tolist()]

    def numbers(self, place: int, slots: Sequence[int]) -> list[int]:
        """Numbers of a store's slots, those that are of a run, in order."""
        runs = np.flatnonzero(self.store_of == place)
        numbers, counts = self.sentences[runs], np.diff(self.sentences)[runs]
        found = renumber(numbers + self.sentence_shift[runs], counts, numbers, np.array(slots, np.int64))
        listed: list[int] = found[found >= 0].tolist()
        return listed


def renumber(firsts: Int64, counts: Int64, numbers: Int64, wanted: Int64) -> Int64:
    """Numbers of runs that begin at ``firsts``, sorted, as those of the runs at ``numbers`` [n]; -1 for others."""
    if not len(firsts):
        return np.full(len(wanted), -1)
    run = np.searchsorted(firsts, wanted, "right") - 1
    offset = wanted - firsts[run]
    return np.where((run >= 0) & (offset < counts[run]), numbers[run] + offset, -1)


class Joined(Readable):
    """Runs of sentences of one or more stores, as one."""

    _runs: Runs

    def _no_sentence(self, number: int) -> SentenceNotFoundError:
        return SentenceNotFoundError(f"no sentence {number} in {self.url}: it has {self.n_sentences}, counted from 0")

    def _located(self, numbers: Sequence[int] | Int64) -> tuple[Int64, Int64]:
        """The sentences' runs and their slots. SentenceNotFoundError."""
        wanted, runs = np.asarray(numbers, np.int64), self._runs
        outside = wanted[(wanted < 0) | (wanted >= self.n_sentences)]
        if len(outside):
            raise self._no_sentence(int(outside[0]))
        run = np.searchsorted(runs.sentences, wanted, "right") - 1
        return run, wanted + runs.sentence_shift[run]

    def _span(self, number: int) -> Span:
        if not 0 <= number < self.n_sentences:
            raise self._no_sentence(number)
        store, sentence_shift, row_shift = self._runs.of_sentence(number)
        first, stop = store._span(number + sentence_shift)
        return first - row_shift, stop - row_shift

    def spans(self, numbers: Sequence[int] | Int64) -> Int64:
        """See `Readable.spans`."""
        if isinstance(numbers, range) and numbers and numbers.step == 1:
            return self._spans_of_range(numbers)
        run, slots = self._located(numbers)
        spans = np.empty((len(slots), 2), np.int64)
        for store, own in self._runs.of_stores(run):
            spans[own] = store.spans(slots[own])
        return spans - self._runs.row_shift[run][:, None]

    def _spans_of_range(self, numbers: range) -> Int64:
        """Neighbours, run by run."""
        runs, spans = self._runs, []
        if not 0 <= numbers[0] <= numbers[-1] < self.n_sentences:
            raise self._no_sentence(numbers[-1] if numbers[0] >= 0 else numbers[0])
        first, run = numbers.start, bisect_right(runs.lists[0], numbers.start) - 1
        while first < numbers.stop:
            stop = min(numbers.stop, runs.lists[0][run + 1])
            store, sentence_shift, row_shift = runs.at(run)
            spans.append(store.spans(range(first + sentence_shift, stop + sentence_shift)) - row_shift)
            first, run = stop, run + 1
        return spans[0] if len(spans) == 1 else np.concatenate(spans)

    def records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        """See `Readable.records`."""
        runs = self._runs
        if len(numbers) == 1 and 0 <= numbers[0] < self.n_sentences:  # sooner than by way of arrays
            store, sentence_shift, row_shift = runs.of_sentence(numbers[0])
            (record,) = store.records([numbers[0] + sentence_shift])
            return [structs.replace(record, index=int(numbers[0]), first_row=record.first_row - row_shift)]
        run, slots = self._located(numbers)
        records: list[SentenceRecord | None] = [None] * len(slots)
        for store, own in runs.of_stores(run):
            for place, record in zip(np.flatnonzero(own).tolist(), store.records(slots[own].tolist()), strict=True):
                first_row = record.first_row - int(runs.row_shift[run[place]])
                records[place] = structs.replace(record, index=int(numbers[place]), first_row=first_row)
        return [record for record in records if record is not None]

    def table(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """See `Readable.table`."""
        run, slots = self._located(numbers)
        tables, places = [self._runs.stores[0].table([], columns)], [np.zeros(0, np.int64)]
        for store, own in self._runs.of_stores(run):
            tables.append(store.table(slots[own].tolist(), columns))
            places.append(np.flatnonzero(own))
        table = pa.concat_tables(tables).take(np.argsort(np.concatenate(places)))
        return renumbered(table, {"sentence": list(numbers), "first_row": self.spans(numbers)[:, 0]})

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `sentences` that all stores have."""
        first, *others = (store.columns for store in self._runs.stores)
        return [name for name in first if all(name in other for other in others)]

    def find_ids(self, ids: Sequence[str]) -> list[list[int]]:
        """Numbers of all sentences that have each id, in order; none for one that no sentence has."""
        stores = enumerate(self._runs.stores)
        of_stores = [[self._runs.numbers(place, slots) for slots in store.find_ids(ids)] for place, store in stores]
        return [sorted(number for own in found for number in own) for found in zip(*of_stores, strict=True)]

    def find_hashes(self, pairs: UInt64) -> list[int | None]:
        """Number of the first sentence whose tokens have each hash [n, 2], None without one."""
        found: list[list[int]] = [[] for _ in pairs]
        for place, store in enumerate(self._runs.stores):
            for numbers, slot in zip(found, store.find_hashes(pairs), strict=True):
                numbers += [] if slot is None else self._runs.numbers(place, [slot])
        return [min(numbers) if numbers else None for numbers in found]

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        """See `Readable.read_spans`."""
        runs = self._runs
        if len(spans) == 1:  # the usual case
            first, stop = int(spans[0][0]), int(spans[0][1])
            run = bisect_right(runs.lists[1], first) - 1
            if stop > first and stop <= runs.lists[1][run + 1]:
                store, _, shift = runs.at(run)
                return store.read_spans(states, [(first + shift, stop + shift)], raw, empty)
        run_of, pieces = self._pieces(np.asarray(spans, np.int64).reshape(-1, 2))
        of_stores = runs.of_stores(run_of)
        if len(of_stores) < 2:
            return (of_stores[0][0] if of_stores else runs.stores[0]).read_spans(states, pieces, raw, empty)
        ends = np.cumsum(pieces[:, 1] - pieces[:, 0])
        places = np.split(np.arange(ends[-1]), ends[:-1])  # of each piece's rows
        read = [store.read_spans(states, pieces[own], raw) for store, own in of_stores]
        order = np.argsort(np.concatenate([places[i] for _, own in of_stores for i in np.flatnonzero(own)]))
        return (joined(read) if raw else np.concatenate(read))[order]

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `Readable.read_into`."""
        run_of, pieces = self._pieces(spans)  # as many: none of a sentence is cut
        return all(
            store.read_into(states, pieces[own], Places(places.first[own], places.step[own]), out)
            for store, own in self._runs.of_stores(run_of)
        )

    def _pieces(self, spans: Int64) -> tuple[Int64, Int64]:
        """Spans of rows cut where runs meet, empty ones left out: the run of each piece, and its rows as slots [n, 2]."""
        edges = self._runs.rows
        spans = spans[spans[:, 1] > spans[:, 0]]
        low = np.searchsorted(edges, spans[:, 0], "right") - 1
        most = np.searchsorted(edges, spans[:, 1], "left") - low
        span = np.repeat(np.arange(len(spans)), most)
        run = low[span] + np.arange(len(span)) - (np.cumsum(most) - most)[span]
        pieces = np.stack([np.maximum(spans[span, 0], edges[run]), np.minimum(spans[span, 1], edges[run + 1])], axis=1)
        filled = pieces[:, 1] > pieces[:, 0]  # runs of blank sentences have no rows
        run = run[filled]
        return run, pieces[filled] + self._runs.row_shift[run][:, None]

    def _tokens(self, first: int, stop: int) -> list[str]:
        run, pieces = self._pieces(np.array([[first, stop]], np.int64))
        spans = zip(run.tolist(), pieces.tolist(), strict=True)
        return [token for of, (low, high) in spans for token in self._runs.at(of)[0]._tokens(low, high)]


class Concatenation(Joined):
    """Several stores of one model, one after the other. Use `concat`."""

    def __init__(self, stores: Sequence[StoreReader]) -> None:
        if not stores:
            raise ValueError("no store to concatenate: give one or more")
        first = stores[0]
        for other in stores[1:]:
            refused = f"{other.url} can't follow {first.url}"
            for name in ("states", "channels", "dtype", "is_int8", "boundaries"):
                if getattr(other, name) != getattr(first, name):
                    raise StoreError(f"{refused}: its {name} is {getattr(other, name)}, not {getattr(first, name)}")
            if other.manifest.model.fingerprint != first.manifest.model.fingerprint:
                raise StoreError(f"{refused}: they are of different models")
            if other.manifest.start_state != first.manifest.start_state:
                raise StoreError(f"{refused}: their sentences start from different states")
        self.stores = tuple(stores)
        self._is_as(first)
        self.fields = {
            name: field
            for name, field in first.fields.items()
            if all(str(store.fields.get(name)) == str(field) for store in stores)
        }
        self.url = " + ".join(store.url for store in stores)
        sizes = np.array([(store.n_sentences, store.n_rows) for store in stores], np.int64).T
        self._runs = Runs.of(self.stores, np.arange(len(stores)), np.zeros_like(sizes), sizes)
        self.n_sentences, self.n_rows = sizes.sum(axis=1).tolist()
        self.n_tokens = sum(store.n_tokens for store in stores)

    def __reduce__(self) -> tuple[Any, ...]:
        return Concatenation, (self.stores,)

    def __repr__(self) -> str:
        return f"<Concatenation of {len(self.stores)} stores: {self.n_sentences:,} sentences, {self.n_rows:,} rows>"

    def _find(self, ids: Sequence[str]) -> list[int]:
        return [self._find_id(sentence_id) for sentence_id in ids]

    def _find_id(self, sentence_id: str) -> int:
        for first, store in zip(self._runs.lists[0], self.stores, strict=False):
            with suppress(SentenceNotFoundError):
                return first + store._find([sentence_id])[0]
        raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {self.url}")

    def find_text(self, texts: Sequence[Text]) -> list[int | None]:
        """See `Readable.find_text`."""
        matches: list[int | None] = [None] * len(texts)
        for first, store in zip(self._runs.lists[0], self.stores, strict=False):
            left = [index for index, number in enumerate(matches) if number is None]
            for index, number in zip(left, store.find_text([texts[index] for index in left]), strict=True):
                matches[index] = None if number is None else first + number
        return matches


def concat(stores: Sequence[StoreReader]) -> Concatenation:
    """Stores of one model as one: sentences and rows of the second follow those of the first, and so on; nothing is copied.

    StoreError if they differ in model, start state, states, channels, dtype or boundaries. An id is found in the first store
    that has it.
    """
    return Concatenation(stores)
