"""The loops of `planner` and `sequences` in C, where the extension was built; `compiled()` says so.

Same results as the NumPy forms beside which they are called (`tests/model/test_layout.py`), an order of magnitude sooner, and
without Python's lock.
"""

import functools
import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.int32]

__all__ = ["compiled", "distinct", "longest_first"]


@functools.cache
def _extension() -> Any:
    try:
        return importlib.import_module("model.engine._layout")
    except ImportError:
        return None


def compiled() -> bool:
    """Whether the functions below can be called."""
    return _extension() is not None


def _at(array: npt.NDArray[Any], dtype: type = np.int64) -> int:
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"an array of {array.dtype}, contiguous: {array.flags.c_contiguous}; wanted is contiguous {dtype}")
    return int(array.ctypes.data)


def longest_first(length: IntArray, free_at: IntArray) -> tuple[IntArray, IntArray]:
    """Segments in turn into the lane that is free first, lanes being free from free_at [B] on: their lanes and starts."""
    length = np.ascontiguousarray(length)
    lane, start = np.empty(len(length), np.int64), np.empty(len(length), np.int64)
    _extension().longest_first(len(length), _at(length), len(free_at), _at(free_at), _at(lane), _at(start))
    return lane, start


def distinct(words: WordArray, first: IntArray, length: IntArray) -> tuple[IntArray, IntArray]:
    """Which of the different slices each slice of words is, and the first slice of each, in order of appearance."""
    first, length = np.ascontiguousarray(first), np.ascontiguousarray(length)
    index, kept = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    found = _extension().distinct(len(first), _at(words, np.int32), _at(first), _at(length), _at(index), _at(kept))
    return index, kept[:found]
