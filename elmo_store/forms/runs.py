"""Which bytes hold which rows: spans of rows cut at the borders of objects, and the runs of bytes to read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Runs(NamedTuple):
    """What to read: n pieces, each of them k runs of bytes of one object. Arrays are int64.

    Attributes:
        rels: paths of the objects in the store.
        sizes: bytes that each object must have [len(rels)], -1 where nobody knows; looked at where files are local.
        of: the object of each piece [n].
        starts: first byte of each run [n, k].
        n_bytes: bytes of each of a piece's runs [n].
        places: where they go in each of the k parts of the buffer [n].
    """

    rels: Sequence[str]
    sizes: Int64
    of: Int64
    starts: Int64
    n_bytes: Int64
    places: Int64


class Pieces(NamedTuple):
    """Spans of rows, cut: arrays of int64 [n], one entry a piece.

    Attributes:
        span: which of the spans it is of.
        of: which shard (or whatever the spans were cut by) it lies in.
        first: its first row, counted from the first of what it lies in.
        stop: the row after its last, counted likewise.
        place: where its first row stands in the result, which is the rows of the first span, then those of the next, ….
    """

    span: Int64
    of: Int64
    first: Int64
    stop: Int64
    place: Int64

    @property
    def rows(self) -> Int64:
        """Rows of each."""
        return self.stop - self.first


def cut(spans: Int64, size: int | Int64) -> Pieces:
    """Spans ``first … stop`` [n, 2] cut at multiples of ``size``, for each span its own if an array [n]. Empty ones vanish."""
    first, stop = spans[:, 0], spans[:, 1]
    low = first // size
    most = np.where(stop > first, (stop - 1) // size - low + 1, 0)  # pieces of each span
    span = np.arange(len(spans))
    if (most == 1).all():  # the usual case: sentences, each within a shard
        base = low * size
        place = np.cumsum(stop - first) - (stop - first)
        return Pieces(span, low, first - base, stop - base, place)
    span = np.repeat(span, most)
    of = low[span] + np.arange(len(span)) - (np.cumsum(most) - most)[span]
    each = size[span] if isinstance(size, np.ndarray) else size
    begin = np.maximum(first[span], of * each)
    end = np.minimum(stop[span], (of + 1) * each)
    return Pieces(span, of, begin - of * each, end - of * each, np.cumsum(end - begin) - (end - begin))
