"""`StoreReader`: sentences and rows of one store. `elmo_store.Store` adds to it what is built on reading."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from elmo_store.errors import ShardMissingError, StoreError
from elmo_store.format import layout
from elmo_store.format.ids import UInt64
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.format.texts import cut_bytes
from elmo_store.reading.index import Index
from elmo_store.reading.opening import Watch
from elmo_store.reading.row_readers import Job, RowReader, Stored, row_reader
from elmo_store.reading.rows import Int64, Readable, Span, as_names
from elmo_store.reading.sentences import SentenceRecord, SentenceTable, Starts
from elmo_store.storage.root import Root


@dataclass(frozen=True)
class Readers:
    """What a store is read with, and what was read."""

    sentences: SentenceTable
    rows: RowReader
    marked: set[int] = field(
        default_factory=set
    )  # shards of an unfinished store that were found to be written


@dataclass(frozen=True)
class Runs:
    """Runs of sentences of some stores, in order.

    Attributes:
        stores: that the runs are of.
        store_of: of each run the place of its store [n].
        own_sentences, own_rows: each run's first sentence and row in its store [n].
        sentences, rows: each run's first sentence and row in all of them, and at last, how many there are [n + 1].
    """

    stores: Sequence["StoreReader"]
    store_of: Int64
    own_sentences: Int64
    own_rows: Int64
    sentences: Int64
    rows: Int64

    @classmethod
    def of(
        cls, stores: Sequence["StoreReader"], store_of: Int64, firsts: Int64, sizes: Int64
    ) -> "Runs":
        """``firsts``: first sentence and row of each run in its store [2, n]; ``sizes``: how many it has of both [2, n]."""
        edges = np.zeros((2, sizes.shape[1] + 1), np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        return cls(stores, store_of, *firsts, *edges)

    @cached_property
    def by_row(self) -> tuple[list[int], list["StoreReader"], list[int]]:
        """Of runs that have rows: the first row of each (and at last how many there are), its store, the shift to its rows."""
        filled = np.flatnonzero(np.diff(self.rows))
        stores = [self.stores[place] for place in self.store_of[filled].tolist()]
        firsts = self.rows[filled]
        return (
            [*firsts.tolist(), int(self.rows[-1])],
            stores,
            (self.own_rows[filled] - firsts).tolist(),
        )

    def own(self, numbers: Sequence[int] | Int64) -> tuple[Int64, Int64]:
        """The sentences' runs, and their numbers in their stores."""
        wanted = np.asarray(numbers, np.int64)
        run = np.searchsorted(self.sentences, wanted, "right") - 1
        return run, wanted - self.sentences[run] + self.own_sentences[run]

    def numbers(self, place: int, own: Sequence[int] | Int64) -> Int64:
        """Numbers of a store's sentences, -1 of those that are of no run. The store's runs are in its order."""
        runs = np.flatnonzero(self.store_of == place)
        firsts, counts, wanted = (
            self.own_sentences[runs],
            np.diff(self.sentences)[runs],
            np.asarray(own, np.int64),
        )
        if not len(firsts):
            return np.full(len(wanted), -1)
        run = np.maximum(np.searchsorted(firsts, wanted, "right") - 1, 0)
        offset = wanted - firsts[run]
        return np.where(
            (offset >= 0) & (offset < counts[run]), self.sentences[runs][run] + offset, -1
        )


@dataclass(frozen=True)
class Held:
    """A store as it lies somewhere, and what became of its sentences in the store or collection that is read.

    Attributes:
        numbers_of: numbers of its sentences → what they are called there [n], -1 where they are removed.
    """

    store: "StoreReader"
    numbers_of: Callable[[Int64], Int64]


class StoreReader(Readable):
    """What `elmo_store.Store` says of itself: its manifest is read, everything else when it is asked for.

    `elmo_store.reading.opening` tells why no row of another store that took its place is given out.
    """

    def __init__(self, root: Root, manifest: Manifest, form: str, *, mapped: bool = True) -> None:
        """``mapped``: files of a local disk may be mapped."""
        self._describe(
            root if root.watch else root.watched_by(Watch(manifest)), manifest, form, mapped=mapped
        )

    def _describe(self, root: Root, manifest: Manifest, form: str, *, mapped: bool) -> None:
        self.root, self.manifest, self.form, self.mapped = root, manifest, form, mapped
        self.url = root.url()
        self.states, self.channels, self.boundaries = (
            manifest.states,
            manifest.channels,
            manifest.boundaries,
        )
        self.dtype: np.dtype[Any] = np.dtype("float32" if manifest.is_int8 else manifest.dtype)
        self.is_int8 = manifest.is_int8
        self.fields = {field.name: field for field in manifest.fields}
        self.cut_bytes = cut_bytes(manifest.model.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), mapped=self.mapped), (self.root, self.manifest, self.form)

    def _opened(self, root: Root, manifest: Manifest) -> Any:
        """A store that was written from this one."""
        return type(self)(root, manifest, manifest.forms[0])

    def __repr__(self) -> str:
        counts = self.manifest.counts
        size = (
            f"{counts.sentences:,} sentences, {counts.rows:,} rows"
            if counts
            else "still reading its input"
        )
        states = f"{len(self.states)} × {self.channels} {self.manifest.dtype}"
        return f"<{type(self).__name__} {self.url}: {size}, {states}, {self.form}>"

    def held(self, faults: list[StoreError] | None = None) -> list[Held]:
        """The stores that this one is made of, in order: itself, or the members of a collection, see there."""
        return [Held(self, lambda numbers: numbers)]

    @property
    def n_sentences(self) -> int:  # type: ignore[override]
        """Sentences, those without tokens too. StoreIncompleteError while they aren't known, of an unfinished store."""
        return self.manifest.sizes.sentences

    @property
    def n_tokens(self) -> int:  # type: ignore[override]
        """Tokens of the corpus."""
        return self.manifest.sizes.tokens

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """Rows: the tokens, and with boundaries BOS and EOS of every sentence that has tokens."""
        return self.manifest.sizes.rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `sentences`; of a store without any sentence those that this version writes."""
        return list(self._now.sentences.schema.names)

    @cached_property
    def _now(self) -> Readers:
        rows = row_reader(self.root, self.manifest, self.form, mapped=self.mapped)
        return Readers(SentenceTable(self.root, self.manifest), rows)

    @property
    def runs(self) -> Runs:
        """The stores that rows and sentences are read from, and the runs of sentences that each contributes: itself, as one."""
        return Runs.of(
            [self],
            np.zeros(1, np.int64),
            np.zeros((2, 1), np.int64),
            np.array([[self.n_sentences], [self.n_rows]]),
        )

    @cached_property
    def _starts(self) -> Starts:  # type: ignore[override]
        return self._now.sentences.starts

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """See `Readable.records`."""
        return self._now.sentences.records(numbers)

    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """See `Readable.texts`."""
        return self._now.sentences.texts(numbers)

    def table(self, numbers: Index, columns: Sequence[str] | str) -> pa.Table:
        """See `Readable.table`."""
        return self._now.sentences.columns(numbers, as_names(columns))

    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """See `Readable.find`."""
        return self._now.sentences.find(pairs, texts=texts)

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """See `Readable.fill`."""
        if not self.manifest.complete:
            self._check_marked((first, stop) for first, stop, _ in jobs)
        self._now.rows.fill(states, jobs, rows)

    @cached_property
    def view(self) -> Callable[[Sequence[int], int, int], Stored | None]:
        """See `Readable.view`: that of its rows itself, since a call between would be a tenth of what a sentence costs."""
        return self._now.rows.view if self.manifest.complete else self._view_marked

    def _view_marked(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        self._check_marked([(first, stop)])
        return self._now.rows.view(states, first, stop)

    def views(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """See `Readable.views`."""
        if not self.manifest.complete:
            self._check_marked(spans.tolist())
        return self._now.rows.views(states, spans)

    def _check_marked(self, spans: Iterable[Span]) -> None:
        """ShardMissingError for a shard of an unfinished store that has no marker, whatever else there is."""
        readers, size = self._now, self.manifest.shard_rows
        shards = {
            shard
            for first, stop in spans
            if first < stop
            for shard in range(first // size, (stop - 1) // size + 1)
        }
        for shard in sorted(shards - readers.marked):
            if read_marker(self.root, ShardMarker, shard) is None:
                raise ShardMissingError(
                    f"{self.root.url(layout.shard_marker(shard))} is missing: shard {shard} is not written yet; "
                    "run the job again to continue it"
                )
            readers.marked.add(shard)
