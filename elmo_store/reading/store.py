"""`StoreReader`: sentences and rows of one store. `elmo_store.Store` adds to it what is built on reading."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from elmo_store.errors import ShardMissingError, StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import read_marker
from elmo_store.format.numbers import Array, Empty
from elmo_store.forms.runs import Places, RowReader, cut
from elmo_store.forms.shards import row_reader
from elmo_store.reading.rows import Int64, Readable, Span, Spans, the_one
from elmo_store.reading.sentences import SentenceRecord, SentenceTable
from elmo_store.reading.text_index import Text, TextIndex, Texts, UInt64, cut_bytes, hash_texts
from elmo_store.reading.watched import StoreRoot
from elmo_store.storage.root import Root


class Readers:
    """What one process reads with: caches, locks and event loops don't survive a fork."""

    def __init__(self, sentences: SentenceTable, rows: RowReader, texts: Texts) -> None:
        self.pid = os.getpid()
        self.sentences, self.rows, self.texts = sentences, rows, texts
        self.marked: set[int] = set()  # shards of an unfinished store that were found to be written


@dataclass(frozen=True)
class Held:
    """A store as it lies somewhere, and what became of its sentences in the store or collection that is read.

    Attributes:
        numbers_of: numbers of its sentences → what they are called there [n], -1 where they are removed.
        n_removed: how many are.
    """

    store: "StoreReader"
    numbers_of: Callable[[Int64], Int64]
    n_removed: int = 0


class StoreReader(Readable):
    """What `elmo_store.Store` says of itself: its manifest is read, everything else when it is asked for.

    `elmo_store.reading.watched` tells why no row of another store that took its place is given out.
    """

    def __init__(self, root: Root, manifest: Manifest, form: str) -> None:
        self._describe(root if isinstance(root, StoreRoot) else StoreRoot(root, manifest), manifest, form)

    def _describe(self, root: Root, manifest: Manifest, form: str) -> None:
        self.root, self.manifest, self.form = root, manifest, form
        self.url = root.url()
        self.states, self.channels, self.boundaries = manifest.states, manifest.channels, manifest.boundaries
        self.dtype: np.dtype[Any] = np.dtype("float32" if manifest.is_int8 else manifest.dtype)
        self.is_int8 = manifest.is_int8
        self.fields = {field.name: field for field in manifest.fields}
        self._readers: Readers | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.manifest, self.form)

    def _opened(self, root: Root, manifest: Manifest) -> Any:
        """A store that was written from this one."""
        return type(self)(root, manifest, manifest.forms[0])

    def __repr__(self) -> str:
        counts = self.manifest.counts
        size = f"{counts.sentences:,} sentences, {counts.rows:,} rows" if counts else "still reading its input"
        return (
            f"<{type(self).__name__} {self.url}: {size}, {len(self.states)} × {self.channels} {self.manifest.dtype}, {self.form}>"
        )

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

    @property
    def _now(self) -> Readers:
        readers = self._readers
        if readers is None or readers.pid != os.getpid():
            readers = self._readers = self._make_readers()
        return readers

    def _make_readers(self) -> Readers:
        sentences = SentenceTable(self.root, self.manifest)
        rows = row_reader(self.root, self.manifest, self.form)
        return Readers(sentences, rows, TextIndex(self.root, self.manifest, sentences))

    def _span(self, number: int) -> Span:
        return self._now.sentences.span(number)

    def spans(self, numbers: Sequence[int] | Int64) -> Int64:
        """See `Readable.spans`."""
        return self._now.sentences.rows(numbers)

    def records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        """See `Readable.records`."""
        return self._now.sentences.records(numbers)

    def table(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """See `Readable.table`."""
        return self._now.sentences.columns(numbers, columns)

    def _find(self, ids: Sequence[str]) -> list[int]:
        return [the_one(self.url, sentence_id, own) for sentence_id, own in zip(ids, self.find_ids(ids), strict=True)]

    def find_ids(self, ids: Sequence[str]) -> list[list[int]]:
        """Numbers of all sentences that have each id, in order; none for one that no sentence has."""
        return self._now.sentences.find(ids)

    def find_text(self, texts: Sequence[Text]) -> list[int | None]:
        """See `Readable.find_text`."""
        return self.find_hashes(hash_texts(texts, cut_bytes(self.manifest))) if len(texts) else []

    def find_hashes(self, pairs: UInt64) -> list[int | None]:
        """Number of the first sentence whose tokens have each hash [n, 2], None without one."""
        return self._now.texts.find(pairs)

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        """See `Readable.read_spans`."""
        if not self.manifest.complete:
            self._check_marked(spans)
        return self._now.rows.read(states, spans, empty, raw=raw)

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `Readable.read_into`."""
        if not self.manifest.complete:
            self._check_marked(spans)
        return self._now.rows.read_into(states, spans, places, out)

    def _tokens(self, first: int, stop: int) -> list[str]:
        if not self.manifest.complete:
            self._check_marked([(first, stop)])
        return self._now.rows.tokens(first, stop)

    def _check_marked(self, spans: Spans) -> None:
        """ShardMissingError for a shard of an unfinished store that has no marker, whatever else there is."""
        readers, pieces = self._now, cut(np.array(spans, np.int64).reshape(-1, 2), self.manifest.shard_rows)
        for shard in set(pieces.of.tolist()) - readers.marked:
            if read_marker(self.root, shard) is None:
                raise ShardMissingError(
                    f"{self.root.url(layout.shard_marker(shard))} is missing: shard {shard} is not written yet; "
                    "run the job again to continue it"
                )
            readers.marked.add(shard)
