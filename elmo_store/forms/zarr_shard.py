"""The bytes of one shard object of a Zarr v3 array with the codec ``sharding_indexed``, as a worker writes them.

zarr itself encodes all shards of a process one after another, on its one event loop, at under 1 GB/s. This does the same in plain
copies that several threads make at once. tests/store compare what zarr reads, and the lengths that zarr writes. Format:
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

import math
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


def encode(
    rows: npt.NDArray[Any],
    *,
    shard_rows: int,
    chunk_rows: int,
    compression: str,
    checksum: str = "none",
) -> Data:
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
    step = (
        used * chunk_rows if stored_as_is else chunk_rows
    )  # as they are, all chunks of a part are one piece
    pieces: list[bytes | memoryview] = []
    lengths = np.full((n_parts, used), chunk_rows * math.prod(rest) * little.itemsize, np.uint64)
    for part in range(n_parts):
        own = np.ascontiguousarray(rows[:, part], little)
        for first in range(0, n, step):
            chunk = own[first : first + step]
            if stored_as_is:
                pieces += [bytes_of(chunk), bytes_of(padding)]
                continue
            whole = chunk if len(chunk) == step else np.concatenate([chunk, padding])
            packed = (
                bytes_of(whole)
                if compression == "none"
                else bytes(_codec(compression).encode(whole))
            )
            pieces += [packed, crc32c(packed)] if checksum == "crc32c" else [packed]
            lengths[part, first // step] = len(packed) + CRC_BYTES * (checksum == "crc32c")
    return (*filter(len, pieces), _index(lengths, n_chunks))


def bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return values.reshape(-1).view(np.uint8).data


def index_bytes(n_chunks: int, n_parts: int) -> int:
    """Bytes of the index at the end of a shard of ``n_chunks`` × ``n_parts`` inner chunks."""
    return n_chunks * n_parts * 16 + CRC_BYTES


def parse_index(data: Whole, n_chunks: int, n_parts: int, used: int) -> npt.NDArray[np.int64]:
    """Offset and length of the ``used`` inner chunks that have rows, from the last bytes of a shard: [used, n_parts, 2].

    ValueError if those bytes are cut, their CRC-32C is wrong, or such a chunk is absent: Zarr libraries would take it for zeros.
    """
    size = index_bytes(n_chunks, n_parts)
    if len(data) < size:
        raise ValueError(f"it has {len(data)} bytes, its index alone takes {size}")
    index = bytes(data[len(data) - size :])
    if crc32c(index[:-CRC_BYTES]) != index[-CRC_BYTES:]:
        raise ValueError("the CRC-32C of its index is wrong")
    entries = np.frombuffer(index, "<i8", 2 * n_chunks * n_parts).reshape(n_chunks, n_parts, 2)[
        :used
    ]
    if len(absent := np.argwhere((entries < 0).any(axis=2))):
        raise ValueError(
            f"its index marks inner chunk {tuple(absent[0].tolist())} as absent, which has rows"
        )
    return entries


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
    """Encodes inner chunks as zarr's codecs of zarr_form do."""
    return (
        Zstd(level=1)
        if name == "zstd"
        else Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE, blocksize=1 << 20)
    )
