"""A store's Zarr form as zarr-python reads it: metadata by the manifest, chunks by the store's root."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.forms import zarr_shard
from elmo_store.forms.zarr_form import metadata, most_token_bytes
from elmo_store.storage.data import Range
from elmo_store.storage.root import Root

_ZSTD = b"\x28\xb5\x2f\xfd"


def arrays(root: Root, manifest: Manifest) -> zarr.Group:
    """The group of arrays, for reading. Its metadata are those that the manifest asks for, whatever lies there."""
    return zarr.open_group(_Objects(root, manifest), mode="r", use_consolidated=False, zarr_format=3)


class _Objects(Store):
    """The objects that zarr reads. Those of chunks must be there: zarr would take one that is lost for zeros."""

    supports_writes, supports_deletes, supports_listing = False, False, False

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(read_only=True)
        self._root, self._manifest = root, manifest
        self._metadata = {rel.removeprefix(f"{layout.ZARR}/"): data for rel, data in metadata(manifest).items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Objects) and self._root == other._root

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """An object, or a range of it; None for metadata that there are none of."""
        if key in self._metadata:
            return prototype.buffer.from_bytes(self._metadata[key])
        if key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"):
            return None
        try:
            data = await asyncio.to_thread(self._read, f"{layout.ZARR}/{key}", byte_range)
        except RuntimeError as error:  # a client's: no damage, as the codecs' are
            raise OSError(errno.EIO, f"{self._root.url(f'{layout.ZARR}/{key}')}: {error}") from error
        return prototype.buffer.from_bytes(data)

    def _read(self, rel: str, asked: ByteRequest | None) -> bytes:
        array, _, number = rel.removeprefix(f"{layout.ZARR}/").split("/")[:3]
        if isinstance(asked, SuffixByteRequest):
            tail = self._root.get_tails({rel: asked.suffix})[rel]
            self._index(array, int(number), tail)
            return tail
        if isinstance(asked, RangeByteRequest):
            chunk = bytearray(asked.end - asked.start)
            self._root.read_ranges([Range(rel, asked.start, memoryview(chunk))])
            self._check(bytes(chunk[:18]), len(chunk))
            return bytes(chunk)
        data = self._root.get(rel)
        if array in ("states", "scale"):
            for start, length in self._index(array, int(number), data).reshape(-1, 2).tolist():
                self._check(data[start : start + 18], length)
        else:
            self._check(data[:18], len(data))
        return data[asked.offset :] if isinstance(asked, OffsetByteRequest) else data

    def _index(self, array: str, shard: int, data: bytes) -> npt.NDArray[np.int64]:
        """The index at the end of a shard's object, see `zarr_shard.parse_index`."""
        m, (first, stop) = self._manifest, self._manifest.shard_range(shard)
        n_parts, used = len(m.states) if array == "states" else 1, -(-(stop - first) // m.chunk_rows)
        return zarr_shard.parse_index(data, m.shard_rows // m.chunk_rows, n_parts, used)

    def _check(self, head: bytes, stored_bytes: int) -> None:
        """ValueError if a chunk that begins with these bytes says that it decompresses to more than it may.

        https://www.rfc-editor.org/rfc/rfc8878#name-frame-header
        """
        most = max(self._manifest.chunk_rows * self._manifest.row_bytes, most_token_bytes(stored_bytes))
        if head[:4] == _ZSTD and len(head) == 18:
            single, kind, dictionary = head[4] >> 5 & 1, head[4] >> 6, (0, 1, 2, 4)[head[4] & 3]
            size, first = (single, 2, 4, 8)[kind], 5 + (1 - single) + dictionary
            says = int.from_bytes(head[first : first + size], "little") + 256 * (size == 2)
            if says > most:
                raise ValueError(f"it would decompress to {says:,} bytes; {most:,} are the most")

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """`get` of each."""
        return list(await asyncio.gather(*(self.get(key, prototype, asked) for key, asked in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is an object."""
        return key in self._metadata or await asyncio.to_thread(self._root.exists, f"{layout.ZARR}/{key}")

    async def set(self, key: str, value: Buffer) -> None:
        """Refused."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        """Refused."""
        raise NotImplementedError

    def list(self) -> AsyncIterator[str]:
        """Refused, as the other listings."""
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Refused."""
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Refused."""
        raise NotImplementedError
