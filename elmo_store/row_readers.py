"""Rows of a store's states, from either form. May import zarr (when first needed), pyarrow, NumPy, layout, manifest, errors.

A reader fetches the inner chunks (Zarr) or row groups (Parquet) that hold the rows and states asked for, and no others. A
row that the store promises and does not have is an error: zarr by itself would give zeros.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from elmo_store import layout
from elmo_store.errors import ManifestError, ShardCorruptError, ShardMissingError, StoreError
from elmo_store.manifest import Manifest
from elmo_store.parquet_files import errors_name, open_parquet
from elmo_store.storage import Root

FILES_AT_HAND = 4


class RowReader(Protocol):
    """What a store needs of a form."""

    def read(self, states: Sequence[int], first: int, stop: int) -> npt.NDArray[Any]:
        """Rows ``first … stop`` of the states with these indices: [stop - first, len(states), channels]."""

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""


def row_reader(root: Root, manifest: Manifest, form: str) -> RowReader:
    """The reader of a form that the store has."""
    return ZarrRows(root, manifest) if form == "zarr" else ParquetRows(root, manifest)


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Consecutive indices as (place in ``indices``, first index, how many): one read each."""
    place = 0
    while place < len(indices):
        length = 1
        while place + length < len(indices) and indices[place + length] == indices[place] + length:
            length += 1
        yield place, indices[place], length
        place += length


def shards_of(manifest: Manifest, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The shards that rows ``first … stop`` lie in, each with the rows of it that are wanted (counted over the store)."""
    size = manifest.shard_rows
    for shard in range(first // size, layout.n_shards(stop, size) if stop > first else 0):
        yield shard, max(first, shard * size), min(stop, (shard + 1) * size)


class ZarrRows:
    """Reads the Zarr form, by zarr."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._arrays: dict[str, Any] = {}
        self._pid = os.getpid()
        self._present: set[str] = set()

    def read(self, states: Sequence[int], first: int, stop: int) -> npt.NDArray[Any]:
        """Rows ``first … stop`` of the states with these indices."""
        out = np.empty((stop - first, len(states), self._manifest.channels), self._manifest.dtype)
        for shard, lo, hi in shards_of(self._manifest, first, stop):
            with self._shard(layout.zarr_states_shard(shard)):
                for place, state, length in runs(states):
                    block = self._array("states")[lo:hi, state : state + length]
                    out[lo - first : hi - first, place : place + length] = block
        return out

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        found: list[str] = []
        for shard, lo, hi in shards_of(self._manifest, first, stop):
            with self._shard(layout.zarr_token_chunk(shard)):
                found += [str(token) for token in self._array("token")[lo:hi].tolist()]
        return found

    def _array(self, name: str) -> Any:
        if self._pid != os.getpid():
            self._arrays, self._pid = {}, os.getpid()
        if name not in self._arrays:
            self._arrays[name] = open_zarr_array(self._root, self._manifest, name)
        return self._arrays[name]

    @contextmanager
    def _shard(self, rel: str) -> Iterator[None]:
        if rel not in self._present:
            size = self._root.size(rel)
            if size is None:
                raise ShardMissingError(f"{self._root.url(rel)} is missing: run the job again, or restore the object")
            if size == 0:  # zarr would take it for a shard of nothing but absent chunks, which are zeros
                raise ShardCorruptError(f"{self._root.url(rel)} has 0 bytes: remove its marker and run the job again")
            self._present.add(rel)
        try:
            yield
        except StoreError:
            raise
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            raise ShardCorruptError(
                f"{self._root.url(rel)} is damaged ({error}): remove its marker and run the job again, or restore it"
            ) from error


def open_zarr_array(root: Root, manifest: Manifest, name: str) -> Any:
    """The array ``name``. ShardMissingError without its metadata, ManifestError if that and the manifest disagree."""
    import zarr
    from zarr.storage import FsspecStore, LocalStore

    rel = f"{layout.ZARR}/{name}/zarr.json"
    if not root.exists(rel):
        raise ShardMissingError(f"{root.url(rel)} is missing: run the job again, or restore the object")
    store: Any
    if root.is_local:
        store = LocalStore(root.path(layout.ZARR), read_only=True)
    else:
        store = FsspecStore.from_url(root.url(layout.ZARR), storage_options=dict(root.storage_options) or None, read_only=True)
    try:
        array = zarr.open_array(store, path=name, mode="r", zarr_format=3)
    except (ValueError, KeyError, TypeError) as error:
        raise ShardCorruptError(f"{root.url(rel)} can't be read ({error!r}): restore the object") from error
    counts = manifest.sizes
    wanted: dict[str, tuple[int, ...]] = {
        "states": (counts.rows, len(manifest.states), manifest.channels),
        "token": (counts.rows,),
        "sentence_start": (counts.sentences + 1,),
    }
    if array.shape != wanted[name] or (name == "states" and array.dtype != np.dtype(manifest.dtype)):
        raise ManifestError(
            f"{root.url(rel)} is {array.shape} in {array.dtype}, {root.url(layout.MANIFEST)} says {wanted[name]}"
            + (f" in {manifest.dtype}" if name == "states" else "")
            + ": they belong to different stores"
        )
    return array


class ParquetRows:
    """Reads the Parquet form, by pyarrow."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._pid = os.getpid()

    def read(self, states: Sequence[int], first: int, stop: int) -> npt.NDArray[Any]:
        """Rows ``first … stop`` of the states with these indices."""
        out = np.empty((stop - first, len(states), self._manifest.channels), self._manifest.dtype)
        names = [self._manifest.states[i] for i in states]
        for lo, _, table in self._tables(names, first, stop):
            for place, name in enumerate(names):
                column = table.column(name)
                start = lo - first
                for chunk in column.chunks:
                    values = chunk.flatten().to_numpy(zero_copy_only=False)
                    out[start : start + len(chunk), place] = values.reshape(len(chunk), -1)
                    start += len(chunk)
        return out

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        return [token for _, _, t in self._tables(["token"], first, stop) for token in t.column("token").to_pylist()]

    def _tables(self, columns: list[str], first: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        """(lo, hi, columns of rows lo … hi), shard by shard."""
        for shard, lo, hi in shards_of(self._manifest, first, stop):
            rel = layout.states_part(shard)
            file = self._file(shard)
            with errors_name(self._root, rel):
                start = shard * self._manifest.shard_rows
                wanted: list[tuple[int, int]] = []  # row group, its first row
                for group in range(file.metadata.num_row_groups):
                    stop_of_group = start + file.metadata.row_group(group).num_rows
                    if start < hi and stop_of_group > lo:
                        wanted.append((group, start))
                    start = stop_of_group
                table = file.read_row_groups([group for group, _ in wanted], columns=columns)
                rows = table.slice(lo - wanted[0][1], hi - lo)
            yield lo, hi, rows

    def _file(self, shard: int) -> pq.ParquetFile:
        if self._pid != os.getpid():  # a file that a fork shares has one position for both processes
            self._files, self._pid = OrderedDict(), os.getpid()
        if shard not in self._files:
            rel = layout.states_part(shard)
            file = open_parquet(self._root, rel)
            first, stop = self._manifest.shard_range(shard)
            self._check(file, self._root.url(rel), stop - first)
            self._files[shard] = file
            if len(self._files) > FILES_AT_HAND:
                self._files.popitem(last=False)[1].close(force=True)
        self._files.move_to_end(shard)
        return self._files[shard]

    def _check(self, file: pq.ParquetFile, where: str, rows: int) -> None:
        from elmo_store.parquet_form import schema

        if file.metadata.num_rows != rows:
            raise ShardCorruptError(f"{where} has {file.metadata.num_rows} rows, the manifest says {rows}")
        if not file.schema_arrow.equals(schema(self._manifest)):
            missing = [f.name for f in schema(self._manifest) if f not in list(file.schema_arrow)]
            raise ShardCorruptError(f"{where} lacks the columns {missing} as the manifest has them: not of this store")
