"""The bytes of one shard object of a Zarr v3 array with the codec ``sharding_indexed``. May import NumPy and numcodecs.

zarr itself encodes all shards of a process one after another, on its one event loop, at under 1 GB/s. This does the same in
plain copies that several threads make at once. tests/store compare what zarr reads, and the lengths that zarr writes.
Format: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

ABSENT = 2**64 - 1
_POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed

Data = bytes | bytearray
Encode = Callable[[npt.NDArray[Any]], Any]


def encode(states: npt.NDArray[Any], *, shard_rows: int, chunk_rows: int, compression: str) -> Data:
    """The object of a shard of ``shard_rows`` rows whose first ones are ``states``.

    Args:
        states: [n, n_states, channels], n from 1 to ``shard_rows``.
        shard_rows: rows of the shard, a multiple of ``chunk_rows``.
        chunk_rows: rows of an inner chunk; each holds one state. The last used one is filled up with
            zeros, those beyond it are left out.
        compression: "none", "zstd" or "blosc".

    Returns:
        The inner chunks, all of the first state, then all of the next, so that one state is one range of the object; then
        the index with its CRC-32C.
    """
    n, n_states, channels = states.shape
    used, n_chunks = -(-n // chunk_rows), shard_rows // chunk_rows
    little = states.dtype.newbyteorder("<")
    payload = used * n_states * chunk_rows * channels * little.itemsize
    index_bytes = n_chunks * n_states * 16 + 4
    # The object's own memory, filled in place: two copies fewer, and NumPy's copies let other threads run.
    data = bytearray(payload + index_bytes if compression == "none" else payload)
    chunks = np.frombuffer(data, little, used * n_states * chunk_rows * channels)
    chunks = chunks.reshape(n_states, used, chunk_rows, channels)
    whole = n // chunk_rows
    by_chunk = states[: whole * chunk_rows].reshape(whole, chunk_rows, n_states, channels)
    chunks[:, :whole] = by_chunk.transpose(2, 0, 1, 3)
    if whole < used:  # what follows the last row is zero already
        chunks[:, whole, : n - whole * chunk_rows] = states[whole * chunk_rows :].transpose(1, 0, 2)
    if compression == "none":
        lengths = np.full((n_states, used), chunk_rows * channels * little.itemsize, np.uint64)
        data[payload:] = _index(lengths, n_chunks)
        return data
    compress = _compressor(compression)
    packed = [compress(chunk) for chunk in chunks.reshape(n_states * used, -1)]
    lengths = np.array([len(one) for one in packed], np.uint64)
    return b"".join([*packed, _index(lengths.reshape(n_states, used), n_chunks)])


def _index(lengths: npt.NDArray[np.uint64], n_chunks: int) -> bytes:
    """Offset and length of each inner chunk, stored one after another in ``lengths`` [n_states, used]; then the CRC-32C."""
    n_states, used = lengths.shape
    entries = np.full((n_chunks, n_states, 2), ABSENT, "<u8")
    flat = lengths.reshape(-1)
    entries[:used, :, 0] = (np.cumsum(flat) - flat).reshape(n_states, used).T
    entries[:used, :, 1] = lengths.T
    index = entries.tobytes()
    return index + crc32c(index).to_bytes(4, "little")


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of a few kilobytes."""
    table = _crc_table()
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _compressor(name: str) -> Encode:
    """Of one inner chunk: what zarr's codecs of zarr_form do."""
    if name == "zstd":
        zstd: Encode = Zstd(level=1).encode
        return zstd
    blosc: Encode = Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE, blocksize=1 << 20).encode
    return blosc
