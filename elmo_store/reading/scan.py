"""Sentences in order, batch by batch: views of rows that are mapped, others fetched in large blocks ahead of their use.

A block is whole batches, so that a batch's rows are a view of it and nothing is copied together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elmo_store.reading.view import View

Int64 = npt.NDArray[np.int64]
Wanted = TypeVar("Wanted")
Read = TypeVar("Read")
SPANS_AT_ONCE = 8192  # sentences whose rows are looked up together
BLOCK_BYTES = 1 << 24  # that a scan fetches at a time; a thread's turn costs as much as a few MB
BLOCKS_AHEAD = 2  # that are under way while one is used


def batches(
    view: View, numbers: range, n_sentences: int, states: Sequence[int], raw: bool
) -> Iterator[tuple[range, Int64, Any]]:
    """Yield consecutive sentences of a view, ``n_sentences`` at a time.

    Args:
        view: what is read.
        numbers: the sentences' numbers, with a step of 1.
        n_sentences: sentences of a batch.
        states: indices of states.
        raw: read `Int8Rows`, of a store in 8 bits.

    Yields:
        Numbers of the sentences, their spans int64 [n, 2], and all rows from the first to the last
        of them, read-only.
    """
    at_once = n_sentences * max(1, SPANS_AT_ONCE // n_sentences)
    parts = (numbers[first : first + at_once] for first in range(0, len(numbers), at_once))
    located = ((part, view.spans(part)) for part in parts)
    if view.n_rows and view.map_span(states, 0, 1) is not None:
        # Nothing is read ahead here: the system reads pages ahead by itself.
        for part, spans in located:
            edges = [*spans[::n_sentences, 0].tolist(), int(spans[-1, 1])]
            starts = range(0, len(part), n_sentences)
            for start, (low, high) in zip(starts, pairwise(edges), strict=True):
                stop = start + n_sentences
                rows = view.read_span(states, low, high, raw, False)
                yield part[start:stop], spans[start:stop], rows
        return

    def rows_of(block: tuple[range, Int64]) -> Any:
        spans = block[1]
        return view.read_span(states, int(spans[0, 0]), int(spans[-1, 1]), raw, False)

    row_bytes = max(1, len(states) * view.channels * view.dtype.itemsize)
    max_rows = BLOCK_BYTES // row_bytes
    blocks = chain.from_iterable(
        _blocks(part, spans, n_sentences, max_rows) for part, spans in located
    )
    for (part, spans), rows in read_ahead(rows_of, blocks, BLOCKS_AHEAD):
        first_row = int(spans[0, 0])
        for start in range(0, len(part), n_sentences):
            own = spans[start : start + n_sentences]
            low, high = int(own[0, 0]) - first_row, int(own[-1, 1]) - first_row
            yield part[start : start + n_sentences], own, rows[low:high]


def read_ahead(
    read: Callable[[Wanted], Read], wanted: Iterable[Wanted], n_ahead: int
) -> Iterator[tuple[Wanted, Read]]:
    """Each of ``wanted`` with what ``read`` gives for it, in order; ``n_ahead`` are read, each by a thread, while one is used.

    When it is left early nothing that nobody wants is read any more.
    """
    pending: deque[tuple[Wanted, Future[Read]]] = deque()

    def next_read() -> tuple[Wanted, Read]:
        item, future = pending.popleft()
        return item, future.result()

    pool = ThreadPoolExecutor(n_ahead, thread_name_prefix="ahead")
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
    numbers: range, spans: Int64, n_sentences: int, max_rows: int
) -> Iterator[tuple[range, Int64]]:
    """Runs of whole batches with at most ``max_rows`` rows (one batch may have more), and the spans of their sentences."""
    begin = 0
    for start in range(n_sentences, len(numbers), n_sentences):
        if spans[start : start + n_sentences][-1, 1] - spans[begin, 0] > max_rows:
            yield numbers[begin:start], spans[begin:start]
            begin = start
    yield numbers[begin:], spans[begin:]
