"""Rows of a store, brought into memory in one of four ways.

`Mapped`: stored as they are on a local disk; a shard is an array [states, rows, channels] over its file. `Ranged`: the same rows
on an object store, as ranges of bytes, all of one call at once. `ByZarr` and `ByParquet`: whatever else there is, by zarr-python
and pyarrow. A read is a list of jobs: rows, and where they go.
"""

import ctypes
import errno
import mmap
import os
import stat
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.forms import parquet_form, zarr_shard
from elmo_store.storage.data import Range, ShortReadError
from elmo_store.storage.parquet_files import GroupsOf, errors_name, read_footers, read_tables, schema_problem
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root, folder_in_place_of

MAPS_KEPT = 16_384  # of shards; Linux lets a process have four times as many
FOOTERS_KEPT = 256
GROUP_BYTES = 1 << 26  # of decoded row groups that are kept
GROUPS_AT_ONCE = 64  # that are decoded together
THREADS = 16  # that ask zarr for shards, and members of a collection, elsewhere than on a local disk
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype, _LIBC.munmap.restype = ctypes.c_void_p, ctypes.c_int
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
# What zarr and its codecs raise for bytes that are none of theirs.
ZARR_ERRORS = (ValueError, RuntimeError, LookupError, TypeError, OverflowError, MemoryError, ShortReadError)


class Block(NamedTuple):
    """Memory for rows as a store has them: ``values`` [states, rows, channels], of int8 with ``scale`` float32 [rows, states]."""

    values: Array
    scale: Array | None

    def rows(self, raw: bool = False, empty: Empty = np.empty) -> Any:
        """[rows, states, channels], float32 of int8, or with ``raw`` its `Int8Rows`."""
        values = self.values.transpose(1, 0, 2)
        if self.scale is None:
            return values
        stored = Int8Rows(values, self.scale)
        return stored if raw else stored.floats(empty)


View = tuple[Array, Array | None]  # values and scale of a block, made sooner than one
Job = tuple[int, int, Block, int]  # rows ``first … stop``, the block that they go to, and from which row of it on


class RowReader(ABC):
    """Reads rows of a store. Safe for threads and forks."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest

    @abstractmethod
    def fill(self, states: Sequence[int], jobs: Sequence[Job]) -> None:
        """Do the jobs, of the states with these indices. ShardMissingError, ShardCorruptError, naming the object."""

    def view(self, states: Sequence[int], first: int, stop: int) -> View | None:
        """Rows without a copy, read-only, as a `Block` has them; None where that can't be."""
        return None

    def _pieces(self, jobs: Iterable[Job]) -> Iterator[tuple[int, int, int, Block, int]]:
        """The jobs cut where shards meet: shard, its rows ``low … high``, and the jobs' own ends."""
        size = self._manifest.shard_rows
        for first, stop, block, place in jobs:
            while first < stop:
                shard, low = divmod(first, size)
                high = min(low + stop - first, size)
                yield shard, low, high, block, place
                first, place = first + high - low, place + high - low

    def _used(self, shard: int) -> int:
        """Rows of a shard's object in the Zarr form: those of whole inner chunks."""
        first, stop = self._manifest.shard_range(shard)
        return -(-(stop - first) // self._manifest.chunk_rows) * self._manifest.chunk_rows


def row_reader(root: Root, manifest: Manifest, form: str, *, mapped: bool = True) -> RowReader:
    """The reader of a form that the store has; ``mapped``: files of a local disk may be mapped."""
    if form == "parquet":
        return ByParquet(root, manifest)
    if manifest.compression != "none" or manifest.checksum != "none":
        return ByZarr(root, manifest)
    return Mapped(root, manifest) if mapped and root.is_local else Ranged(root, manifest)


class Mapped(RowReader):
    """Rows that are stored as they are, of files that are mapped.

    A file that vanishes or is replaced while it is mapped is read on as it was. One that is cut in place, which nothing of this
    package does, would end the process: open a store on such a disk with ``mapped=False``.
    """

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(root, manifest)
        self._shard_rows, self._n_states = manifest.shard_rows, len(manifest.states)
        self._maps: Recent[int, Block] = Recent(MAPS_KEPT)

    def fill(self, states: Sequence[int], jobs: Sequence[Job]) -> None:
        """See `RowReader.fill`."""
        size, get, map_shards, own = self._shard_rows, self._maps.get, self._map, _own(states)
        for first, stop, (values, scale), place in jobs:
            while first < stop:
                shard, low = divmod(first, size)
                high = low + stop - first
                if high > size:
                    high = size
                end = place + high - low
                mapped = get(shard, map_shards)
                values[:, place:end] = mapped[0][own, low:high]
                if scale is not None and mapped[1] is not None:
                    scale[place:end] = mapped[1][low:high, own]
                first, place = first + high - low, end

    def view(self, states: Sequence[int], first: int, stop: int) -> View | None:
        """See `RowReader.view`."""
        shard, low = divmod(first, self._shard_rows)
        high = low + stop - first
        if high > self._shard_rows or stop <= first:
            return None
        mapped = self._maps.get(shard, self._map)
        if type(states) is range and len(states) == self._n_states and mapped[1] is None:
            return mapped[0][:, low:high], None
        own = _own(states)
        if isinstance(own, list):
            return None
        return mapped[0][own, low:high], None if mapped[1] is None else mapped[1][low:high, own]

    def _map(self, shards: list[int]) -> list[Block]:
        m, blocks = self._manifest, []
        for shard in shards:
            values = self._array(layout.zarr_states_shard(shard), m.dtype, (len(m.states), self._used(shard), m.channels))
            scale = self._array(layout.zarr_scale_shard(shard), "f4", (self._used(shard), len(m.states))) if m.is_int8 else None
            blocks.append(Block(values, scale))
        self._root.confirm()  # after they were opened
        return blocks

    def _array(self, rel: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """The numbers that a file begins with; behind them stands the shard's index."""
        little = np.dtype(dtype).newbyteorder("<")
        n_numbers = int(np.prod(shape, dtype=np.int64))
        n_parts = shape[0] if len(shape) == 3 else 1
        n_bytes = n_numbers * little.itemsize
        n_bytes += zarr_shard.index_bytes(self._manifest.shard_rows // self._manifest.chunk_rows, n_parts)
        with errors_name(self._root, rel, (ShortReadError,)):
            try:
                file = np.asarray(_Map(self._root.path(rel), rel, n_bytes))
            except IsADirectoryError as error:
                raise folder_in_place_of(self._root.url(rel)) from error
        return file[: n_numbers * little.itemsize].view(little).reshape(shape)


def _own(states: Sequence[int]) -> "slice | list[int]":
    """The states as an index along an axis: a slice where they follow each other, so that views are possible."""
    if type(states) is range:
        return slice(states.start, states.stop, states.step)
    first = states[0] if states else 0
    return slice(first, first + len(states)) if list(states) == list(range(first, first + len(states))) else list(states)


class _Map:
    """A file of so many bytes, mapped for reading, until nothing refers to an array over it.

    Python's own mmap keeps a file open for each map: a process that may open 1,024 files could map so few shards.
    """

    def __init__(self, path: str, rel: str, n_bytes: int) -> None:
        """ShortReadError for a file of another size; OSError that names the file."""
        self._address, self._n_bytes = 0, n_bytes
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if status.st_size != n_bytes:
                raise ShortReadError(rel, f"has {status.st_size} bytes, which can't be: {n_bytes} are the shard's")
            address = _LIBC.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
            if address in (None, ctypes.c_void_p(-1).value):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        finally:
            os.close(descriptor)
        self._address = address
        self.__array_interface__ = {"data": (address, True), "shape": (n_bytes,), "typestr": "|u1", "version": 3}

    def __del__(self, unmap: Any = _LIBC.munmap) -> None:  # bound here: at the interpreter's end the module is gone
        if self._address:
            unmap(self._address, self._n_bytes)


class Ranged(RowReader):
    """Rows that are stored as they are, by ranges of bytes: all of one call at once, those that touch as one."""

    def fill(self, states: Sequence[int], jobs: Sequence[Job]) -> None:
        """See `RowReader.fill`."""
        ranges, scales = self.ranges(states, jobs)
        with errors_name(self._root, damage=(ShortReadError,)):
            self._root.read_ranges(ranges)
        for read, out in scales:
            out[...] = read[:, list(states)]

    def ranges(self, states: Sequence[int], jobs: Iterable[Job]) -> tuple[list[Range], list[tuple[Array, Array]]]:
        """What is read; and scales of all states of some rows, which are read, with the place of those that are wanted."""
        m, ranges, scales = self._manifest, list[Range](), list[tuple[Array, Array]]()
        row_bytes, n_states = m.channels * np.dtype(m.dtype).itemsize, len(m.states)
        for shard, low, high, block, place in self._pieces(jobs):
            rel, used = layout.zarr_states_shard(shard), self._used(shard)
            for i, state in enumerate(states):
                ranges.append(Range(rel, (state * used + low) * row_bytes, _bytes(block.values[i, place : place + high - low])))
            if block.scale is not None:
                read = np.empty((high - low, n_states), "<f4")
                ranges.append(Range(layout.zarr_scale_shard(shard), low * n_states * layout.SCALE_BYTES, _bytes(read)))
                scales.append((read, block.scale[place : place + high - low]))
        return ranges, scales


def _bytes(values: Array) -> memoryview:
    """The memory of a contiguous array."""
    return memoryview(values.reshape(-1).view(np.uint8).data)


class ByZarr(RowReader):
    """Rows of inner chunks that are compressed or have checksums, by zarr-python: whole chunks are decoded."""

    @cached_property
    def _arrays(self) -> Any:
        from elmo_store.reading.zarr_objects import arrays  # zarr takes half a second

        return arrays(self._root, self._manifest)

    def tokens(self, shard: int) -> list[str]:
        """The array ``token`` of the rows of a shard. ShardMissingError, ShardCorruptError."""
        first, stop = self._manifest.shard_range(shard)
        with errors_name(self._root, layout.zarr_token_chunk(shard), ZARR_ERRORS):
            return [str(token) for token in self._arrays["token"][first:stop]]

    def fill(self, states: Sequence[int], jobs: Sequence[Job]) -> None:
        """See `RowReader.fill`."""
        by_shard: dict[int, list[tuple[int, int, Block, int]]] = {}
        for shard, low, high, block, place in self._pieces(jobs):
            by_shard.setdefault(shard, []).append((low, high, block, place))
        if self._root.is_local or len(by_shard) < 2:
            for shard, pieces in by_shard.items():
                self._fill(shard, list(states), pieces)
            return
        with ThreadPoolExecutor(min(THREADS, len(by_shard))) as pool:
            list(pool.map(lambda item: self._fill(item[0], list(states), item[1]), by_shard.items()))

    def _fill(self, shard: int, states: list[int], pieces: list[tuple[int, int, Block, int]]) -> None:
        base = shard * self._manifest.shard_rows
        rows = np.unique(np.concatenate([np.arange(low, high) for low, high, _, _ in pieces]))
        chosen: Any = slice(base + int(rows[0]), base + int(rows[-1]) + 1) if rows[-1] - rows[0] < len(rows) else base + rows
        with errors_name(self._root, layout.zarr_states_shard(shard), ZARR_ERRORS):
            values = np.asarray(self._arrays["states"].oindex[chosen, states])
        scale = None
        if self._manifest.is_int8:
            with errors_name(self._root, layout.zarr_scale_shard(shard), ZARR_ERRORS):
                scale = np.asarray(self._arrays["scale"].oindex[chosen, states])
        for low, high, block, place in pieces:
            first = int(np.searchsorted(rows, low))
            block.values[:, place : place + high - low] = values[first : first + high - low].transpose(1, 0, 2)
            if block.scale is not None and scale is not None:
                block.scale[place : place + high - low] = scale[first : first + high - low]


class _Footer(NamedTuple):
    """A file's footer, and the first row of each row group (and at last, the number of rows)."""

    metadata: pq.FileMetaData
    firsts: list[int]


Group = tuple[int, int, tuple[int, ...]]  # shard, row group, states


class ByParquet(RowReader):
    """Rows of the Parquet form, by pyarrow, which compares the CRC-32 of pages. Row groups that were used last are kept."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(root, manifest)
        self._footers: Recent[int, _Footer] = Recent(FOOTERS_KEPT)
        self._groups: Recent[Group, Block] = Recent(GROUP_BYTES, lambda block: block.values.nbytes)

    def fill(self, states: Sequence[int], jobs: Sequence[Job]) -> None:
        """See `RowReader.fill`."""
        pieces, by_group, own = list(self._pieces(jobs)), dict[Group, list[tuple[int, int, Block, int]]](), tuple(states)
        shards = list(dict.fromkeys(shard for shard, *_ in pieces))
        footers = dict(zip(shards, self._footers.get_all(shards, self._read_footers), strict=True))
        for shard, low, high, block, place in pieces:
            firsts = footers[shard].firsts
            group = bisect_right(firsts, low) - 1
            while low < high:
                stop = min(high, firsts[group + 1])
                within = (low - firsts[group], stop - firsts[group], block, place)
                by_group.setdefault((shard, group, own), []).append(within)
                low, place, group = stop, place + stop - low, group + 1
        keys = sorted(by_group)
        for start in range(0, len(keys), GROUPS_AT_ONCE):
            some = keys[start : start + GROUPS_AT_ONCE]
            for key, decoded in zip(some, self._groups.get_all(some, self._read_groups), strict=True):
                for low, high, block, place in by_group[key]:
                    block.values[:, place : place + high - low] = decoded.values[:, low:high]
                    if block.scale is not None and decoded.scale is not None:
                        block.scale[place : place + high - low] = decoded.scale[low:high]

    def columns(self, names: Sequence[str], first: int, stop: int) -> pa.Table:
        """Columns of these rows; row groups are not kept."""
        tables = []
        for shard, low, high, *_ in self._pieces([(first, stop, Block(np.empty(0), None), 0)]):
            footer = self._footers.get(shard, self._read_footers)
            groups = range(bisect_right(footer.firsts, low) - 1, bisect_right(footer.firsts, high - 1))
            request = GroupsOf(layout.states_part(shard), footer.metadata, tuple(groups), tuple(names))
            tables.append(read_tables(self._root, [request])[0].slice(low - footer.firsts[groups[0]], high - low))
        return pa.concat_tables(tables)

    def _read_groups(self, keys: list[Group]) -> list[Block]:
        m, requests, groups_of = self._manifest, [], dict[int, list[int]]()
        for shard, group, _ in keys:
            groups_of.setdefault(shard, []).append(group)
        names = [m.states[state] for state in keys[0][2]]
        scales = [layout.scale_column(name) for name in names] if m.is_int8 else []
        for shard, groups in groups_of.items():
            metadata = self._footers.get(shard, self._read_footers).metadata
            requests.append(GroupsOf(layout.states_part(shard), metadata, tuple(groups), (*names, *scales)))
        blocks = []
        for request, table in zip(requests, read_tables(self._root, requests), strict=True):
            values = np.stack([_numbers(table[name]).reshape(-1, m.channels) for name in names])
            scale = np.stack([table[name].to_numpy() for name in scales], axis=1) if scales else None
            ends = list(accumulate((request.metadata.row_group(group).num_rows for group in request.groups), initial=0))
            for first, stop in pairwise(ends):
                # Copies, so that one that is kept does not keep the others.
                blocks.append(Block(values[:, first:stop].copy(), None if scale is None else scale[first:stop].copy()))
        return blocks

    def _read_footers(self, shards: list[int]) -> list[_Footer]:
        footers = []
        for shard, metadata in zip(
            shards, read_footers(self._root, [layout.states_part(shard) for shard in shards]), strict=True
        ):
            first, stop = self._manifest.shard_range(shard)
            where = self._root.url(layout.states_part(shard))
            lengths = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            if metadata.num_rows != stop - first or sum(lengths) != stop - first or min(lengths, default=0) < 0:
                raise ShardCorruptError(
                    f"{where} has {metadata.num_rows} rows, {sum(lengths)} in row groups; the manifest says {stop - first}"
                )
            with errors_name(self._root, layout.states_part(shard)):
                problem = schema_problem(metadata.schema.to_arrow_schema(), parquet_form.schema(self._manifest))
            if problem:
                raise ShardCorruptError(f"{where}: {problem}; the manifest asks for other columns")
            footers.append(_Footer(metadata, list(accumulate(lengths, initial=0))))
        return footers


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The numbers of a column of fixed-size lists, one after the other."""
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
