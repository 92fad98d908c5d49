"""A store's sentences in order, with their vectors and text, a few at a time. May import NumPy, reading, sentences, vectors.

Reading, converting and writing overlap: what is asked for next is made by a thread while the caller writes. Memory does not grow
with the store.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from elmo_store.exports.vectors import Vectors
from elmo_store.reading import Array, Int64, Readable
from elmo_store.sentences import SentenceRecord

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
        vectors: of sentence i: [K, n_i, width], or [n_i, width, K] with ``layers_last``; each an array of its own in C order.
    """

    first: int
    offsets: Int64
    records: list[SentenceRecord]
    vectors: list[Array]


@dataclass(frozen=True)
class Rows:
    """Some sentences' rows in one array ``values`` [K, rows, width]; the rest as of `Block`."""

    first: int
    offsets: Int64
    records: list[SentenceRecord]
    values: Array


def by_sentence(
    store: Readable, vectors: Vectors, dtype: str, first: int, stop: int, *, text: bool = True, layers_last: bool = False
) -> Iterator[Block]:
    """Sentences ``first … stop``, each with vectors of its own."""

    def one(states: Array) -> Array:
        if not layers_last:
            return vectors.of(states, dtype)
        out = np.empty((len(states), vectors.width, len(vectors.names)), dtype)
        vectors.fill(states, out.transpose(2, 0, 1))
        return out

    def made() -> Iterator[Block]:
        for numbers, offsets, states, records in _batches(store, vectors, dtype, first, stop, text):
            edges = offsets.tolist()
            each = [one(states[a:b]) for a, b in pairwise(edges)]
            yield Block(numbers.start, offsets, records, each)

    return ahead(made())


def by_rows(store: Readable, vectors: Vectors, dtype: str, first: int, stop: int, *, text: bool = True) -> Iterator[Rows]:
    """Sentences ``first … stop`` with their rows side by side."""

    def made() -> Iterator[Rows]:
        for numbers, offsets, states, records in _batches(store, vectors, dtype, first, stop, text):
            yield Rows(numbers.start, offsets, records, vectors.of(states, dtype))

    return ahead(made())


def _batches(
    store: Readable, vectors: Vectors, dtype: str, first: int, stop: int, text: bool
) -> Iterator[tuple[range, Int64, Array, list[SentenceRecord]]]:
    """Numbers, offsets, states and records of some sentences at a time."""
    row_bytes = len(vectors.names) * vectors.width * (2 if dtype == "float16" else 4)
    usual = max(1, store.n_rows // max(1, store.n_sentences))
    n = max(1, min(MOST_SENTENCES, BLOCK_BYTES // (row_bytes * usual)))
    for batch in store.batches(n, vectors.reads, first=first, stop=stop, boundaries=False):
        numbers = range(batch.numbers[0], batch.numbers[-1] + 1)
        yield numbers, batch.offsets, batch.states, store._records(numbers) if text else []


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made by a thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="export") as pool:
        later = pool.submit(next, items, end)
        while (item := later.result()) is not end:
            later = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
