"""Compressed files that say themselves where they can be entered: bgzip by its blocks, seekable zstd by its table of frames.

A range of such a file holds the text from the first record that begins after the first block at its start to the first after
the block at its stop: both neighbours find the same one, so every record is in exactly one range. Other gzip and zstd files have
no such mark, and are unpacked by one pass (`transforms.stages.unpack`).

Not rapidgzip (0.16), which reads a file that is cut in its middle without an error, refuses zeros behind the last member, loses
what comes before damage, holds 2 GB of a bomb, and enters a file only after it has read all that comes before.

Formats: bgzip, section 4.1 of https://samtools.github.io/hts-specs/SAMv1.pdf; seekable zstd,
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

import struct
from collections.abc import Callable, Iterator
from itertools import accumulate, chain

from transforms.inputs.boundaries import Fetch, boundary
from transforms.inputs.decompress import Chunks, decompressed

BGZIP, SEEKABLE = "bgzip", "seekable zstd"
KINDS = {BGZIP: "gzip", SEEKABLE: "zstd"}  # what decompresses them
_BLOCK_BYTES = 1 << 16  # most that a block of bgzip takes
_HEADER_BYTES = 18  # of a block of bgzip
_ENTRY_MAGIC, _TABLE_MAGIC = 0x184D2A5E, 0x8F92EAB1
_STEP = 1 << 20  # compressed bytes of one fetch
_NOWHERE = 1 << 62  # beyond the end of any text


def is_bgzip(head: bytes) -> bool:
    """Whether a block of bgzip begins with ``head``: gzip with its own length in a field ``BC``."""
    return head[:4] == b"\x1f\x8b\x08\x04" and head[10:16] == b"\x06\x00BC\x02\x00" and len(head) >= _HEADER_BYTES


def frame_starts(fetch: Fetch, size: int) -> list[int]:
    """Where the frames of a seekable zstd file begin, by the table at its end; none if it has no (sound) one."""
    tail = fetch(max(0, size - 9), size)
    if len(tail) < 9 or int.from_bytes(tail[5:], "little") != _TABLE_MAGIC:
        return []
    n_frames, flags = struct.unpack("<IB", tail[:5])
    entry_bytes = 12 if flags & 0x80 else 8
    table_bytes = 8 + n_frames * entry_bytes + 9
    if table_bytes > size:
        return []
    table = fetch(size - table_bytes, size)
    if struct.unpack("<II", table[:8]) != (_ENTRY_MAGIC, table_bytes - 8):
        return []
    starts = [0, *accumulate(struct.unpack_from("<I", table, 8 + i * entry_bytes)[0] for i in range(n_frames))]
    return starts[:-1] if starts[-1] + table_bytes == size else []


def cuts(kind: str, fetch: Fetch, size: int, range_bytes: int) -> list[int]:
    """Where ranges of about ``range_bytes`` begin, and the end; of bgzip any byte will do, readers find the block."""
    if kind == BGZIP:
        return [*range(0, size, range_bytes), size]
    starts = [0]
    for start in frame_starts(fetch, size):
        if start - starts[-1] >= range_bytes:
            starts.append(start)
    return [*starts, size]


def block_at(kind: str, fetch: Fetch, offset: int, size: int) -> int:
    """The first byte at ``offset`` or after it with which a block begins; ``size`` if none does. Cuts of zstd are such bytes."""
    if kind == SEEKABLE or offset <= 0 or offset >= size:
        return min(max(0, offset), size)
    window = fetch(offset, min(size, offset + 2 * _BLOCK_BYTES + _HEADER_BYTES))
    at = window.find(b"\x1f\x8b\x08\x04")
    while at >= 0:
        if is_bgzip(window[at : at + _HEADER_BYTES]):
            # Four bytes may stand anywhere in compressed data: the block behind must begin where this one says that it ends.
            after = at + int.from_bytes(window[at + 16 : at + 18], "little") + 1
            if offset + after == size or is_bgzip(window[after : after + _HEADER_BYTES]):
                return offset + at
        at = window.find(b"\x1f\x8b\x08\x04", at + 1)
    return size


def text_of_range(
    kind: str, fetch: Fetch, span: tuple[int, int], size: int, unit: str, count: Callable[[int], object] = lambda n_bytes: None
) -> Iterator[bytes]:
    """The text of the range ``span`` (start and stop, compressed bytes) of a file of ``size`` bytes.

    ``count`` is given the number of bytes of each fetch within the range; looks at what is behind it are not counted. EOFError
    and ValueError as `decompressed` has them.
    """
    first, last = (block_at(kind, fetch, offset, size) for offset in span)
    skipped, added = (_bytes_to_unit(kind, fetch, block, size, unit) for block in (first, last))
    within = _decompressed(kind, fetch, first, last, count)
    behind = _decompressed(kind, fetch, last, size) if added else iter(())
    for data in chain(within, _first_bytes(behind, added)):
        if skipped < len(data):
            yield data[skipped:]
        skipped = max(0, skipped - len(data))


def _bytes_to_unit(kind: str, fetch: Fetch, block: int, size: int, unit: str) -> int:
    """How far behind the block's beginning the first unit after it begins; 0 at the file's ends, `_NOWHERE` if none does."""
    if block <= 0 or block >= size:
        return 0
    text = Chunks(_decompressed(kind, fetch, block, size))

    def next_bytes(start: int, stop: int) -> bytes:  # a boundary is looked for from the front to the back
        data = b""
        while len(data) < stop - start and (more := text.read(stop - start - len(data))):
            data += more
        return data

    return boundary(next_bytes, 1, _NOWHERE, unit)


def _decompressed(
    kind: str, fetch: Fetch, start: int, stop: int, count: Callable[[int], object] = lambda n_bytes: None
) -> Iterator[bytes]:
    """The text of the blocks that stand in the bytes ``start … stop``."""

    def stored() -> Iterator[bytes]:
        for offset in range(start, stop, _STEP):
            data = fetch(offset, min(offset + _STEP, stop))
            count(len(data))
            yield data

    return decompressed(KINDS[kind], Chunks(stored())) if start < stop else iter(())


def _first_bytes(chunks: Iterator[bytes], n_bytes: int) -> Iterator[bytes]:
    for data in chunks:
        yield data[:n_bytes]
        n_bytes -= len(data)
        if n_bytes <= 0:
            return
