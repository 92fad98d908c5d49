"""`View`: the sentences of one or more stores, in any order, and how they are read.

A store is a view with one run of sentences. What is selected from it, what is concatenated, and a
collection without its removed sentences are views with other runs. So everything that reads a view
reads all of them, and a view of a view is a view. `elmo_store.Store` is what users hold; this class
has what this package itself builds on.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from elmo_store.errors import (
    AmbiguousIdError,
    SentenceNotFoundError,
    StateNotFoundError,
    StoreError,
)
from elmo_store.format import layout
from elmo_store.format.fields import KeptField
from elmo_store.format.ids import UInt64, hashes
from elmo_store.format.manifest import Counts, InputInfo, Manifest, own_sha256
from elmo_store.format.numbers import Array, row_block
from elmo_store.format.texts import Text, cut_bytes, hash_texts
from elmo_store.format.version import Member, Version
from elmo_store.reading.index import Index, resolve_numbers
from elmo_store.reading.row_readers import Job, Stored, all_states, copied, side_by_side
from elmo_store.reading.runs import Int64, RowRuns, Runs
from elmo_store.reading.sentences import SentenceRecord, Starts, check_row_count
from elmo_store.reading.store import MemberOf, Span, StoreReader
from elmo_store.storage.location import Location
from elmo_store.storage.root import Root

Spans = Int64 | Sequence[Span]  # [n, 2]
RECORDS_AT_ONCE = 1024  # sentences whose text is read together
STARTS_AT_ONCE = 1024  # sentences whose rows are looked up together
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class StoreInView:
    """A store that a view takes sentences from.

    Attributes:
        store: the store by its own manifest.
        view: the view.
        index: the store's index in the view's runs.
    """

    store: StoreReader
    view: "View"
    index: int

    def occurrences(self, sentences: Sequence[int] | Int64) -> tuple[Int64, Int64]:
        """Find sentences of the store in the view, as of `Runs.occurrences`."""
        return self.view.runs.occurrences(self.index, np.asarray(sentences, np.int64))

    def numbers_of(self, sentences: Sequence[int] | Int64) -> Int64:
        """Return the first number that each sentence has in the view, -1 if it is not there."""
        numbers = np.full(len(sentences), -1, np.int64)
        found, view_numbers = self.occurrences(sentences)
        numbers[found[::-1]] = view_numbers[::-1]  # the first one is written last
        return numbers


class View:
    """Runs of sentences of stores that have their model, start state, states and dtype in common.

    Nothing is read when a view is made. Safe for threads, picklable, and usable after a fork.

    Attributes:
        stores: the stores that the runs refer to.
        url: what messages call the view.
        root: where the store or collection lies; None for what has no place of its own.
        version: of a collection, the version that was opened; otherwise None.
        states: names of the states (of a mixed store: of its weight sets), in stored order.
        channels: how many numbers one state of one row has.
        dtype: of what is read: float16 or float32.
        is_int8: whether states are stored in 8 bits, which are read as float32.
        boundaries: whether BOS and EOS have rows.
        fields: what sentences keep of their records, by column.
        cut_bytes: how many bytes of a token the model reads; None if its options don't say.
    """

    def __init__(
        self,
        stores: Sequence[StoreReader],
        runs: Runs | None = None,
        *,
        row_runs: RowRuns | None = None,
        url: str | None = None,
        root: Root | None = None,
        version: Version | None = None,
        like: Manifest | None = None,
        fields: dict[str, KeptField] | None = None,
    ) -> None:
        """Describe a view.

        Args:
            stores: one or more stores that `check_alike` accepts.
            runs: which of their sentences, in which order; by default all sentences of each.
            row_runs: the rows of the runs, where they are known without reading.
            url: what messages call the view, by default the first store's URL.
            root: see the class.
            version: see the class.
            like: the manifest that describes the view, by default the first store's with other
                counts.
            fields: see the class; by default the first store's.
        """
        self.stores = tuple(stores)
        manifest = like or self.stores[0].manifest
        self.url = self.stores[0].url if url is None else url
        self.root, self.version = root, version
        self.states, self.channels = manifest.states, manifest.channels
        self.is_int8, self.boundaries = manifest.is_int8, manifest.boundaries
        self.dtype: np.dtype[Any] = np.dtype("float32" if self.is_int8 else manifest.dtype)
        kept = {field.name: field for field in manifest.fields}
        self.fields = kept if fields is None else fields
        self.cut_bytes = cut_bytes(manifest.model.options)
        self._runs, self._row_runs, self._like = runs, row_runs, like

    # How views are made.

    @classmethod
    def of_store(cls, store: StoreReader) -> "View":
        """Return all sentences of one store."""
        return cls([store], root=store.root, like=store.manifest)

    @classmethod
    def of_version(cls, root: Root, version: Version, form: str, *, mapped: bool = True) -> "View":
        """Return what a version of a collection holds, without what was removed.

        Each member is compared with the version when it is first read.
        """
        members = [MemberOf(root, version, member) for member in version.members]
        stores = [StoreReader.of_member(member, form, mapped=mapped) for member in members]
        runs, row_runs = _kept_runs(version.members)
        return cls(
            stores,
            runs,
            row_runs=row_runs,
            url=root.url(),
            root=root,
            version=version,
            like=version.store,
        )

    def select(self, numbers: Index) -> "View":
        """Return some sentences, in the order of ``numbers``. Errors as of `resolve_numbers`."""
        chosen = resolve_numbers(numbers, self.n_sentences, "sentence", self.url)
        runs = self.runs.take(chosen)
        return View(self.stores, runs, url=self.url, fields=self.fields)

    @classmethod
    def concat(cls, views: Sequence["View"]) -> "View":
        """Return several views as one: the sentences of the second follow those of the first.

        Raises:
            StoreError: they differ in model, start state, states, channels, dtype or boundaries.
        """
        if not views:
            raise ValueError("there is no store to concatenate: pass one or more")
        first = views[0]
        for other in views[1:]:
            _check_alike(first, other)
        stores: list[StoreReader] = []
        parts = []
        for view in views:
            parts.append((view.runs, len(stores)))
            stores += view.stores
        in_common = {
            name: field
            for name, field in first.fields.items()
            if all(str(view.fields.get(name)) == str(field) for view in views)
        }
        url = " + ".join(view.url for view in views)
        return cls(stores, Runs.concat(parts), url=url, fields=in_common)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.url, self.root, self.version, self._like, self.fields
        return _view_again, (self.stores, self._runs, self._row_runs, *facts)

    def fresh(self) -> "View":
        """Return the same view without anything that was read or mapped."""
        rebuild, (stores, *facts) = self.__reduce__()
        readers = [make(*arguments) for make, arguments in (store.__reduce__() for store in stores)]
        view: View = rebuild(readers, *facts)
        return view

    # What a view is.

    @cached_property
    def runs(self) -> Runs:
        """Which sentences of which store. StoreIncompleteError if a store doesn't know yet."""
        if self._runs is not None:
            return self._runs
        return Runs.whole([store.n_sentences for store in self.stores])

    @cached_property
    def whole_store(self) -> StoreReader | None:
        """The store whose sentences these are, all of them and in order; None for other views."""
        if self._runs is not None or len(self.stores) > 1:
            return None
        return self.stores[0]

    @cached_property
    def row_runs(self) -> RowRuns:
        """The rows of the runs. Only the first and the last sentence of a run are looked up."""
        if self._row_runs is not None:
            return self._row_runs
        firsts, n_sentences = self.runs.firsts, self.runs.counts
        first_rows = np.zeros(len(firsts), np.int64)
        n_rows = np.zeros_like(first_rows)
        for index, runs in self.runs.by_store(np.arange(len(firsts))):
            store = self.stores[index]
            if len(runs) == 1 and n_sentences[runs[0]] == store.n_sentences:
                n_rows[runs] = store.n_rows  # all of the store: nothing is read
                continue
            ends = np.stack([firsts[runs], firsts[runs] + n_sentences[runs] - 1], axis=1)
            spans = store.spans(ends.ravel()).reshape(-1, 4)
            first_rows[runs] = spans[:, 0]
            n_rows[runs] = spans[:, 3] - spans[:, 0]
        return RowRuns.of(first_rows, n_rows)

    @property
    def n_sentences(self) -> int:
        """Sentences, with those that have no tokens. StoreIncompleteError if not yet known."""
        return self.runs.n_sentences

    @property
    def n_rows(self) -> int:
        """Rows: one for each token, and with boundaries two more for each sentence with tokens."""
        if self._like is not None:
            return self._like.sizes.rows
        return int(self.row_runs.edges[-1])

    @cached_property
    def n_tokens(self) -> int:
        """Tokens of all sentences."""
        if self._like is not None:
            return self._like.sizes.tokens
        if not self.boundaries:
            return self.n_rows
        spans = self.spans(np.arange(self.n_sentences))
        n_with_tokens = int(np.count_nonzero(spans[:, 1] > spans[:, 0]))
        return self.n_rows - 2 * n_with_tokens

    @cached_property
    def manifest(self) -> Manifest:
        """What describes the view as one store; of a store or a collection its own manifest."""
        if self._like is not None:
            return self._like
        first = self.stores[0].manifest
        fingerprint = self.fingerprint
        counts = Counts(self.n_sentences, self.n_tokens, self.n_rows, 0, 0, 0, 0)
        return replace(
            first,
            complete=all(store.manifest.complete for store in self.stores),
            objects=(),
            checksums=None,
            counts=counts,
            fields=tuple(self.fields.values()),
            input=InputInfo(fingerprint, sum(store.manifest.input.files for store in self.stores)),
            job={"selected_from": first.input.fingerprint, "input": fingerprint},
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of which sentences of which stores these are."""
        identities = [own_sha256(store.manifest.to_json()) for store in self.stores]
        digest = hashlib.sha256(json.dumps(identities).encode())
        for numbers in (self.runs.store_of, self.runs.firsts, self.runs.edges):
            digest.update(numbers.astype("<i8").tobytes())
        return f"sha256:{digest.hexdigest()}"

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the sentence table that all stores have."""
        if self.whole_store is not None:
            return list(self.whole_store.schema.names)
        first, *others = self._on_each(lambda store: store.schema.names, self.stores)
        return [name for name in first if all(name in other for other in others)]

    @property
    def is_local(self) -> bool:
        """Whether the stores lie on a disk of this machine."""
        return self.stores[0].root.is_local

    def locations(self) -> list[Location]:
        """Return where the stores lie that the view reads, for `check_apart`."""
        roots = [self.root] if self.root is not None else [store.root for store in self.stores]
        return [Location("store", root.url(), root.storage_options) for root in roots]

    def opened_stores(self, faults: list[StoreError] | None = None) -> list[StoreInView]:
        """Open the stores that the view takes sentences from.

        Args:
            faults: if it is given, errors are added to it and such stores are left out.

        Raises:
            StoreError: as of `StoreReader.opened`.
        """
        opened = []
        for index, store in enumerate(self.stores):
            try:
                opened.append(StoreInView(store.opened(), self, index))
            except StoreError as error:
                if faults is None:
                    raise
                faults.append(error)
        return opened

    # Where sentences are.

    @cached_property
    def starts(self) -> Starts:
        """Where the rows of each sentence begin in the view."""
        if self.whole_store is not None:
            return self.whole_store.starts
        n_sentences, n_rows = self.n_sentences, self.n_rows
        return Starts(self.url, n_sentences, n_rows, STARTS_AT_ONCE, self._starts_of_chunks)

    def _starts_of_chunks(self, chunks: list[int]) -> list[Int64]:
        return [self._starts_of_chunk(chunk) for chunk in chunks]

    def _starts_of_chunk(self, chunk: int) -> Int64:
        """Return where sentences of a chunk begin, and after the last one the number of rows."""
        stop = min((chunk + 1) * STARTS_AT_ONCE, self.n_sentences)
        numbers = np.arange(chunk * STARTS_AT_ONCE, stop)
        starts = np.full(len(numbers) + 1, self.row_runs.edges[-1])
        run, sentences = self.runs.locate(numbers)
        shifts = self.row_runs.shifts[run]
        for index, positions in self.runs.by_store(run):
            first_rows = self.stores[index].spans(sentences[positions])[:, 0]
            starts[positions] = first_rows + shifts[positions]
        return starts[:STARTS_AT_ONCE]

    def span(self, number: int) -> Span:
        """Return the rows of one sentence: the first, and the one after the last."""
        return self.starts.span(number)

    def spans(self, numbers: Index) -> Int64:
        """Return the rows of sentences: int64 [n, 2]."""
        return self.starts.spans(numbers)

    def inner_spans(self, spans: Int64) -> Int64:
        """Return spans [n, 2] without the rows of BOS and EOS, if the store has them."""
        if not self.boundaries:
            return spans
        has_rows = spans[:, 1:] > spans[:, :1]
        return spans + has_rows * np.array([1, -1])

    def inner_span(self, span: Span) -> Span:
        """Return `inner_spans` of one span."""
        first, stop = span
        return (first + 1, stop - 1) if self.boundaries and stop > first else span

    def check_row_count(self, number: int, n_tokens: int) -> None:
        """Raise ShardCorruptError unless a sentence has the rows that its tokens ask for."""
        span = self.span(number)
        check_row_count(self.url, number, span, n_tokens, boundaries=self.boundaries)

    def sentence_at(self, row: int) -> int:
        """Return the number of the sentence that a row belongs to, found by bisection.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.n_rows:
            raise IndexError(f"there is no row {row} in {self.url}: it has {self.n_rows}")
        low, high = 0, self.n_sentences
        while low < high:  # the first sentence that ends after the row
            middle = (low + high) // 2
            if self.span(middle)[1] <= row:
                low = middle + 1
            else:
                high = middle
        return low

    # What sentences say.

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Return everything about each sentence but its states, as it is numbered in the view."""
        if self.whole_store is not None:
            return self.whole_store.records(numbers)
        wanted = self.starts.numbers(numbers)
        first_rows = self.spans(wanted)[:, 0].tolist()
        records = self._of_sentences(wanted, lambda store, own: store.records(own))
        return [
            structs.replace(record, index=number, first_row=first_row)
            for number, first_row, record in zip(wanted.tolist(), first_rows, records, strict=True)
        ]

    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the ids and the tokens of sentences; nothing else about them is read."""
        if self.whole_store is not None:
            return self.whole_store.texts(numbers)
        pairs = self._of_sentences(
            self.starts.numbers(numbers),
            lambda store, own: list(zip(*store.texts(own), strict=True)),
        )
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def table(self, numbers: Index, columns: Sequence[str]) -> pa.Table:
        """Return columns of the sentence table, one row per sentence, in the order of numbers.

        Raises:
            StoreError: there is no such column.
        """
        if self.whole_store is not None:
            return self.whole_store.table(numbers, columns)
        wanted = self.starts.numbers(numbers)
        run, sentences = self.runs.locate(wanted)
        by_store = self.runs.by_store(run)
        tables = self._on_each(
            lambda own: self.stores[own[0]].table(sentences[own[1]].tolist(), columns), by_store
        )
        # A table without rows gives the columns where no sentence is asked for.
        tables = [self.stores[0].table([], columns), *tables]
        positions = np.concatenate([np.zeros(0, np.int64), *(own for _, own in by_store)])
        table = pa.concat_tables(tables).take(np.argsort(positions))
        renumbered = {"sentence": wanted, "first_row": self.spans(wanted)[:, 0]}
        for index, name in enumerate(table.column_names):
            if name in renumbered:
                values = [pa.array(renumbered[name], pa.int64())]
                table = table.set_column(index, table.field(index), values)
        return table

    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """Return, for each hash [n, 2], the numbers of all sentences with that id (or text)."""
        if self.whole_store is not None:
            return self.whole_store.find(pairs, texts=texts)
        found = self._on_each(lambda store: store.find(pairs, texts=texts), self.stores)
        numbers: list[list[int]] = [[] for _ in pairs]
        for index, of_store in enumerate(found):
            for own, listed in zip(of_store, numbers, strict=True):
                if own:
                    listed += self.runs.occurrences(index, np.array(own, np.int64))[1].tolist()
        return [sorted(listed) for listed in numbers]

    def find_ids(self, ids: Sequence[str]) -> list[list[int]]:
        """Return the numbers of all sentences that have each id, in order."""
        return self.find(hashes(ids)) if len(ids) else []

    def find_texts(self, texts: Sequence[Text]) -> list[int | None]:
        """Return the number of the first sentence that has each text, None if none has it."""
        found = self.find(hash_texts(texts, self.cut_bytes), texts=True) if len(texts) else []
        return [min(numbers, default=None) for numbers in found]

    def numbers_of_ids(self, ids: Sequence[str]) -> list[int]:
        """Return the number of the sentence that has each id; the first, if a view repeats it.

        Raises:
            SentenceNotFoundError: no sentence has the id.
            AmbiguousIdError: different sentences have it.
        """
        return [
            self._only(sentence_id, numbers)
            for sentence_id, numbers in zip(ids, self.find_ids(ids), strict=True)
        ]

    def _only(self, sentence_id: str, numbers: list[int]) -> int:
        if not numbers:
            raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {self._shown}")
        if len(numbers) > 1:
            run, sentences = self.runs.locate(np.array(numbers, np.int64))
            stores = [self.stores[index] for index in self.runs.store_of[run].tolist()]
            places = {
                (store.url, own) for store, own in zip(stores, sentences.tolist(), strict=True)
            }
            if len(places) > 1:
                raise AmbiguousIdError(self._shown, sentence_id, numbers)
        return numbers[0]

    @property
    def _shown(self) -> str:
        """What messages call sentences that are looked for by id."""
        return self.url if self.root is not None else f"this view of {self.url}"

    def _of_sentences(
        self, numbers: Int64, read: Callable[[StoreReader, list[int]], list[Any]]
    ) -> list[Any]:
        """Return what ``read`` returns for each sentence, given a store and its own numbers."""
        run, sentences = self.runs.locate(numbers)
        by_store = self.runs.by_store(run)
        read_of_stores = self._on_each(
            lambda own: read(self.stores[own[0]], sentences[own[1]].tolist()), by_store
        )
        values: list[Any] = [None] * len(numbers)
        for (_, positions), of_store in zip(by_store, read_of_stores, strict=True):
            for position, value in zip(positions.tolist(), of_store, strict=True):
                values[position] = value
        return values

    def _on_each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply ``work`` to each item, in parallel if the stores are remote."""
        return side_by_side(work, items, self.is_local)

    # Rows of states, as the rest of this package asks for them.

    @cached_property
    def all_places(self) -> range:
        """The indices of all states."""
        return all_states(len(self.states))

    def state_indices(self, states: Sequence[str] | str | None = None) -> Sequence[int]:
        """Return the indices of the named states, all by default.

        Raises:
            StateNotFoundError: there is no such state.
        """
        if states is None:
            return self.all_places
        names = (states,) if isinstance(states, str) else states
        for name in names:
            if name not in self.states:
                known = ", ".join(self.states)
                raise StateNotFoundError(f"{self.url} has no state {name!r}: it has {known}")
        return [self.states.index(name) for name in names]

    @cached_property
    def _filled(self) -> tuple[list[int], list[StoreReader], list[int]]:
        """Runs that have rows: first row of each and their sum; their stores; shifts to their rows."""
        filled = np.flatnonzero(np.diff(self.row_runs.edges))
        stores = [self.stores[index] for index in self.runs.store_of[filled].tolist()]
        edges = [*self.row_runs.edges[filled].tolist(), self.n_rows]
        return edges, stores, (-self.row_runs.shifts[filled]).tolist()

    def fill(self, states: Sequence[int], jobs: Iterable[Job], rows: Stored) -> None:
        """Read rows of states into ``rows``, all of them at once; see `RowReader.fill`."""
        if self.whole_store is not None:
            self.whole_store.fill(states, list(jobs), rows)
            return
        edges, stores, shifts = self._filled
        jobs_of: dict[int, tuple[StoreReader, list[Job]]] = {}
        for first, stop, offset in jobs:
            while first < stop:
                run = bisect_right(edges, first) - 1
                end = min(stop, edges[run + 1])
                store, shift = stores[run], shifts[run]
                _, of_store = jobs_of.setdefault(id(store), (store, []))
                of_store.append((first + shift, end + shift, offset))
                offset += end - first
                first = end
        self._on_each(lambda item: item[0].fill(states, item[1], rows), list(jobs_of.values()))

    @cached_property
    def map_span(self) -> Callable[[Sequence[int], int, int], Stored | None]:
        """Return rows without a copy, read-only, as they are stored; None if that is impossible.

        A cached attribute and no method, so that a whole store pays for no call in between.
        """
        return self._map_span_of_runs if self.whole_store is None else self.whole_store.map_span

    def _map_span_of_runs(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        edges, stores, shifts = self._filled
        run = bisect_right(edges, first) - 1
        if not first < stop <= edges[run + 1]:
            return None
        return stores[run].map_span(states, first + shifts[run], stop + shifts[run])

    def map_spans(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """Return `map_span` of each of the spans [n, 2], or a copy of rows that several shards hold.

        None if rows are not mapped.
        """
        if self.whole_store is not None:
            return self.whole_store.map_spans(states, spans)
        edges, stores, shifts = self._filled
        views: list[Stored] = []
        for first, stop in spans.tolist():
            if first == stop:
                views.append(self._block(len(states), 0))
                continue
            run = bisect_right(edges, first) - 1
            if stop > edges[run + 1]:  # the rows of several runs
                return None
            low, high = first + shifts[run], stop + shifts[run]
            view = stores[run].map_span(states, low, high)
            if view is None:
                copies = stores[run].map_spans(states, np.array([[low, high]]))
                if copies is None:
                    return None
                (view,) = copies
            views.append(view)
        return views

    def read_span(
        self,
        states: Sequence[int],
        first: int,
        stop: int,
        raw: bool = False,
        copy: bool = True,
    ) -> Any:
        """Return `read_spans` of one span; without ``copy`` read-only, and a view where possible."""
        rows = self.map_span(states, first, stop)
        if rows is not None and not self.is_int8:
            return rows.copy("K") if copy else rows
        if rows is not None and raw:
            return copied(rows) if copy else rows
        if rows is None:
            rows = self._fetched(states, [(first, stop)])
        read = rows.floats() if self.is_int8 and not raw else rows
        if not copy:
            for array in read if raw else (read,):
                array.flags.writeable = False
        return read

    def rows_of(self, states: Sequence[int], spans: Int64, merged: Int64) -> list[Array]:
        """Return the rows of each of the spans [n, 2] in the store's dtype, views where possible.

        Args:
            states: indices of states.
            spans: int64 [n, 2].
            merged: the same rows, in fewer spans where spans touch.
        """
        views = self.plain_spans(states, spans)
        if views is not None:
            return views
        rows, edges = self.read_spans(states, merged), offsets_of(spans).tolist()
        return [rows[first:stop] for first, stop in pairwise(edges)]

    def plain_spans(self, states: Sequence[int], spans: Int64) -> list[Array] | None:
        """Return `map_spans` of states that are read as they are stored; None for 8 bits."""
        return None if self.is_int8 else self.map_spans(states, spans)

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False) -> Any:
        """Return rows of states, span after span: [rows, len(states), channels].

        Args:
            states: indices of states.
            spans: [n, 2].
            raw: return `Int8Rows` as they are stored, of a store in 8 bits.

        Returns:
            An array that lies in memory one state after the other, in the store's dtype.
        """
        wanted = np.asarray(spans, np.int64).reshape(-1, 2)
        views = self.map_spans(states, wanted)
        if views:
            rows = self._block(len(states), int((wanted[:, 1] - wanted[:, 0]).sum()))
            if self.is_int8:
                np.concatenate([view.values for view in views], out=rows.values)
                np.concatenate([view.scale for view in views], out=rows.scale)
            else:
                np.concatenate(views, out=rows)
        else:
            rows = self._fetched(states, wanted.tolist())
        return rows.floats() if self.is_int8 and not raw else rows

    def _fetched(self, states: Sequence[int], spans: Iterable[Sequence[int]]) -> Stored:
        jobs: list[Job] = []
        n_rows = 0
        for first, stop in spans:
            jobs.append((first, stop, n_rows))
            n_rows += stop - first
        rows = self._block(len(states), n_rows)
        self.fill(states, jobs, rows)
        return rows

    def _block(self, n_states: int, n_rows: int) -> Stored:
        dtype = np.dtype(np.int8) if self.is_int8 else self.dtype
        return row_block(n_states, n_rows, self.channels, dtype)

    def check_raw(self, raw: bool = True) -> None:
        """Raise StoreError if ``raw`` rows are asked for of a store that is not in 8 bits."""
        if raw and not self.is_int8:
            raise StoreError(
                f"{self.url} holds {self.dtype}, no int8 with scales: read it without raw"
            )


def all_records(view: View) -> Iterator[SentenceRecord]:
    """Iterate over everything that all sentences say but their states, in order."""
    for start in range(0, view.n_sentences, RECORDS_AT_ONCE):
        yield from view.records(range(start, min(start + RECORDS_AT_ONCE, view.n_sentences)))


def offsets_of(spans: Int64) -> Int64:
    """Return where the rows of each of the spans [n, 2] begin if they follow each other: [n + 1]."""
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    return offsets


def text_of_rows(
    view: View, first: int, stop: int
) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return token, sentence, and position in the sentence of rows ``first`` to ``stop - 1``.

    The tokens are those of the sentence table, and not those that the states' own files repeat.
    """
    tokens: list[str] = []
    numbers: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    positions: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    if first < stop:
        sentences = range(view.sentence_at(first), view.sentence_at(stop - 1) + 1)
        for record in view.records(sentences):
            low = max(first - record.first_row, 0)
            high = min(stop - record.first_row, record.n_rows)
            shown: Sequence[str] = record.tokens
            if view.boundaries and record.n_rows:
                shown = [layout.BOS_TOKEN, *record.tokens, layout.EOS_TOKEN]
            tokens += shown[low:high]
            numbers.append(np.full(max(0, high - low), record.index, np.int64))
            positions.append(np.arange(low, max(low, high), dtype=np.int32))
    return tokens, np.concatenate(numbers), np.concatenate(positions)


def _kept_runs(members: Sequence[Member]) -> tuple[Runs, RowRuns]:
    """Return what members of a collection keep: what lies between the runs that are removed."""
    kept = []  # of each run: member, first sentence, number of sentences, first row, number of rows
    for index, member in enumerate(members):
        sentence = row = 0
        for removed in member.removed:
            kept.append(
                (index, sentence, removed.first_sentence - sentence, row, removed.first_row - row)
            )
            sentence, row = removed.span[1], removed.first_row + removed.n_rows
        counts = member.counts
        kept.append((index, sentence, counts.sentences - sentence, row, counts.rows - row))
    table = np.array(kept, np.int64).reshape(-1, 5)
    store_of, firsts, counts, first_rows, n_rows = table[table[:, 2] > 0].T
    return Runs.of(store_of, firsts, counts), RowRuns.of(first_rows, n_rows)


def _check_alike(first: View, other: View) -> None:
    """Raise StoreError unless the sentences of ``other`` can follow those of ``first``."""
    cannot = f"{other.url} can't follow {first.url}"
    for name in ("states", "channels", "dtype", "is_int8", "boundaries"):
        value, expected = getattr(other, name), getattr(first, name)
        if value != expected:
            raise StoreError(f"{cannot}: its {name} is {value}, not {expected}")
    manifests = first.stores[0].manifest, other.stores[0].manifest
    if manifests[0].model.fingerprint != manifests[1].model.fingerprint:
        raise StoreError(f"{cannot}: they are of different models")
    if manifests[0].start_state != manifests[1].start_state:
        raise StoreError(f"{cannot}: their sentences start from different states")


def _view_again(
    stores: Sequence[StoreReader],
    runs: Runs | None,
    row_runs: RowRuns | None,
    url: str,
    root: Root | None,
    version: Version | None,
    like: Manifest | None,
    fields: dict[str, KeptField],
) -> View:
    """Make a view from its pickle."""
    return View(
        stores,
        runs,
        row_runs=row_runs,
        url=url,
        root=root,
        version=version,
        like=like,
        fields=fields,
    )
