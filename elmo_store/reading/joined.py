"""Runs of sentences of one or more stores, in order, as one: concatenations, and what views and collections have in common."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import structs

from elmo_store.errors import StoreError
from elmo_store.format.ids import UInt64
from elmo_store.reading.index import Index
from elmo_store.reading.row_readers import Job, Stored, side_by_side
from elmo_store.reading.rows import Int64, Readable, as_names, the_one
from elmo_store.reading.sentences import SentenceRecord, Starts
from elmo_store.reading.store import Runs, StoreReader

STARTS_AT_ONCE = 1024  # sentences whose rows are looked up together
T = TypeVar("T")
S = TypeVar("S", bound=StoreReader)


class Joined(Readable):
    """Runs of sentences of one or more stores, as one."""

    @abstractmethod
    def _make_runs(self) -> Runs:
        """The runs."""

    @cached_property
    def runs(self) -> Runs:
        """What it is made of."""
        return self._make_runs()

    @cached_property
    def _starts(self) -> Starts:  # type: ignore[override]
        return Starts(
            self.url,
            self.n_sentences,
            self.n_rows,
            STARTS_AT_ONCE,
            lambda chunks: list(map(self._begins, chunks)),
        )

    def _begins(self, chunk: int) -> Int64:
        """Where the sentences of a chunk of the numbers begin; behind the last one, how many rows there are."""
        numbers = np.arange(
            chunk * STARTS_AT_ONCE, min((chunk + 1) * STARTS_AT_ONCE, self.n_sentences)
        )
        begins = np.full(len(numbers) + 1, self.runs.rows[-1])
        run, own = self.runs.own(numbers)
        shift = self.runs.rows[run] - self.runs.own_rows[run]
        for store, places in self._by_store(run):
            begins[places] = store.spans(own[places])[:, 0] + shift[places]
        return begins[:STARTS_AT_ONCE]

    def _by_store(self, run: Int64) -> list[tuple[StoreReader, Int64]]:
        """Each store that has some of the runs, and which of them."""
        store_of = self.runs.store_of[run]
        order = np.argsort(store_of, kind="stable")
        ends = np.flatnonzero(np.diff(store_of[order])) + 1
        return [
            (self.runs.stores[int(store_of[own[0]])], own)
            for own in np.split(order, ends)
            if len(own)
        ]

    def _of_stores(self, work: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """``work`` on each; side by side where the stores are not on a local disk."""
        return side_by_side(work, items, not items or self.runs.stores[0].root.is_local)

    def fill(self, states: Sequence[int], jobs: Iterable[Job], rows: Stored) -> None:
        """See `Readable.fill`."""
        edges, stores, shifts = self.runs.by_row
        own: dict[int, tuple[StoreReader, list[Job]]] = {}
        for first, stop, place in jobs:
            while first < stop:
                run = bisect_right(edges, first) - 1
                end = min(stop, edges[run + 1])
                store = stores[run]
                own.setdefault(id(store), (store, []))[1].append(
                    (first + shifts[run], end + shifts[run], place)
                )
                first, place = end, place + end - first
        self._of_stores(lambda item: item[0].fill(states, item[1], rows), list(own.values()))

    def view(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        """See `Readable.view`."""
        edges, stores, shifts = self.runs.by_row
        run = bisect_right(edges, first) - 1
        if not first < stop <= edges[run + 1]:
            return None
        return stores[run].view(states, first + shifts[run], stop + shifts[run])

    def views(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """See `Readable.views`."""
        edges, stores, shifts = self.runs.by_row
        views = list[Stored]()
        for first, stop in spans.tolist():
            if first == stop:
                views.append(self._block(len(states), 0))
                continue
            run = bisect_right(edges, first) - 1
            if stop > edges[run + 1]:
                return None
            low, high = first + shifts[run], stop + shifts[run]
            view = stores[run].view(states, low, high)
            if view is None:  # of several shards, or not mapped
                copies = stores[run].views(states, np.array([[low, high]]))
                if copies is None:
                    return None
                (view,) = copies
            views.append(view)
        return views

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """See `Readable.records`."""
        resolved = self._starts.numbers(numbers)
        first_rows = self.spans(resolved)[:, 0].tolist()
        records = self._gathered(resolved, lambda store, own: store.records(own))
        return [
            structs.replace(record, index=number, first_row=first_row)
            for number, first_row, record in zip(
                resolved.tolist(), first_rows, records, strict=True
            )
        ]

    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """See `Readable.texts`."""
        pairs = self._gathered(
            self._starts.numbers(numbers),
            lambda store, own: list(zip(*store.texts(own), strict=True)),
        )
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _gathered(
        self, numbers: Int64, read: Callable[[StoreReader, list[int]], list[Any]]
    ) -> list[Any]:
        """What ``read`` gives of each sentence."""
        run, own = self.runs.own(numbers)
        by_store, gathered = self._by_store(run), [None] * len(run)
        for (_, places), values in zip(
            by_store,
            self._of_stores(lambda item: read(item[0], own[item[1]].tolist()), by_store),
            strict=True,
        ):
            for place, value in zip(places.tolist(), values, strict=True):
                gathered[place] = value
        return gathered

    def table(self, numbers: Index, columns: Sequence[str] | str) -> pa.Table:
        """See `Readable.table`."""
        resolved, names = self._starts.numbers(numbers), as_names(columns)
        run, own = self.runs.own(resolved)
        by_store = self._by_store(run)
        tables = self._of_stores(lambda item: item[0].table(own[item[1]].tolist(), names), by_store)
        places = np.concatenate([np.zeros(0, np.int64), *(places for _, places in by_store)])
        table = pa.concat_tables([self.runs.stores[0].table([], names), *tables]).take(
            np.argsort(places)
        )
        here = {"sentence": resolved, "first_row": self.spans(resolved)[:, 0]}
        for index, name in enumerate(table.column_names):
            if name in here:
                table = table.set_column(
                    index, table.field(index), [pa.array(here[name], pa.int64())]
                )
        return table

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `sentences` that all stores have."""
        first, *others = self._of_stores(lambda store: store.columns, self.runs.stores)
        return [name for name in first if all(name in other for other in others)]

    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """See `Readable.find`."""
        found = self._of_stores(lambda store: store.find(pairs, texts=texts), self.runs.stores)
        numbers: list[list[int]] = [[] for _ in pairs]
        for place, of_store in enumerate(found):
            for own, listed in zip(of_store, numbers, strict=True):
                listed += (
                    [number for number in self.runs.numbers(place, own).tolist() if number >= 0]
                    if own
                    else []
                )
        return list(map(sorted, numbers))


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
                    raise StoreError(
                        f"{refused}: its {name} is {getattr(other, name)}, not {getattr(first, name)}"
                    )
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
        self.n_sentences = sum(store.n_sentences for store in stores)
        self.n_rows = sum(store.n_rows for store in stores)
        self.n_tokens = sum(store.n_tokens for store in stores)

    def __reduce__(self) -> tuple[Any, ...]:
        return Concatenation, (self.stores,)

    def __repr__(self) -> str:
        return f"<Concatenation of {len(self.stores)} stores: {self.n_sentences:,} sentences, {self.n_rows:,} rows>"

    def _make_runs(self) -> Runs:
        of_stores, readers, store_of = (
            [store.runs for store in self.stores],
            list[StoreReader](),
            list[Int64](),
        )
        for runs in of_stores:
            store_of.append(runs.store_of + len(readers))
            readers += runs.stores
        firsts = np.concatenate(
            [np.stack([runs.own_sentences, runs.own_rows]) for runs in of_stores], axis=1
        )
        sizes = np.concatenate(
            [np.stack([np.diff(runs.sentences), np.diff(runs.rows)]) for runs in of_stores], axis=1
        )
        return Runs.of(readers, np.concatenate(store_of), firsts, sizes)

    def _find(self, ids: Sequence[str]) -> list[int]:
        ends = np.cumsum([store.n_sentences for store in self.stores])
        found = []
        for sentence_id, own in zip(ids, self.find_ids(ids), strict=True):
            stop = (
                ends[np.searchsorted(ends, own[0], "right")] if own else 0
            )  # of the first store that has it
            found.append(
                the_one(self.url, sentence_id, [number for number in own if number < stop])
            )
        return found


def concat(stores: Sequence[StoreReader]) -> Concatenation:
    """Stores of one model as one: sentences and rows of the second follow those of the first, and so on; nothing is copied.

    StoreError if they differ in model, start state, states, channels, dtype or boundaries. An id is found in the first store
    that has it.
    """
    return Concatenation(stores)
