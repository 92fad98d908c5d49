"""From a sentence's id, and from its text, to its number: tables of hashes, one request each.

The hash of an id is the first 16 bytes of the SHA-256 of its UTF-8, two uint64 (big-endian): high and low; that of a text is
`texts.hash_texts`. The leading bits of the high one name the table that has it; a table is sorted by (high, low, sentence).
128 bits need no second look: that any two of 10¹¹ ids share them has a probability of 10⁻¹⁷.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.storage.parquet_files import encoded_table, read_table
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Keys = tuple[UInt64, Int64]  # hashes [n, 2], and the numbers of the sentences that they are of [n]
TABLES_AT_HAND = 64


def hashes(ids: Iterable[str]) -> UInt64:
    """(high, low) of each id: [n, 2]."""
    digests = b"".join(
        hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:16] for name in ids
    )
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def tables_of(high: UInt64, bits: int) -> Int64:
    """The table that each hash belongs to, of 2^``bits`` tables: [n]."""
    return (high >> np.uint64(32) >> np.uint64(32 - bits)).astype(
        np.int64
    )  # in two steps: none can be of 64 bits


def encode_lookups(keys: Iterable[Keys], bits: int, tables: range) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of each of ``tables`` (of 2^``bits``) of the ids, then of the texts: ``keys`` are those in them, of both."""
    for (pairs, sentences), path_of in zip(keys, (layout.id_table, layout.text_table), strict=True):
        order = np.lexsort(
            (sentences, pairs[:, 1], pairs[:, 0])
        )  # by the leading bits too: the tables follow each other
        columns = {
            "hash_high": pairs[order, 0],
            "hash_low": pairs[order, 1],
            "sentence": sentences[order],
        }
        rows = pa.table(columns, schema=layout.IDS_SCHEMA)
        edges = np.searchsorted(
            tables_of(columns["hash_high"], bits), np.arange(tables.start, tables.stop + 1)
        ).tolist()
        for table, (first, stop) in zip(tables, pairwise(edges), strict=True):
            own = rows.slice(first, stop - first)
            yield path_of(table), encoded_table(own, use_dictionary=False, write_statistics=False)


class HashTables:
    """Finds sentences by the hash of an id, or of a text. Safe for threads."""

    def __init__(self, root: Root, n_sentences: int, path_of: Callable[[int], str]) -> None:
        """``path_of``: from a table's number to its path in the store."""
        self._root, self._n_sentences, self._path_of = root, n_sentences, path_of
        self._bits = layout.id_bits(n_sentences)
        self._tables: Recent[int, tuple[UInt64, UInt64, Int64]] = Recent(TABLES_AT_HAND)

    def find(self, pairs: UInt64) -> list[list[int]]:
        """The numbers of all sentences that have each hash [n, 2], in order."""
        found: list[list[int]] = []
        tables = self._tables.get_all(
            tables_of(pairs[:, 0], self._bits).tolist(), lambda numbers: [*map(self.read, numbers)]
        )
        for (highs, lows, sentences), (high, low) in zip(tables, pairs, strict=True):
            same = slice(
                int(np.searchsorted(highs, high, "left")),
                int(np.searchsorted(highs, high, "right")),
            )
            found.append(sentences[same][lows[same] == low].tolist())
        return found

    def read(self, number: int) -> tuple[UInt64, UInt64, Int64]:
        """A table: hashes, high and low, and the sentences' numbers. ShardMissingError, ShardCorruptError."""
        rel = self._path_of(number)
        table = read_table(self._root, rel, layout.IDS_SCHEMA)
        high, low, sentence = (table[name].to_numpy() for name in layout.IDS_SCHEMA.names)
        if (high[1:] < high[:-1]).any() or (
            len(sentence) and not 0 <= sentence.min() <= sentence.max() < self._n_sentences
        ):
            raise ShardCorruptError(
                f"{self._root.url(rel)} is not a sorted table of hashes of this store: restore it"
            )
        return high, low, sentence
