"""Sentences in order, batch by batch: views of rows that are mapped, others fetched in large blocks ahead of their use.

A block is whole batches, so that a batch's rows are a view of it and nothing is copied together.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elmo_store.format.numbers import Array

Int64 = npt.NDArray[np.int64]
Wanted = TypeVar("Wanted")
Read = TypeVar("Read")
BATCHES_AT_ONCE = 64  # whose rows are looked up together
BLOCK_BYTES = 1 << 24  # that a scan fetches at a time; a thread's turn costs as much as a few MB
BLOCKS_AHEAD = 2  # that are under way while one is used


class Memory:
    """Gives arrays as numpy.empty does, in memory that comes back to it when an array and all views of it are gone.

    New memory costs a fault a page, more than the copy into it. Safe for threads.
    """

    def __init__(self, most: int) -> None:
        """``most``: pieces of memory that are kept."""
        self._most = most
        self._free: deque[npt.NDArray[np.uint8]] = deque((np.empty(0, np.uint8) for _ in range(most)), most)

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, (self._most,)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any contents."""
        try:
            piece = self._free.popleft()
        except IndexError:  # all of them are held
            return np.empty(shape, dtype)
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if piece.nbytes < n_bytes:
            piece = np.empty(n_bytes + n_bytes // 8, np.uint8)
        return np.ndarray(shape, dtype, np.asarray(_Borrowed(piece, self._free)))


class _Borrowed:
    """A piece of memory that is in use: arrays over it hold this object, and its end puts the piece back among the free ones.

    So no count of references is looked at, which interpreters keep as they like. An object of its own, since NumPy lets a view
    hold the array that owns the memory in place of those between.
    """

    def __init__(self, piece: npt.NDArray[np.uint8], free: deque[npt.NDArray[np.uint8]]) -> None:
        self._piece, self._free = piece, free
        self.__array_interface__ = piece.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._piece)


def batches(store: Any, numbers: range, n_sentences: int, states: Sequence[int], raw: bool) -> Iterator[tuple[range, Int64, Any]]:
    """Numbers of ``n_sentences`` sentences at a time, their spans [n, 2], and all rows from the first to the last of them.

    ``store``: a `Readable`.
    """
    memory = Memory(BLOCKS_AHEAD + 3)  # under way, in use, and two that the consumer still holds

    def rows_of(spans: Int64) -> Any:
        return store.read_span(states, int(spans[0, 0]), int(spans[-1, 1]), raw=raw, copy=False, empty=memory.empty)

    if store.n_rows and store.view(states, 0, 1) is not None:  # nothing is read ahead but by the system: pages
        for first in range(0, len(numbers), n_sentences * BATCHES_AT_ONCE):
            held = numbers[first : first + n_sentences * BATCHES_AT_ONCE]
            spans = store.spans(held)
            for start in range(0, len(held), n_sentences):
                own = spans[start : start + n_sentences]
                yield held[start : start + n_sentences], own, rows_of(own)
        return
    most_rows = BLOCK_BYTES // max(1, len(states) * store.channels * store.dtype.itemsize)
    blocks = _blocks(numbers, n_sentences, most_rows, store.spans)
    for (held, spans), rows in read_ahead(lambda block: rows_of(block[1]), blocks, BLOCKS_AHEAD, n_threads=BLOCKS_AHEAD):
        base = int(spans[0, 0])
        for first in range(0, len(held), n_sentences):
            own = spans[first : first + n_sentences]
            yield held[first : first + n_sentences], own, rows[int(own[0, 0]) - base : int(own[-1, 1]) - base]
        del rows  # so that its memory is free for the next


def read_ahead(
    read: Callable[[Wanted], Read], wanted: Iterable[Wanted], n_ahead: int, *, n_threads: int = 1
) -> Iterator[tuple[Wanted, Read]]:
    """Each of ``wanted`` with what ``read`` gives for it, in order; ``n_ahead`` are read by threads while one is used.

    When it is left early nothing that nobody wants is read any more.
    """
    pending: deque[tuple[Wanted, Future[Read]]] = deque()

    def next_read() -> tuple[Wanted, Read]:
        item, future = pending.popleft()
        return item, future.result()

    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="ahead")
    try:
        for item in wanted:
            pending.append((item, pool.submit(read, item)))
            if len(pending) > n_ahead:
                yield next_read()
        while pending:
            yield next_read()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
