"""Which bytes hold which rows, and runs of bytes of a store's objects read into one array, at once.

On a local disk files stay open between calls, and the loop over the pieces is in C where _ranges.c was built.
"""

import errno
import functools
import importlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elmo_store.storage.ranges import Range, ShortReadError
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root, folder_in_place_of

Int64 = npt.NDArray[np.int64]
FILES_AT_HAND = 1024  # at most, and at most a quarter of those that a process may have open


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


@functools.cache
def compiled() -> Any:
    """The extension that reads many pieces of files at once (_ranges.c); None where it was not built."""
    try:
        return importlib.import_module("elmo_store.forms._ranges")
    except ImportError:
        return None


class _File:
    """An open file. It closes when nobody has it any more, so it may leave a cache while another thread reads it."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self.descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.size = found.st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound here: at the interpreter's end ``os`` is gone
        if hasattr(self, "descriptor"):
            close(self.descriptor)


class RunReader:
    """Reads runs of bytes below a root. Safe for threads.

    A local file that vanishes or is replaced while it is at hand is read on as it was: never half of one and half of another.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._files: Recent[str, _File] = Recent(_files_at_hand())
        self._extension = compiled() if root.is_local else None

    def read_runs(self, runs: Runs, out: npt.NDArray[Any]) -> None:
        """Fill the C-contiguous array ``out``, whose bytes are k equal parts: part j with the j-th run of each piece.

        All requests of one call are under way together where the filesystem can; so are those of a local disk.

        FileNotFoundError if an object is not there, ShortReadError if it ends too early or has not its size.
        """
        if not out.size:
            return
        if self._extension is not None:
            files = self._files.get_all(runs.rels, self._open)
            for file, rel, size in zip(files, runs.rels, runs.sizes.tolist(), strict=True):
                _check(file, rel, size)
            columns = [np.ascontiguousarray(column, np.int64) for column in runs[2:]]
            share = out.nbytes // runs.starts.shape[1]
            descriptors = np.array([file.descriptor for file in files], np.int64)
            short = self._extension.read_runs(descriptors, *columns, share, out)
            if short is not None:
                raise ShortReadError.before(runs.rels[short[0]], short[1])
            return
        parts = [memoryview(part.data) for part in out.reshape(-1).view(np.uint8).reshape(runs.starts.shape[1], -1)]
        ranges = []
        pieces = zip(runs.of.tolist(), runs.starts.tolist(), runs.n_bytes.tolist(), runs.places.tolist(), strict=True)
        for of, starts, n_bytes, place in pieces:
            for start, part in zip(starts, parts, strict=True):
                ranges.append(Range(runs.rels[of], start, part[place : place + n_bytes]))
        self._root.read_ranges(ranges)

    def read_run(self, rel: str, size: int, first: int, step: int, runs: Sequence[int], out: npt.NDArray[Any]) -> None:
        """`read_runs` of one piece without arrays of it: run j is at byte ``first + step × runs[j]`` of ``rel``."""
        if self._extension is None:
            one = np.zeros(1, np.int64)
            starts = np.array([[first + step * run for run in runs]], np.int64)
            self.read_runs(Runs([rel], one + size, one, starts, one + out.nbytes // max(1, len(runs)), one), out)
            return
        file = self._files.get(rel, self._open_one)
        _check(file, rel, size)
        short = self._extension.read_run(file.descriptor, first, step, runs, out)
        if short is not None:
            raise ShortReadError.before(rel, short[1])

    def _open_one(self, rel: str) -> _File:
        return self._open([rel])[0]

    def _open(self, rels: list[str]) -> list[_File]:
        files = [self._opened(rel) for rel in rels]
        self._root.confirm()
        return files

    def _opened(self, rel: str) -> _File:
        try:
            return _File(self._root.path(rel))
        except IsADirectoryError as error:
            raise folder_in_place_of(self._root.url(rel)) from error


def _check(file: _File, rel: str, size: int) -> None:
    if size not in (-1, file.size):
        raise ShortReadError(rel, f"has {file.size} bytes, which can't be")


def _files_at_hand() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 128
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_AT_HAND if soft == resource.RLIM_INFINITY else max(16, min(FILES_AT_HAND, soft // 4))
