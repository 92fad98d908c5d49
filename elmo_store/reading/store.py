"""`StoreReader`: the rows and sentences of one store, which lies at one place.

A `View` is made of runs of sentences of such readers; `elmo_store.Store` is what users hold.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from elmo_store.errors import ShardMissingError
from elmo_store.format import layout
from elmo_store.format.ids import UInt64
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.format.version import Member, Version
from elmo_store.reading.index import Index
from elmo_store.reading.opening import Watch, opened_member
from elmo_store.reading.row_readers import Job, RowReader, Stored, row_reader
from elmo_store.reading.runs import Int64
from elmo_store.reading.sentences import SentenceRecord, SentenceTable, Starts
from elmo_store.storage.root import Root

Span = tuple[int, int]  # first row, and the row after the last


@dataclass(frozen=True)
class MemberOf:
    """Says that a store is a member of a version of a collection."""

    collection: Root
    version: Version
    member: Member

    def place(self) -> Root:
        """Return where the member lies."""
        url = self.collection.url(layout.member(self.member.name))
        return Root(url, self.collection.storage_options)

    def manifest(self) -> Manifest:
        """Return what the version says about the member; the member itself is not read."""
        return self.version.manifest_of(self.member)

    def opened(self) -> tuple[Root, Manifest]:
        """Open the member and compare it with the version. Errors as of `opened_member`."""
        return opened_member(self.collection, self.version, self.member)

    def share(self) -> float:
        """Return the member's share of the memory that one store may use for what it caches."""
        n_sentences = self.member.counts.sentences
        return n_sentences / max(1, int(self.version.sizes[:, 0].sum()))


@dataclass(frozen=True)
class _Readers:
    """What reads a store, made when something is read for the first time."""

    sentences: SentenceTable
    rows: RowReader
    # Shards of an unfinished store whose markers were found.
    marked: set[int] = field(default_factory=set)


class StoreReader:
    """One store: its manifest is known, everything else is read when it is asked for.

    `elmo_store.reading.opening` explains why no row of another store that took this one's place is
    ever returned. Safe for threads, picklable, and usable after a fork.

    Attributes:
        root: where the store lies.
        manifest: what the store says about itself; of a member, what its version says.
        form: "zarr" or "parquet", the form that is read.
        mapped: whether files of a local disk may be mapped.
    """

    def __init__(
        self,
        root: Root,
        manifest: Manifest,
        form: str,
        *,
        mapped: bool = True,
        member_of: MemberOf | None = None,
    ) -> None:
        """Describe the store; nothing is read.

        Args:
            root: where the store lies.
            manifest: its manifest.
            form: a form that the store has.
            mapped: whether files of a local disk may be mapped.
            member_of: for a member of a collection, which one. The store is compared with the
                version when it is read for the first time.
        """
        is_watched = root.watch is not None or member_of is not None
        self.root = root if is_watched else root.watched_by(Watch(manifest))
        self.manifest, self.form, self.mapped = manifest, form, mapped
        self._member_of = member_of

    @classmethod
    def of_member(cls, member_of: MemberOf, form: str, *, mapped: bool = True) -> "StoreReader":
        """Return the reader of a member by what the version says about it."""
        place, manifest = member_of.place(), member_of.manifest()
        return cls(place, manifest, form, mapped=mapped, member_of=member_of)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._member_of is not None:
            return _member_again, (self._member_of, self.form, self.mapped)
        return _again, (self.root, self.manifest, self.form, self.mapped)

    def __repr__(self) -> str:
        return f"StoreReader({self.url!r}, {self.form!r})"

    @property
    def url(self) -> str:
        """Where the store lies, for messages."""
        return self.root.url()

    def opened(self) -> "StoreReader":
        """Return the store by its own manifest: itself, or the member that the version names.

        Raises:
            ShardMissingError: the member is missing.
            ShardCorruptError: it is not the store that the version names.
            ManifestError: its manifest is damaged.
        """
        if self._member_of is None:
            return self
        root, manifest = self._member_of.opened()
        form = self.form if self.form in manifest.forms else manifest.forms[0]
        return StoreReader(root, manifest, form, mapped=self.mapped)

    @property
    def n_sentences(self) -> int:
        """Sentences, with those that have no tokens. StoreIncompleteError if not yet known."""
        return self.manifest.sizes.sentences

    @property
    def n_rows(self) -> int:
        """Rows: one for each token, and with boundaries two more for each sentence with tokens."""
        return self.manifest.sizes.rows

    @cached_property
    def _readers(self) -> _Readers:
        root, manifest, share = self.root, self.manifest, 1.0
        if self._member_of is not None:
            root, manifest = self._member_of.opened()
            self.root, share = root, self._member_of.share()
        rows = row_reader(root, manifest, self.form, mapped=self.mapped, share=share)
        return _Readers(SentenceTable(root, manifest, share), rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sentence table."""
        return self._readers.sentences.schema

    @cached_property
    def starts(self) -> Starts:
        """Where the rows of each sentence begin."""
        return self._readers.sentences.starts

    def spans(self, numbers: Index) -> Int64:
        """Return the rows of each sentence, first and the one after the last: int64 [n, 2]."""
        return self.starts.spans(numbers)

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Return everything about each sentence but its states."""
        return self._readers.sentences.records(numbers)

    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the ids and the tokens of sentences; nothing else about them is read."""
        return self._readers.sentences.texts(numbers)

    def table(self, numbers: Index, columns: Sequence[str]) -> pa.Table:
        """Return columns of the sentence table, one row per sentence, in the order of numbers."""
        return self._readers.sentences.columns(numbers, columns)

    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """Return, for each hash [n, 2], the numbers of all sentences with that id (or text)."""
        return self._readers.sentences.find(pairs, texts=texts)

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """Read rows into ``rows``, as of `RowReader.fill`."""
        if not self.manifest.complete:
            self._check_marked((first, stop) for first, stop, _ in jobs)
        self._readers.rows.fill(states, jobs, rows)

    @cached_property
    def map_span(self) -> Callable[[Sequence[int], int, int], Stored | None]:
        """`RowReader.map_span` of this store's rows.

        It is a cached attribute and no method: a call between would be a tenth of the time that
        reading a sentence takes.
        """
        return self._readers.rows.map_span if self.manifest.complete else self._map_span_marked

    def _map_span_marked(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        self._check_marked([(first, stop)])
        return self._readers.rows.map_span(states, first, stop)

    def map_spans(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """Return views of spans of rows [n, 2], as of `RowReader.map_spans`."""
        if not self.manifest.complete:
            self._check_marked(spans.tolist())
        return self._readers.rows.map_spans(states, spans)

    def _check_marked(self, spans: Iterable[Span]) -> None:
        """Raise ShardMissingError for a shard of an unfinished store that has no marker yet."""
        shard_rows, marked = self.manifest.shard_rows, self._readers.marked
        shards = {
            shard
            for first, stop in spans
            if first < stop
            for shard in range(first // shard_rows, (stop - 1) // shard_rows + 1)
        }
        for shard in sorted(shards - marked):
            if read_marker(self.root, ShardMarker, shard) is None:
                marker = self.root.url(layout.shard_marker(shard))
                raise ShardMissingError(
                    f"{marker} is missing: shard {shard} is not written yet; "
                    "run the job again to continue it"
                )
            marked.add(shard)


def _again(root: Root, manifest: Manifest, form: str, mapped: bool) -> StoreReader:
    """Make a reader from its pickle."""
    return StoreReader(root, manifest, form, mapped=mapped)


def _member_again(member_of: MemberOf, form: str, mapped: bool) -> StoreReader:
    """Make a member's reader from its pickle."""
    return StoreReader.of_member(member_of, form, mapped=mapped)
