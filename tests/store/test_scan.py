"""Scans in blocks of whole batches, and memory that is used again only where nobody holds it."""

import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.reading import scan
from elmo_store.reading.scan import Memory, batches

Int64 = npt.NDArray[np.int64]


def _source(lengths: list[int]) -> tuple[Callable[[range], Int64], list[tuple[int, int]], Callable[..., npt.NDArray[np.int64]]]:
    edges = np.cumsum([0, *lengths])
    asked: list[tuple[int, int]] = []

    def spans_of(numbers: range) -> Int64:
        return np.stack([edges[numbers.start : numbers.stop], edges[numbers.start + 1 : numbers.stop + 1]], axis=1)

    def read(first: int, stop: int, empty: scan.Empty) -> npt.NDArray[np.int64]:
        asked.append((first, stop))
        out = empty((stop - first,), np.int64)
        out[:] = np.arange(first, stop)
        return out

    return spans_of, asked, read


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    n_sentences=st.integers(1, 20),
    most_rows=st.integers(0, 60),
    first=st.integers(0, 59),
)
def test_every_sentence_once_in_order(lengths: list[int], n_sentences: int, most_rows: int, first: int) -> None:
    spans_of, asked, read = _source(lengths)
    numbers = range(min(first, len(lengths)), len(lengths))
    seen: list[int] = []
    rows_seen: list[npt.NDArray[np.int64]] = []
    for own, spans, rows in batches(numbers, n_sentences, most_rows, spans_of, read):
        assert len(own) == len(spans) == min(n_sentences, len(lengths) - own.start)
        np.testing.assert_array_equal(spans, spans_of(own))
        np.testing.assert_array_equal(rows, np.arange(spans[0, 0], spans[-1, 1]))  # as it is when the batch is handed out
        seen += own
        rows_seen.append(rows)
    assert seen == list(numbers)
    for rows in rows_seen:  # and still when all have been handed out, since they were held
        np.testing.assert_array_equal(rows, np.arange(rows[0], rows[0] + len(rows)) if len(rows) else rows)
    batch_rows = [int(sum(lengths[start : start + n_sentences])) for start in range(numbers.start, len(lengths), n_sentences)]
    assert all(stop - start <= max(most_rows, *batch_rows, 0) for start, stop in asked)
    assert sum(stop - start for start, stop in asked) == sum(lengths[numbers.start :])


def test_memory_is_given_again_when_nobody_holds_it() -> None:
    memory = Memory(2)
    first = memory.empty((10, 4), np.float32)
    view = first[3:].T
    second = memory.empty((10, 4), np.float32)
    beyond = memory.empty((10, 4), np.float32)  # more than are kept
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, beyond)
    del first, beyond
    assert not np.shares_memory(memory.empty((10, 4), np.float32), view)
    place = view.base.ctypes.data  # type: ignore[union-attr]
    del view
    again = memory.empty((40,), np.float32)
    assert again.ctypes.data == place
    larger = memory.empty((1000,), np.float32)
    assert larger.nbytes == 4000


def test_memory_that_is_held_is_not_given_again_whatever_the_interpreter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getrefcount", lambda _: 2)  # as where a call borrows its arguments: 3.14 does
    memory = Memory(2)
    held = memory.empty((10, 4), np.float32)[2:, ::2].T
    assert not any(np.shares_memory(held, memory.empty((10, 4), np.float32)) for _ in range(4))


def test_an_error_of_reading_reaches_the_reader_and_threads_end() -> None:
    spans_of, _, read = _source([5] * 100)

    def failing(first: int, stop: int, empty: scan.Empty) -> npt.NDArray[np.int64]:
        if first >= 50:
            raise OSError(5, "the disk is gone")
        return read(first, stop, empty)

    before = threading.active_count()
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in batches(range(100), 1, 10, spans_of, failing):
            pass
    assert threading.active_count() == before
