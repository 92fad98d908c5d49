"""A store's sentences in order, with their vectors and text, a few at a time.

Reading, converting and writing overlap: what is asked for next is made by a thread while the caller writes. Memory does not
grow with the store.
"""

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from elmo_store.exports.vectors import Vectors
from elmo_store.reading.rows import Array, Int64, Readable
from elmo_store.reading.sentences import SentenceRecord

T = TypeVar("T")
BLOCK_BYTES = 1 << 22  # of vectors that are made at a time: they should not leave the processor's caches twice
MOST_SENTENCES = 1024


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
        for place, (a, b) in enumerate(pairwise(self.offsets.tolist())):
            yield self.first + place, self.values[(*before, slice(a, b))]


def blocks(
    store: Readable, vectors: Vectors, dtype: str, first: int, stop: int, *, text: bool = True, axes: str = "knd"
) -> Iterator[Block]:
    """Sentences ``first … stop``; ``axes`` as of `Block`.

    A block is converted by few large calls: a thread that makes many small ones waits for the interpreter before each.
    """

    def made() -> Iterator[Block]:
        # Used over and over: new pages cost as much as the conversion. One is written, one is filled, one is on its way.
        buffers = deque(np.empty(0, dtype) for _ in range(3))
        row_bytes = len(vectors.names) * vectors.width * (2 if dtype == "float16" else 4)
        usual = max(1, store.n_rows // max(1, store.n_sentences))
        n = max(1, min(MOST_SENTENCES, BLOCK_BYTES // (row_bytes * usual)))
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

    return ahead(made())


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made by a thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="export") as pool:
        later = pool.submit(next, items, end)
        while (item := later.result()) is not end:
            later = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
