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

Int64 = npt.NDArray[np.int64]
Wanted = TypeVar("Wanted")
Read = TypeVar("Read")
SPANS_AT_ONCE = 8192  # sentences whose rows are looked up together
BLOCK_BYTES = 1 << 24  # that a scan fetches at a time; a thread's turn costs as much as a few MB
BLOCKS_AHEAD = 2  # that are under way while one is used


def batches(
    store: Any, numbers: range, n_sentences: int, states: Sequence[int], raw: bool
) -> Iterator[tuple[range, Int64, Any]]:
    """Numbers of ``n_sentences`` sentences at a time, their spans [n, 2], and all rows from the first to the last of them.

    ``store``: a `Readable`.
    """
    at_once = n_sentences * max(1, SPANS_AT_ONCE // n_sentences)
    some = (numbers[first : first + at_once] for first in range(0, len(numbers), at_once))
    looked_up = ((held, store.spans(held)) for held in some)
    if (
        store.n_rows and store.view(states, 0, 1) is not None
    ):  # nothing is read ahead but by the system: pages
        for held, spans in looked_up:
            edges = [*spans[::n_sentences, 0].tolist(), int(spans[-1, 1])]
            for start, (low, high) in zip(
                range(0, len(held), n_sentences), pairwise(edges), strict=True
            ):
                stop = start + n_sentences
                yield (
                    held[start:stop],
                    spans[start:stop],
                    store.read_span(states, low, high, raw, False),
                )
        return

    def rows_of(block: tuple[range, Int64]) -> Any:
        spans = block[1]
        return store.read_span(states, int(spans[0, 0]), int(spans[-1, 1]), raw, False)

    most_rows = BLOCK_BYTES // max(1, len(states) * store.channels * store.dtype.itemsize)
    blocks = chain.from_iterable(
        _blocks(held, spans, n_sentences, most_rows) for held, spans in looked_up
    )
    for (held, spans), rows in read_ahead(rows_of, blocks, BLOCKS_AHEAD):
        base = int(spans[0, 0])
        for first in range(0, len(held), n_sentences):
            own = spans[first : first + n_sentences]
            yield (
                held[first : first + n_sentences],
                own,
                rows[int(own[0, 0]) - base : int(own[-1, 1]) - base],
            )


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
    numbers: range, spans: Int64, n_sentences: int, most_rows: int
) -> Iterator[tuple[range, Int64]]:
    """Runs of whole batches with at most ``most_rows`` rows (one batch may have more), and the spans of their sentences."""
    begin = 0
    for start in range(n_sentences, len(numbers), n_sentences):
        if spans[start : start + n_sentences][-1, 1] - spans[begin, 0] > most_rows:
            yield numbers[begin:start], spans[begin:start]
            begin = start
    yield numbers[begin:], spans[begin:]
