"""Compressed chunks whose size is known beforehand: refused before a decoder takes more memory than they may have.

Decoders take as much memory as a chunk says, or, where it does not say, as it turns out to need.
"""

import pyarrow as pa

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER_BYTES = 16
_RLE_BLOCK = 1  # one byte that is repeated


def check_zstd(chunk: bytes | memoryview, n_bytes: int) -> None:
    """ValueError if a chunk compressed with zstd decompresses to more than ``n_bytes``, or is damaged.

    A chunk that is one frame of a size that its header gives is not decoded here: a decoder holds it to that size. Any other,
    such as several frames, a frame that can be skipped before another one, or one without a size, is decoded as far as it may be.
    """
    said = _size_of_frame(chunk)
    if said is not None:
        if said > n_bytes:
            raise ValueError(f"it would decompress to {said:,} bytes; {n_bytes:,} are the most")
        return
    try:
        with pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
            size = len(stream.read(n_bytes + 1))
    except OSError as error:
        raise ValueError(f"it can't be decompressed ({error})") from error
    if size > n_bytes:
        raise ValueError(f"it would decompress to more than {n_bytes:,} bytes, which are the most")


def check_blosc(chunk: bytes | memoryview, n_bytes: int) -> None:
    """ValueError if a chunk compressed with blosc says that it decompresses to more than ``n_bytes``, or in larger blocks."""
    said, block_bytes = (int.from_bytes(chunk[at : at + 4], "little") for at in (4, 8))
    if len(chunk) < _BLOSC_HEADER_BYTES or max(said, block_bytes) > n_bytes:
        raise ValueError(
            f"it would decompress to {said:,} bytes in blocks of {block_bytes:,}; {n_bytes:,} are the most"
        )


def _size_of_frame(chunk: bytes | memoryview) -> int | None:
    """Return the size that the header of a zstd frame gives; None unless the chunk is exactly one frame that gives one.

    https://www.rfc-editor.org/rfc/rfc8878#name-frame-header
    """
    if len(chunk) < 6 or chunk[:4] != _ZSTD_MAGIC:
        return None
    descriptor = chunk[4]
    is_single_segment = descriptor >> 5 & 1
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    place = 5 + (1 - is_single_segment) + dictionary_bytes
    if not size_bytes:
        return None
    size = int.from_bytes(chunk[place : place + size_bytes], "little") + 256 * (size_bytes == 2)
    place += size_bytes
    is_last = False
    while not is_last:
        if place + 3 > len(chunk):
            return None
        block = int.from_bytes(chunk[place : place + 3], "little")
        is_last = bool(block & 1)
        place += 3 + (1 if block >> 1 & 3 == _RLE_BLOCK else block >> 3)
    has_checksum = descriptor >> 2 & 1
    return size if place + 4 * has_checksum == len(chunk) else None
