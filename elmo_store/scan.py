"""Sentences in order, batch by batch, their rows fetched in large blocks ahead of their use. Imports NumPy and int8.

A block is whole batches, so that a batch's rows are a view of it and nothing is copied together.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elmo_store.int8 import Array, Empty, Int8Rows

Int64 = npt.NDArray[np.int64]
Rows = TypeVar("Rows", Array, Int8Rows)  # of a block
BLOCKS_AHEAD = 2  # that are under way while one is used


class Memory:
    """Gives arrays as numpy.empty does, in memory that it gave before where nobody holds that any more.

    New memory costs a fault a page, more than the copy into it.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # pieces that are kept
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any contents."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            for i in range(len(self._pieces)):
                # Two: the list's, and that of the count's own argument. A view of a piece, however far removed, holds it.
                if sys.getrefcount(self._pieces[i]) == 2:
                    if self._pieces[i].nbytes < n_bytes:
                        self._pieces[i] = np.empty(n_bytes + n_bytes // 8, np.uint8)
                    return np.ndarray(shape, dtype, self._pieces[i])
            if len(self._pieces) < self._most:
                self._pieces.append(np.empty(n_bytes + n_bytes // 8, np.uint8))
                return np.ndarray(shape, dtype, self._pieces[-1])
        return np.empty(shape, dtype)


def batches(
    numbers: range,
    n_sentences: int,
    most_rows: int,
    spans_of: Callable[[range], Int64],
    read: Callable[[int, int, Empty], Rows],
) -> Iterator[tuple[range, Int64, Rows]]:
    """Numbers of ``n_sentences`` sentences at a time, their spans [n, 2], and all rows from the first to the last of them.

    ``most_rows``: of a block, unless one batch alone has more. ``spans_of`` gives the rows ``first … stop`` of each sentence of a
    range, ``read`` the rows of a span, in one of two threads, into an array that its last argument gives.
    """
    memory = Memory(BLOCKS_AHEAD + 3)  # under way, in use, and two that the consumer still holds
    with ThreadPoolExecutor(BLOCKS_AHEAD, thread_name_prefix="scan") as pool:
        ahead: deque[tuple[range, Int64, Future[Rows]]] = deque()
        try:
            for held, spans in _blocks(numbers, n_sentences, most_rows, spans_of):
                ahead.append((held, spans, pool.submit(read, int(spans[0, 0]), int(spans[-1, 1]), memory.empty)))
                if len(ahead) > BLOCKS_AHEAD:
                    yield from _of_block(*ahead.popleft(), n_sentences)
            while ahead:
                yield from _of_block(*ahead.popleft(), n_sentences)
        finally:
            for _, _, future in ahead:
                future.cancel()


def _of_block(held: range, spans: Int64, rows: Future[Rows], n_sentences: int) -> Iterator[tuple[range, Int64, Rows]]:
    block, base = rows.result(), int(spans[0, 0])
    for first in range(0, len(held), n_sentences):
        own = spans[first : first + n_sentences]
        yield held[first : first + n_sentences], own, block[int(own[0, 0]) - base : int(own[-1, 1]) - base]


def _blocks(
    numbers: range, n_sentences: int, most_rows: int, spans_of: Callable[[range], Int64]
) -> Iterator[tuple[range, Int64]]:
    """Runs of whole batches with at most ``most_rows`` rows (one batch may have more), and the spans of their sentences."""
    tried = n_sentences  # sentences that are looked at: as many as fitted last time, and one batch more
    while numbers:
        spans = spans_of(numbers[:tried])
        ends = np.append(np.arange(n_sentences, len(spans), n_sentences), len(spans))  # sentences of 1, 2, … batches
        fitting = int(np.searchsorted(spans[ends - 1, 1] - spans[0, 0], most_rows, "right"))
        n = int(ends[max(1, fitting) - 1])
        yield numbers[:n], spans[:n]
        numbers = numbers[n:]
        tried = 2 * tried if fitting == len(ends) else n + n_sentences
