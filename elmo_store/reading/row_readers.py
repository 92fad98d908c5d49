"""Rows of a store, brought into memory in one of four ways.

`Mapped`: stored as they are on a local disk; a shard is an array [rows, states, channels] over its file, a sentence a view of it.
`Ranged`: the same rows on an object store, as ranges of bytes, all of one call at once. `ByZarr` and `ByParquet`: whatever else
there is, by zarr-python and pyarrow.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Int8Rows, row_block
from elmo_store.forms import parquet_form
from elmo_store.forms.zarr_shard import bytes_of, index_bytes
from elmo_store.storage.data import Range, ShortReadError, regular_size
from elmo_store.storage.parquet_files import (
    GroupsOf,
    check_groups,
    errors_name,
    read_footers,
    read_tables,
    schema_problem,
)
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root, folder_in_place_of

T = TypeVar("T")
R = TypeVar("R")
MAPS_KEPT = 16_384  # of shards; Linux lets a process have four times as many
FOOTERS_KEPT = 256
GROUP_BYTES = 1 << 26  # of decoded row groups that are kept
GROUPS_AT_ONCE = 64  # that are decoded together
THREADS = (
    16  # that ask zarr for shards, and members of a collection, elsewhere than on a local disk
)
# What zarr and its codecs raise for bytes that are none of theirs.
ZARR_ERRORS = (
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    ShortReadError,
)
Int64 = npt.NDArray[np.int64]
Stored = (
    Any  # rows as they are stored: an array [rows, states, channels], of an int8 store `Int8Rows`
)
Job = tuple[
    int, int, int
]  # rows ``first … stop``, and from which row of those that are read on they go


class RowReader(ABC):
    """Reads rows of a store. Safe for threads and forks."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest

    @abstractmethod
    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """Do the jobs, of the states with these indices, into ``rows``, which lie in memory one state after the other.

        ShardMissingError, ShardCorruptError, naming the object.
        """

    def map_span(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        """Rows without a copy, read-only; None where that can't be."""
        return None

    def map_spans(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """`map_span` of each of the spans [n, 2], of one that lies in several shards a copy; None where nothing is mapped."""
        return None

    def _pieces(self, jobs: Iterable[Job]) -> Iterator[tuple[int, int, int, int]]:
        """The jobs cut where shards meet: shard, its rows ``low … high``, and the place they go to."""
        size = self._manifest.shard_rows
        for first, stop, place in jobs:
            while first < stop:
                shard, low = divmod(first, size)
                high = min(low + stop - first, size)
                yield shard, low, high, place
                first, place = first + high - low, place + high - low


def used_rows(manifest: Manifest, shard: int) -> int:
    """Rows of a shard's object in the Zarr form: those of whole inner chunks."""
    first, stop = manifest.shard_range(shard)
    return -(-(stop - first) // manifest.chunk_rows) * manifest.chunk_rows


def row_reader(
    root: Root, manifest: Manifest, form: str, *, mapped: bool = True, share: float = 1.0
) -> RowReader:
    """The reader of a form that the store has.

    ``mapped``: files of a local disk may be mapped; ``share``: of what a process may keep for it.
    """
    if form == "parquet":
        return ByParquet(root, manifest, share)
    if manifest.compression != "none" or manifest.checksum != "none":
        return ByZarr(root, manifest)
    return Mapped(root, manifest, share) if mapped and root.is_local else Ranged(root, manifest)


class Mapped(RowReader):
    """Rows that are stored as they are, of files that are mapped.

    A file that vanishes or is replaced while it is mapped is read on as it was. One that is cut in place, which nothing of this
    package does, would end the process: open a store on such a disk with ``mapped=False``.
    """

    def __init__(self, root: Root, manifest: Manifest, share: float) -> None:
        super().__init__(root, manifest)
        self._shard_rows, self._all_states = manifest.shard_rows, all_states(len(manifest.states))
        self._shards = _Shards(root, manifest, int(MAPS_KEPT * share))

    def map_span(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        """See `RowReader.map_span`."""
        shard, low = divmod(first, self._shard_rows)
        high = low + stop - first
        if not low < high <= self._shard_rows:
            return None
        rows = self._shards[shard][low:high]
        if states is self._all_states:
            return rows
        own = _own(states)
        return None if isinstance(own, list) else rows[:, own]

    def map_spans(self, states: Sequence[int], spans: Int64) -> list[Stored]:
        """See `RowReader.map_spans`."""
        mapped, size = self._shards, self._shard_rows
        shards, lows = np.divmod(spans[:, 0], size)
        highs = lows + spans[:, 1] - spans[:, 0]
        rows = [
            mapped[shard][low:high]
            if low < high <= size
            else self._whole(shard * size + low, shard * size + high)
            for shard, low, high in zip(shards.tolist(), lows.tolist(), highs.tolist(), strict=True)
        ]
        if states is self._all_states:
            return rows
        own = _own(states)
        return [piece[:, own] for piece in rows]

    def _whole(self, first: int, stop: int) -> Stored:
        """A copy of rows, none or of several shards."""
        rows = row_block(
            len(self._all_states), stop - first, self._manifest.channels, self._manifest.dtype
        )
        self.fill(self._all_states, [(first, stop, 0)], rows)
        return rows

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """See `RowReader.fill`."""
        own = _own(states)
        for shard, low, high, place in self._pieces(jobs):
            rows[place : place + high - low] = self._shards[shard][low:high][:, own]


class _Shards(dict[int, Stored]):
    """Shards that are mapped, by number; one that is not there is mapped when it is asked for."""

    def __init__(self, root: Root, manifest: Manifest, most: int) -> None:
        super().__init__()
        self._root, self._manifest, self._most = root, manifest, most

    def __missing__(self, shard: int) -> Stored:
        m, n_rows, n_states = (
            self._manifest,
            used_rows(self._manifest, shard),
            len(self._manifest.states),
        )
        rows: Stored = self._array(
            layout.zarr_states_shard(shard), m.dtype, (n_states, n_rows, m.channels)
        ).transpose(1, 0, 2)
        if m.is_int8:
            rows = Int8Rows(
                rows, self._array(layout.zarr_scale_shard(shard), "f4", (n_rows, n_states))
            )
        self._root.confirm()  # after they were opened
        if len(self) >= self._most:
            self.clear()
        self[shard] = rows
        return rows

    def _array(self, rel: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """The numbers that a file begins with; behind them stands the shard's index."""
        little = np.dtype(dtype).newbyteorder("<")
        n_numbers = int(np.prod(shape, dtype=np.int64))
        n_parts = shape[0] if len(shape) == 3 else 1
        n_bytes = n_numbers * little.itemsize
        n_bytes += index_bytes(self._manifest.shard_rows // self._manifest.chunk_rows, n_parts)
        if os.path.isdir(self._root.path(rel)):
            raise folder_in_place_of(self._root.url(rel))
        with errors_name(self._root, rel, (ShortReadError,)):
            file = mapped_file(self._root.path(rel), rel, n_bytes)
        return np.frombuffer(file, little, n_numbers).reshape(shape)


def mapped_file(path: str, rel: str, n_bytes: int) -> pa.Buffer:
    """A file of so many bytes, mapped until nothing refers to the buffer.

    ShortReadError for a file of another size, and what `open_regular` raises.

    Arrow keeps no file open for a map, as Python's mmap does: a process that may open 1,024 files could map so few shards.
    """
    size = regular_size(path)
    if size == n_bytes:
        with pa.memory_map(path) as file:
            size = file.size()
            if size == n_bytes:
                return file.read_buffer()
    raise ShortReadError(rel, f"has {size} bytes, which can't be: {n_bytes} are the shard's")


@cache
def all_states(n: int) -> range:
    """The places of ``n`` states, the same object each time: readers know it without a look at its numbers."""
    return range(n)


def _own(states: Sequence[int]) -> "slice | list[int]":
    """The states as an index along an axis: a slice where they follow each other, so that views are possible."""
    first = states[0] if states else 0
    return (
        slice(first, first + len(states))
        if list(states) == list(range(first, first + len(states)))
        else list(states)
    )


class Ranged(RowReader):
    """Rows that are stored as they are, by ranges of bytes: all of one call at once, those that touch as one."""

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """See `RowReader.fill`."""
        m, ranges, scales = self._manifest, list[Range](), list[tuple[Array, Array]]()
        row_bytes, n_states = m.channels * np.dtype(m.dtype).itemsize, len(m.states)
        values, scale = rows if m.is_int8 else (rows, None)
        for shard, low, high, place in self._pieces(jobs):
            rel, used, own = (
                layout.zarr_states_shard(shard),
                used_rows(m, shard),
                slice(place, place + high - low),
            )
            for i, state in enumerate(states):
                ranges.append(
                    Range(rel, (state * used + low) * row_bytes, bytes_of(values[own, i]))
                )
            if scale is not None:  # those of all states are read
                read = np.empty((high - low, n_states), "<f4")
                ranges.append(
                    Range(
                        layout.zarr_scale_shard(shard),
                        low * n_states * layout.SCALE_BYTES,
                        bytes_of(read),
                    )
                )
                scales.append((read, scale[own]))
        with errors_name(self._root, damage=(ShortReadError,)):
            self._root.read_ranges(ranges)
        for read, out in scales:
            out[...] = read[:, list(states)]


def copied(rows: Stored) -> Stored:
    """A copy, in memory as ``rows`` are."""
    return (
        Int8Rows(rows.values.copy("K"), rows.scale.copy())
        if isinstance(rows, Int8Rows)
        else rows.copy("K")
    )


class ByZarr(RowReader):
    """Rows of inner chunks that are compressed or have checksums, by zarr-python: whole chunks are decoded."""

    @cached_property
    def _arrays(self) -> Any:
        from elmo_store.reading.zarr_objects import arrays  # zarr takes half a second

        return arrays(self._root, self._manifest)

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """See `RowReader.fill`."""
        by_shard: dict[int, list[tuple[int, int, int]]] = {}
        for shard, low, high, place in self._pieces(jobs):
            by_shard.setdefault(shard, []).append((low, high, place))
        own = list(states)
        side_by_side(
            lambda item: self._fill(item[0], own, item[1], rows),
            list(by_shard.items()),
            self._root.is_local,
        )

    def _fill(
        self, shard: int, states: list[int], pieces: list[tuple[int, int, int]], out: Stored
    ) -> None:
        base = shard * self._manifest.shard_rows
        rows = np.unique(np.concatenate([np.arange(low, high) for low, high, _ in pieces]))
        chosen: Any = (
            slice(base + int(rows[0]), base + int(rows[-1]) + 1)
            if rows[-1] - rows[0] < len(rows)
            else base + rows
        )
        with errors_name(self._root, layout.zarr_states_shard(shard), ZARR_ERRORS):
            read: Stored = np.asarray(self._arrays["states"].oindex[chosen, states])
        if self._manifest.is_int8:
            with errors_name(self._root, layout.zarr_scale_shard(shard), ZARR_ERRORS):
                read = Int8Rows(read, np.asarray(self._arrays["scale"].oindex[chosen, states]))
        for low, high, place in pieces:
            first = int(np.searchsorted(rows, low))
            out[place : place + high - low] = read[first : first + high - low]


def side_by_side(work: Callable[[T], R], items: Sequence[T], is_local: bool) -> list[R]:
    """``work`` on each; by threads where that is not on a local disk."""
    if is_local or len(items) < 2:
        return list(map(work, items))
    with ThreadPoolExecutor(min(THREADS, len(items))) as pool:
        return list(pool.map(work, items))


Group = tuple[int, int, tuple[int, ...]]  # shard, row group, states


class ByParquet(RowReader):
    """Rows of the Parquet form, by pyarrow, which compares the CRC-32 of pages. Row groups that were used last are kept."""

    def __init__(self, root: Root, manifest: Manifest, share: float) -> None:
        super().__init__(root, manifest)
        self._footers: Recent[int, pq.FileMetaData] = Recent(FOOTERS_KEPT)
        self._groups: Recent[Group, Stored] = Recent(
            int(GROUP_BYTES * share), lambda rows: int(rows.nbytes)
        )

    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """See `RowReader.fill`."""
        by_group, own, size = (
            dict[Group, list[tuple[int, int, int]]](),
            tuple(states),
            layout.ROW_GROUP_ROWS,
        )
        for shard, low, high, place in self._pieces(jobs):
            while low < high:
                group, first = divmod(low, size)
                n = min(high - low, size - first)
                by_group.setdefault((shard, group, own), []).append((first, first + n, place))
                low, place = low + n, place + n
        keys = sorted(by_group)
        for start in range(0, len(keys), GROUPS_AT_ONCE):
            some = keys[start : start + GROUPS_AT_ONCE]
            for key, decoded in zip(
                some, self._groups.get_all(some, self._read_groups), strict=True
            ):
                for low, high, place in by_group[key]:
                    rows[place : place + high - low] = decoded[low:high]

    def _read_groups(self, keys: list[Group]) -> list[Stored]:
        m, size, requests, groups_of = (
            self._manifest,
            layout.ROW_GROUP_ROWS,
            [],
            dict[int, list[int]](),
        )
        for shard, group, _ in keys:
            groups_of.setdefault(shard, []).append(group)
        names = [m.states[state] for state in keys[0][2]]
        scales = [layout.scale_column(name) for name in names] if m.is_int8 else []
        footers = self._footers.get_all(groups_of, self._read_footers)
        for (shard, groups), metadata in zip(groups_of.items(), footers, strict=True):
            requests.append(
                GroupsOf(layout.states_part(shard), metadata, tuple(groups), (*names, *scales))
            )
        blocks = []
        for table in read_tables(self._root, requests):
            decoded: Stored = np.stack(
                [_numbers(table[name]).reshape(-1, m.channels) for name in names]
            ).transpose(1, 0, 2)
            if scales:
                decoded = Int8Rows(
                    decoded, np.stack([table[name].to_numpy() for name in scales], axis=1)
                )
            # Copies, so that one that is kept does not keep the others.
            blocks += [
                copied(decoded[first : first + size]) for first in range(0, len(decoded), size)
            ]
        return blocks

    def _read_footers(self, shards: list[int]) -> list[pq.FileMetaData]:
        rels = [layout.states_part(shard) for shard in shards]
        footers = read_footers(self._root, rels)
        for shard, rel, metadata in zip(shards, rels, footers, strict=True):
            first, stop = self._manifest.shard_range(shard)
            check_groups(self._root.url(rel), metadata, stop - first, layout.ROW_GROUP_ROWS)
            with errors_name(self._root, rel):
                problem = schema_problem(
                    metadata.schema.to_arrow_schema(), parquet_form.schema(self._manifest)
                )
            if problem:
                raise ShardCorruptError(
                    f"{self._root.url(rel)}: {problem}; the manifest asks for other columns"
                )
        return footers


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The numbers of a column of fixed-size lists, one after the other."""
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
