"""A store's Zarr form as zarr-python reads it: metadata by the manifest, chunks by the store's root."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.cpu import Buffer as CpuBuffer
from zarr.storage import MemoryStore

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.forms import zarr_shard
from elmo_store.forms.zarr_form import metadata
from elmo_store.storage.compressed import check_blosc, check_zstd
from elmo_store.storage.data import Range
from elmo_store.storage.parquet_files import errors_name
from elmo_store.storage.root import Root


def arrays(root: Root, manifest: Manifest) -> zarr.Group:
    """The group of arrays, for reading. Its metadata are those that the manifest asks for, whatever lies there."""
    return zarr.open_group(
        _Objects(root, manifest), mode="r", use_consolidated=False, zarr_format=3
    )


class _Objects(Store):
    """The objects of states and scales, and the metadata. All must be there: zarr would take one that is lost for zeros.

    zarr's `WrapperStore` is no base for it: it forwards what a newer zarr reads by (`get_ranges`, from 3.3 on) to what it wraps.
    """

    supports_writes = supports_deletes = supports_listing = False

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(read_only=True)
        known: dict[str, Buffer] = {
            rel.removeprefix(f"{layout.ZARR}/"): CpuBuffer.from_bytes(data)
            for rel, data in metadata(manifest).items()
        }
        self._known = MemoryStore(known, read_only=True)
        self._root, self._manifest = root, manifest

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """An object, or a range of it; None for metadata that there are none of. ShardMissingError."""
        if (
            key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
            or key == "state/c/0"
        ):
            return await self._known.get(key, prototype, byte_range)
        rel = f"{layout.ZARR}/{key}"
        try:
            with errors_name(self._root, rel, ()):  # a FileNotFoundError would be zeros, too
                data = await asyncio.to_thread(self._read, rel, byte_range)
        except RuntimeError as error:  # a client's: no damage, as the codecs' are
            raise StoreError(f"{self._root.url(rel)} can't be read: {error}") from error
        return prototype.buffer.from_bytes(data)

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **_: Any,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """`get` of each: zarr's own joins ranges, of which only the first chunk would be checked."""
        chunks = await asyncio.gather(*(self.get(key, prototype, asked) for asked in byte_ranges))
        yield list(enumerate(chunks))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """`get` of each."""
        return list(
            await asyncio.gather(*(self.get(key, prototype, asked) for key, asked in key_ranges))
        )

    async def exists(self, key: str) -> bool:
        """Whether it is among the metadata."""
        return await self._known.exists(key)

    def list(self) -> AsyncIterator[str]:
        """Names of the metadata."""
        return self._known.list()

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """See `list`."""
        return self._known.list_prefix(prefix)

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """See `list`."""
        return self._known.list_dir(prefix)

    async def set(self, key: str, value: Buffer) -> None:
        """ValueError: it is for reading."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """ValueError: it is for reading."""
        self._check_writable()

    def _read(self, rel: str, asked: ByteRequest | None) -> bytes:
        array, _, number = rel.removeprefix(f"{layout.ZARR}/").split("/")[:3]
        if isinstance(asked, SuffixByteRequest):
            tail = self._root.get_tails({rel: asked.suffix})[rel]
            self._index(array, int(number), tail)
            return tail
        n_bytes = self._chunk_bytes(array)
        most_stored = _most_stored(n_bytes)
        if isinstance(asked, RangeByteRequest):
            if asked.end - asked.start > most_stored:
                raise ValueError(
                    f"its index gives a chunk {asked.end - asked.start:,} bytes; {most_stored:,} are the most"
                )
            chunk = bytearray(asked.end - asked.start)
            self._root.read_ranges([Range(rel, asked.start, memoryview(chunk))])
            self._check(memoryview(chunk), n_bytes)
            return bytes(chunk)
        m = self._manifest
        n_chunks, n_parts = m.shard_rows // m.chunk_rows, self._parts(array)
        most_bytes = n_chunks * n_parts * most_stored + zarr_shard.index_bytes(n_chunks, n_parts)
        data = self._root.get(rel, most_bytes)
        for start, length in self._index(array, int(number), data).reshape(-1, 2).tolist():
            self._check(memoryview(data)[start : start + length], n_bytes)
        return data[asked.offset :] if isinstance(asked, OffsetByteRequest) else data

    def _index(self, array: str, shard: int, data: bytes) -> npt.NDArray[np.int64]:
        """The index at the end of a shard's object, see `zarr_shard.parse_index`."""
        m, (first, stop) = self._manifest, self._manifest.shard_range(shard)
        used = -(-(stop - first) // m.chunk_rows)
        return zarr_shard.parse_index(data, m.shard_rows // m.chunk_rows, self._parts(array), used)

    def _parts(self, array: str) -> int:
        """Return how many inner chunks hold the same rows of an array."""
        return len(self._manifest.states) if array == "states" else 1

    def _chunk_bytes(self, array: str) -> int:
        """Return the bytes of an inner chunk of an array when it is decoded."""
        m = self._manifest
        if array == "scale":
            return m.chunk_rows * len(m.states) * layout.SCALE_BYTES
        return m.chunk_rows * m.channels * layout.NUMBER_BYTES[m.dtype]

    def _check(self, chunk: memoryview, n_bytes: int) -> None:
        """ValueError if an inner chunk would decompress to more than ``n_bytes``."""
        if self._manifest.checksum == "crc32c":
            chunk = chunk[: -zarr_shard.CRC_BYTES]
        if self._manifest.compression == "zstd":
            check_zstd(chunk, n_bytes)
        elif self._manifest.compression == "blosc":
            check_blosc(chunk, n_bytes)


def _most_stored(n_bytes: int) -> int:
    """Return the most bytes that ``n_bytes`` take as they are stored: a codec may make numbers a little longer."""
    return n_bytes + n_bytes // 8 + (1 << 16)
