"""What the writer of a format is given: settings, and a store's sentences in order with their vectors and text.

Reading, converting and writing overlap: what is asked for next is made by a thread while the caller writes. Memory does not
grow with the store.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from elmo_store.exports.formats import Settings
from elmo_store.exports.outputs import Output
from elmo_store.exports.vectors import Vectors
from elmo_store.reading.rows import Array, Int64, Readable
from elmo_store.reading.sentences import SentenceRecord

T = TypeVar("T")
BLOCK_BYTES = 1 << 22  # of vectors that are made at a time: they should not leave the processor's caches twice
MOST_SENTENCES = 1024
# A file's name → where to write it; it takes its name when the block ends.
WholeFile = Callable[[str], AbstractContextManager[str]]


@dataclass(frozen=True)
class Block:
    """Some sentences.

    Attributes:
        first: number of the first.
        offsets: rows of sentence i are ``offsets[i] … offsets[i + 1]`` [n + 1].
        records: their text, ids and places; empty unless asked for.
        values: their vectors, in C order; valid until two more blocks have been taken.
        axes: of ``values``: a way to write K vectors ("k"), rows ("n"), width ("d"), such as "knd".
    """

    first: int
    offsets: Int64
    records: list[SentenceRecord]
    values: Array
    axes: str

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        """Number of each sentence and its part of ``values``, a view."""
        before = (slice(None),) * self.axes.index("n")
        for index, (a, b) in enumerate(pairwise(self.offsets.tolist())):
            yield self.first + index, self.values[(*before, slice(a, b))]


@dataclass(frozen=True)
class Work:
    """One export.

    Attributes:
        store: what is exported.
        vectors: of each token.
        settings: as `elmo_store.exports.formats.settled` gives them.
        output: where to.
        on_progress: called with the tokens done since it was called last.
        store_sha256: what the store is, wherever it lies.
        left_out: why a sentence is not in the output → how many.
    """

    store: Readable
    vectors: Vectors
    settings: Settings
    output: Output
    on_progress: Callable[[int], None]
    store_sha256: str = ""
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def row_bytes(self) -> int:
        """Of a token's vectors."""
        return len(self.vectors.names) * self.vectors.width * np.dtype(self.settings.dtype).itemsize

    def file_ranges(self, name: str) -> dict[str, tuple[int, int]]:
        """Names of a folder's files, ``name`` formatted with their number and count, and the sentences of each: first … stop.

        A file has whole sentences, about ``file_bytes`` of vectors; of an empty store there is one without any.
        """
        store, rows = self.store, max(1, self.settings.file_bytes // max(1, self.row_bytes))
        edges = [0]
        while edges[-1] < store.n_sentences:
            row = store._span(edges[-1])[0] + rows
            edges.append(store.n_sentences if row >= store.n_rows else max(edges[-1] + 1, store.sentence_at(row).index))
        ranges = list(pairwise(edges)) or [(0, 0)]
        return {name.format(number, len(ranges)): own for number, own in enumerate(ranges)}

    def blocks(self, first: int, stop: int, *, text: bool = True, axes: str = "knd") -> Iterator[Block]:
        """Sentences ``first … stop``; ``axes`` as of `Block`."""
        return ahead(self._blocks(first, stop, text, axes))

    def _blocks(self, first: int, stop: int, text: bool, axes: str) -> Iterator[Block]:
        # Converted by few large calls: a thread that makes many small ones waits for the interpreter before each.
        store, vectors, dtype = self.store, self.vectors, self.settings.dtype
        # Used over and over: new pages cost as much as the conversion. One is written, one is filled, one is on its way.
        buffers = deque(np.empty(0, dtype) for _ in range(3))
        usual = max(1, store.n_rows // max(1, store.n_sentences))
        n = max(1, min(MOST_SENTENCES, BLOCK_BYTES // (self.row_bytes * usual)))
        for batch in store.batches(n, vectors.reads, first=first, stop=stop, boundaries=False):
            sizes = {"k": len(vectors.names), "n": len(batch.states), "d": vectors.width}
            shape = [sizes[axis] for axis in axes]
            n_numbers = math.prod(shape)
            buffers.rotate()
            if buffers[0].size < n_numbers:
                buffers[0] = np.empty(n_numbers, dtype)
            values = buffers[0][:n_numbers].reshape(shape)
            vectors.fill(batch.states, values.transpose([axes.index(axis) for axis in "knd"]))
            numbers = range(batch.numbers[0], batch.numbers[-1] + 1)
            yield Block(numbers.start, batch.offsets, store._records(numbers) if text else [], values, axes)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made by a thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="export") as pool:
        later = pool.submit(next, items, end)
        while (item := later.result()) is not end:
            later = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
