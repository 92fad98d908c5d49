"""The bytes of one shard object of a Zarr v3 array with the codec ``sharding_indexed``, both ways.

zarr itself encodes and decodes all shards of a process one after another, on its one event loop, at under 1 GB/s, and whole
inner chunks only. This does the same in plain copies that several threads make at once, and finds the exact bytes of a row.
tests/store compare what zarr reads, and the lengths that zarr writes. Format:
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store.storage.data import Data, Whole
from elmo_store.storage.data import crc32c as data_crc32c

ABSENT = 2**64 - 1
CRC_BYTES = 4


class DamagedError(ValueError):
    """Bytes that are not what a shard's inner chunk or index must be; says what is wrong, not where."""


def encode(rows: npt.NDArray[Any], *, shard_rows: int, chunk_rows: int, compression: str, checksum: str = "none") -> Data:
    """The object of a shard of ``shard_rows`` rows whose first ones are ``rows`` [n, n_parts, …], one or more.

    A part is a state, or all that a row has. The object has inner chunks of ``chunk_rows`` rows of one part, compressed ("none",
    "zstd", "blosc") and each with its CRC-32C behind it if ``checksum`` is "crc32c": all of the first part, then all of the next,
    so that one part is one range of the object; then the index with its CRC-32C. The last used chunk is filled up with zeros,
    those beyond it are left out.

    What is stored as it is and lies in memory part by part (a view of [n_parts, n, …]) is not copied: the pieces that are
    returned are that memory, which must stay as it is until they are put.
    """
    n, n_parts, *rest = rows.shape
    used, n_chunks = -(-n // chunk_rows), shard_rows // chunk_rows
    stored_as_is = compression == "none" and checksum == "none"
    little = rows.dtype.newbyteorder("<")
    padding = np.zeros((used * chunk_rows - n, *rest), little)
    step = used * chunk_rows if stored_as_is else chunk_rows  # as they are, all chunks of a part are one piece
    pieces: list[bytes | memoryview] = []
    lengths = np.full((n_parts, used), chunk_rows * math.prod(rest) * little.itemsize, np.uint64)
    for part in range(n_parts):
        own = np.ascontiguousarray(rows[:, part], little)
        for first in range(0, n, step):
            chunk = own[first : first + step]
            if stored_as_is:
                pieces += [_bytes_of(chunk), _bytes_of(padding)]
                continue
            whole = chunk if len(chunk) == step else np.concatenate([chunk, padding])
            packed = _bytes_of(whole) if compression == "none" else bytes(_codec(compression).encode(whole))
            pieces += [packed, crc32c(packed)] if checksum == "crc32c" else [packed]
            lengths[part, first // step] = len(packed) + CRC_BYTES * (checksum == "crc32c")
    return (*filter(len, pieces), _index(lengths, n_chunks))


def _bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return values.reshape(-1).view(np.uint8).data


def index_bytes(n_chunks: int, n_parts: int) -> int:
    """Bytes of the index at the end of a shard of ``n_chunks`` × ``n_parts`` inner chunks."""
    return n_chunks * n_parts * 16 + CRC_BYTES


@dataclass(frozen=True)
class ShardIndex:
    """Where the inner chunks of one shard object are.

    Attributes:
        offsets: int64 [n_chunks, n_parts], bytes from the object's start; -1 for a chunk that is absent.
        lengths: int64 [n_chunks, n_parts], bytes.
    """

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def parse(cls, data: Whole, n_chunks: int, n_parts: int, used: int, most_bytes: int) -> "ShardIndex":
        """The index of a shard from its last bytes, of whose chunks of rows the first ``used`` must be there.

        DamagedError if it is cut, its CRC-32C is wrong, a chunk that has rows is absent or empty, or one has more than
        ``most_bytes``: as much memory is taken for it.
        """
        size = index_bytes(n_chunks, n_parts)
        if len(data) < size:
            raise DamagedError(f"it has {len(data)} bytes, its index alone takes {size}")
        index = bytes(data[len(data) - size :])
        if crc32c(index[:-CRC_BYTES]) != index[-CRC_BYTES:]:
            raise DamagedError("the CRC-32C of its index is wrong")
        entries = np.frombuffer(index, "<u8", 2 * n_chunks * n_parts).reshape(n_chunks, n_parts, 2)
        absent = np.argwhere((entries[:used] >= 2**62).any(axis=2))
        if len(absent):
            chunk, state = absent[0].tolist()
            raise DamagedError(f"its index marks inner chunk ({chunk}, {state}) as absent, which has rows")
        longest = int(entries[:used, :, 1].max(initial=0))
        if longest > most_bytes:
            raise DamagedError(f"its index says that an inner chunk has {longest} bytes, more than {most_bytes}")
        signed = entries.view("<i8")  # ABSENT is -1
        return cls(np.ascontiguousarray(signed[..., 0]), np.ascontiguousarray(signed[..., 1]))


def decode_chunk(data: Whole | memoryview, out: npt.NDArray[Any], *, compression: str, checksum: str) -> None:
    """Decode one inner chunk's bytes into ``out``, a C-contiguous array of its size. DamagedError if they are no such chunk."""
    payload = memoryview(data)
    if checksum == "crc32c":
        payload, stored = payload[:-CRC_BYTES], payload[-CRC_BYTES:]
        if crc32c(payload) != bytes(stored):
            raise DamagedError("the CRC-32C of an inner chunk is wrong")
    try:
        if compression != "none" and (says := _content_bytes(compression, bytes(payload[:18]))) != out.nbytes:
            raise DamagedError(f"an inner chunk would decompress to {says} bytes, not {out.nbytes}")
        values = payload if compression == "none" else _codec(compression).decode(payload)
    except (IndexError, RuntimeError, ValueError) as error:
        raise DamagedError(f"an inner chunk can't be decompressed ({error})") from error
    if len(values) != out.nbytes:
        raise DamagedError(f"an inner chunk has {len(values)} bytes, not {out.nbytes}")
    out.reshape(-1).view(np.uint8)[:] = np.frombuffer(values, np.uint8)


def unzstd(data: bytes, most_bytes: int) -> bytes:
    """What one frame of zstd decompresses to. DamagedError if it is none, or says that it has more than ``most_bytes``."""
    try:
        says = _content_bytes("zstd", bytes(data[:18]))
        if not 0 <= says <= most_bytes:
            raise DamagedError(f"it would decompress to {says:,} bytes; {most_bytes:,} are the most")
        return bytes(Zstd().decode(data))
    except (IndexError, RuntimeError, ValueError) as error:
        raise DamagedError(f"it can't be decompressed ({error})") from error


def _content_bytes(compression: str, head: bytes) -> int:
    """What a frame that begins with ``head`` says it decompresses to, so that no frame can take any amount of memory.

    https://www.rfc-editor.org/rfc/rfc8878#name-frame-header, https://www.blosc.org/c-blosc/; -1 where it does not say.
    """
    if compression == "blosc":
        return int.from_bytes(head[4:8], "little")
    descriptor = head[4]
    single = descriptor >> 5 & 1
    size = (single, 2, 4, 8)[descriptor >> 6]
    first = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(head[first : first + size], "little") + 256 * (size == 2) if size else -1


def _index(lengths: npt.NDArray[np.uint64], n_chunks: int) -> bytes:
    """Offset and length of each inner chunk, stored one after another in ``lengths`` [n_parts, used]; then the CRC-32C."""
    n_parts, used = lengths.shape
    entries = np.full((n_chunks, n_parts, 2), ABSENT, "<u8")
    flat = lengths.reshape(-1)
    entries[:used, :, 0] = (np.cumsum(flat) - flat).reshape(n_parts, used).T
    entries[:used, :, 1] = lengths.T
    index = entries.tobytes()
    return index + crc32c(index)


def crc32c(data: Any) -> bytes:
    """CRC-32C (Castagnoli) of bytes, an array or a view of them, little-endian."""
    return data_crc32c(data).to_bytes(CRC_BYTES, "little")


@cache
def _codec(name: str) -> Any:
    """Encodes and decodes inner chunks as zarr's codecs of zarr_form do."""
    return Zstd(level=1) if name == "zstd" else Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE, blocksize=1 << 20)
