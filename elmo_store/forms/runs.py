"""Which bytes hold which rows, and runs of bytes of a store's objects read into one array, at once.

`RunReader` reads runs: on a local disk files stay open between calls, and the loop over the pieces is in C where _ranges.c was
built. `PlainRows` reads rows that a form stores as they are; `RowReader` is what a store asks of a form.
"""

import errno
import functools
import importlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.storage.data import Range, ShortReadError
from elmo_store.storage.parquet_files import errors_name
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root, folder_in_place_of

Int64 = npt.NDArray[np.int64]
Spans = Int64 | Sequence[tuple[int, int]]  # rows ``first … stop``: [n, 2]; a single span is read sooner without an array
BLOCKS_AT_HAND = 4096  # of shards: 3 KB each for 64 row groups of 5 states
FILES_AT_HAND = 1024  # at most, and at most a quarter of those that a process may have open


class Runs(NamedTuple):
    """What to read: n pieces, each of them k runs of bytes of one object. Arrays are int64.

    Attributes:
        rels: paths of the objects in the store.
        sizes: bytes that each object must have [len(rels)], -1 where nobody knows; looked at where files are local.
        of: the object of each piece [n].
        starts: first byte of each run [n, k].
        n_bytes: bytes of each of a piece's runs [n].
        places: the byte of the buffer that a piece's first run goes to [n].
        steps: bytes from there to its next run's place [n].
    """

    rels: Sequence[str]
    sizes: Int64
    of: Int64
    starts: Int64
    n_bytes: Int64
    places: Int64
    steps: Int64


class Places(NamedTuple):
    """Where the rows of n spans go in an array of rows: those of part j of span i from row ``first[i] + j × step[i]`` on."""

    first: Int64
    step: Int64


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


def joined(spans: Int64) -> Int64:
    """The same rows in the same order, as spans [n, 2] none of which begins where the one before ends."""
    breaks = spans[1:, 0] != spans[:-1, 1]
    if breaks.all():
        return spans
    return np.stack([spans[np.append(True, breaks), 0], spans[np.append(breaks, True), 1]], axis=1)


def offsets_of(spans: Int64) -> Int64:
    """Where the rows of each of the spans [n, 2] begin if they follow each other, and at last how many there are: [n + 1]."""
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    return offsets


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
        status = os.fstat(self.descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.size = status.st_size

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
        """Read the runs into the C-contiguous array ``out``.

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
            descriptors = np.array([file.descriptor for file in files], np.int64)
            short = self._extension.read_runs(descriptors, *columns, out)
            if short is not None:
                raise ShortReadError.before(runs.rels[short[0]], short[1])
            return
        data = memoryview(out.reshape(-1).view(np.uint8).data)
        ranges = []
        for of, starts, n_bytes, place, step in zip(*(column.tolist() for column in runs[2:]), strict=True):
            for j, start in enumerate(starts):
                at = place + j * step
                ranges.append(Range(runs.rels[of], start, data[at : at + n_bytes]))
        self._root.read_ranges(ranges)

    def read_run(self, rel: str, size: int, first: int, step: int, runs: Sequence[int], out: npt.NDArray[Any]) -> None:
        """`read_runs` of one piece without arrays of it: run j is at byte ``first + step × runs[j]`` of ``rel``."""
        if self._extension is None:
            zero = np.zeros(1, np.int64)
            starts = np.array([[first + step * run for run in runs]], np.int64)
            share = zero + out.nbytes // max(1, len(runs))
            self.read_runs(Runs([rel], zero + size, zero, starts, share, zero, share), out)
            return
        file = self._files.get(rel, self._open)
        _check(file, rel, size)
        short = self._extension.read_run(file.descriptor, first, step, runs, out)
        if short is not None:
            raise ShortReadError.before(rel, short[1])

    def _open(self, rels: list[str]) -> list[_File]:
        files = []
        for rel in rels:
            try:
                files.append(_File(self._root.path(rel)))
            except IsADirectoryError as error:
                raise folder_in_place_of(self._root.url(rel)) from error
        self._root.confirm()
        return files


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


class Blocks(NamedTuple):
    """Where an object has the rows of a shard, stored as they are in blocks: of each part one row after the other.

    Attributes:
        rel: the object's path in the store.
        size: bytes that it must have, -1 where nobody knows.
        rows: of each block but the last, which may have fewer.
        starts: of each block the first byte of each part.
    """

    rel: str
    size: int
    rows: int
    starts: Sequence[Sequence[int]]


class PlainRows:
    """Reads rows that are stored as they are. Safe for threads; not for use across a fork.

    Args:
        shard_rows: rows of a shard.
        width: numbers of a part of a row.
        dtype: of the numbers.
        find: a method of what holds this object: the blocks of shards by number, None for one without; what it says is kept.
    """

    def __init__(
        self, root: Root, shard_rows: int, width: int, dtype: npt.DTypeLike, find: Callable[[list[int]], list[Blocks | None]]
    ) -> None:
        self._root, self._shard_rows, self._width, self._dtype = root, shard_rows, width, np.dtype(dtype).newbyteorder("<")
        self._row_bytes = width * self._dtype.itemsize
        self._runs = RunReader(root)
        self._find = WeakMethod(find)  # no circle, which would hold files open until it is collected
        self._blocks: Recent[int, tuple[Blocks, Int64] | None] = Recent(BLOCKS_AT_HAND)  # and their starts as an array

    def read(self, parts: Sequence[int], spans: Spans, empty: Empty) -> Array | None:
        """Rows of these parts, those of one span after the other's; None if the rows of a shard are not stored as they are.

        Returns [Σ (stop - first), len(parts), width], a view of an array that holds one part after the other.
        """
        if len(spans) == 1:  # the quickest way to a sentence
            first, stop = int(spans[0][0]), int(spans[0][1])
            shard, low = divmod(first, self._shard_rows)
            n_rows = stop - first
            try:
                known = self._blocks.get(shard, self._find_all) if n_rows > 0 else None
                if known is not None:
                    blocks = known[0]
                    block, row = divmod(low, blocks.rows)
                    if row + n_rows <= blocks.rows:
                        out = empty((len(parts), n_rows, self._width), self._dtype)
                        starts = blocks.starts[block]
                        runs = [starts[part] for part in parts]
                        self._runs.read_run(blocks.rel, blocks.size, row * self._row_bytes, 1, runs, out)
                        return out.transpose(1, 0, 2)
            except OSError:  # entering errors_name each time would cost a tenth
                with errors_name(self._root, damage=(ShortReadError,)):
                    raise
        together = joined(np.asarray(spans, np.int64).reshape(-1, 2))
        offsets = offsets_of(together)
        out = empty((len(parts), int(offsets[-1]), self._width), self._dtype)
        places = Places(offsets[:-1], np.repeat(offsets[-1:], len(together)))
        return out.transpose(1, 0, 2) if self.read_into(parts, together, places, out) else None

    def _find_all(self, shards: list[int]) -> list[tuple[Blocks, Int64] | None]:
        return [blocks and (blocks, np.array(blocks.starts, np.int64)) for blocks in self._known(shards)]

    def _known(self, shards: list[int]) -> list[Blocks | None]:
        find = self._find()
        assert find is not None  # its object holds this one
        return find(shards)

    def read_into(self, parts: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """Put the rows of these parts of the spans [n, 2] into places of ``out``, rows of ``width`` numbers.

        False, and nothing is read, if the rows of a shard are not stored as they are. Spans that follow each other are read in
        one request.
        """
        with errors_name(self._root, damage=(ShortReadError,)):
            return self._read_into(parts, spans, places, out)

    def _read_into(self, parts: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        pieces = cut(spans, self._shard_rows)
        shards, shard_of = np.unique(pieces.of, return_inverse=True)
        known = [shard for shard in self._blocks.get_all(shards.tolist(), self._find_all) if shard is not None]
        if len(known) < len(shards):
            return False
        blocks = [shard for shard, _ in known]
        if not blocks or not parts:
            return True
        table = np.concatenate([starts for _, starts in known])  # [blocks of all shards, parts]
        within, block_of, span_of = pieces, shard_of, pieces.span
        if len(table) > len(blocks):  # shards of several blocks
            block_rows = np.array([shard.rows for shard in blocks], np.int64)
            first_block = np.cumsum([0, *(len(shard.starts) for shard in blocks)])  # of each shard, among all
            within = cut(np.stack([pieces.first, pieces.stop], axis=1), block_rows[shard_of])
            shard_of, span_of = shard_of[within.span], span_of[within.span]
            block_of = first_block[shard_of] + within.of
        starts = table[block_of[:, None], list(parts)] + (within.first * self._row_bytes)[:, None]
        sizes = np.array([shard.size for shard in blocks], np.int64)
        to = within.place + (places.first - offsets_of(spans)[:-1])[span_of]
        of_rows = (column * self._row_bytes for column in (within.rows, to, places.step[span_of]))
        self._runs.read_runs(Runs([shard.rel for shard in blocks], sizes, shard_of, starts, *of_rows), out)
        return True


class RowReader(ABC):
    """Reads rows of one form of a store. Safe for threads; not for use across a fork (`Store` makes a new one there)."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest

    def read(self, states: Sequence[int], spans: Spans, empty: Empty = np.empty, *, raw: bool = False) -> Any:
        """Rows of the states with these indices, those of one span after the other's.

        Returns [Σ (stop - first), len(states), channels], float32 of an int8 store; with ``raw`` its `Int8Rows`, as it stores
        them. ``empty`` makes the array that they are read into. ShardMissingError, ShardCorruptError.
        """
        if not self._manifest.is_int8:
            return self._numbers(states, spans, empty)
        rows = self._int8(states, spans, empty)
        return rows if raw else rows.floats(empty)

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """Put the rows of the states of the spans [n, 2] into places of ``out``.

        ``out``: [rows, channels], of which each state takes its own. False where bytes as they are stored would not do. Raises
        what `read` does.
        """
        return False

    @abstractmethod
    def _numbers(self, states: Sequence[int], spans: Spans, empty: Empty) -> Array:
        """`read` of a store of floats."""

    @abstractmethod
    def _int8(self, states: Sequence[int], spans: Spans, empty: Empty) -> Int8Rows:
        """`read` of an int8 store."""

    @abstractmethod
    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
