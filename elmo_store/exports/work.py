"""What the writer of a format is given, and how sentences are shared out to files."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.formats import Settings
from elmo_store.exports.outputs import Output
from elmo_store.exports.vectors import Vectors
from elmo_store.reading.rows import Int64, Readable
from elmo_store.reading.sentences import SentenceRecord

WholeFile = Callable[
    [str], AbstractContextManager[str]
]  # a file's name → where to write it; it takes its name when the block ends


@dataclass(frozen=True)
class Work:
    """One export.

    Attributes:
        store: what is exported.
        vectors: of each token.
        settings: as `elmo_store.exports.formats.settled` gives them.
        output: where to.
        tell: called with the tokens done since it was called last.
        store_sha256: what the store is, wherever it lies.
        left_out: why a sentence is not in the output → how many.
    """

    store: Readable
    vectors: Vectors
    settings: Settings
    output: Output
    tell: Callable[[int], None]
    store_sha256: str = ""
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def row_bytes(self) -> int:
        """Of a token's vectors."""
        return len(self.vectors.names) * self.vectors.width * np.dtype(self.settings.dtype).itemsize

    def ranges(self) -> list[tuple[int, int]]:
        """Sentences of each file of a folder: whole ones, about ``file_bytes`` of vectors; one empty range of an empty store."""
        store, rows = self.store, max(1, self.settings.file_bytes // max(1, self.row_bytes))
        found, first = [], 0
        while first < store.n_sentences:
            row = store._span(first)[0] + rows
            stop = store.n_sentences if row >= store.n_rows else max(first + 1, store.sentence_at(row).index)
            found.append((first, stop))
            first = stop
        return found or [(0, 0)]

    def offsets(self, first: int, stop: int) -> Int64:
        """Where the tokens of sentences ``first … stop`` begin among theirs, and at last how many there are [n + 1]."""
        spans = self.store._inner(self.store._spans(range(first, stop))) if first < stop else np.zeros((0, 2), np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(spans[:, 1] - spans[:, 0])])


def document_of(record: SentenceRecord, how: str) -> str:
    """The document that a sentence belongs to. ``how``: "id" (without its last ``:NUMBER``) or "source" (its file's name).

    StoreError for an id that names no document.
    """
    if how == "source":
        return record.source.rpartition("/")[2]
    document, _, number = record.id.rpartition(":")
    if not document or not number.isascii() or not number.isdigit():
        raise StoreError(
            f"the id of sentence {record.index}, {record.id!r}, is not DOCUMENT:NUMBER: give such ids when the text is embedded, "
            "or take the files as documents (documents: source)"
        )
    return document
