"""Compressed files that say themselves where they can be entered: bgzip by its blocks, seekable zstd by its table of frames.

Pure over a function that fetches bytes; may import transforms.{boundaries,decompress}. A range of such a file holds the text from
the first record that begins after the first block at its start to the first after the block at its stop: both neighbours find the
same one, so every record is in exactly one range. Other gzip and zstd files have no such mark, and are unpacked by one pass
(`transforms.stages.unpack`).

Formats: bgzip, section 4.1 of https://samtools.github.io/hts-specs/SAMv1.pdf; seekable zstd,
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

import struct
from collections.abc import Iterator
from itertools import accumulate

from transforms.inputs.boundaries import Fetch, boundary
from transforms.inputs.decompress import decompressed

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
    entry = 12 if flags & 0x80 else 8
    table_bytes = 8 + n_frames * entry + 9
    if table_bytes > size:
        return []
    table = fetch(size - table_bytes, size)
    if struct.unpack("<II", table[:8]) != (_ENTRY_MAGIC, table_bytes - 8):
        return []
    lengths = [int.from_bytes(table[place : place + 4], "little") for place in range(8, 8 + n_frames * entry, entry)]
    starts = [0, *accumulate(lengths)]
    return starts[:-1] if starts[-1] + table_bytes == size else []


def cuts(kind: str, fetch: Fetch, size: int, range_bytes: int) -> list[int]:
    """Where ranges of about ``range_bytes`` begin, and the end; of bgzip any byte will do, readers find the block."""
    if kind == BGZIP:
        return [*range(0, size, range_bytes), size]
    found = [0]
    for start in frame_starts(fetch, size):
        if start - found[-1] >= range_bytes:
            found.append(start)
    return [*found, size]


def block_at(kind: str, fetch: Fetch, place: int, size: int) -> int:
    """The first byte at ``place`` or after it with which a block begins; ``size`` if none does. Cuts of zstd are such bytes."""
    if kind == SEEKABLE or place <= 0 or place >= size:
        return min(max(0, place), size)
    window = fetch(place, min(size, place + 2 * _BLOCK_BYTES + _HEADER_BYTES))
    at = window.find(b"\x1f\x8b\x08\x04")
    while at >= 0:
        if is_bgzip(window[at : at + _HEADER_BYTES]):
            # Four bytes may stand anywhere in compressed data: the block behind must begin where this one says that it ends.
            after = at + int.from_bytes(window[at + 16 : at + 18], "little") + 1
            if place + after == size or is_bgzip(window[after : after + _HEADER_BYTES]):
                return place + at
        at = window.find(b"\x1f\x8b\x08\x04", at + 1)
    return size


def text_of_range(kind: str, fetch: Fetch, start: int, stop: int, size: int, unit: str) -> Iterator[bytes]:
    """The text of the range ``start … stop`` (compressed bytes) of a file of ``size`` bytes.

    EOFError and ValueError as `decompressed` has them.
    """
    first, last = block_at(kind, fetch, start, size), block_at(kind, fetch, stop, size)
    skip, more = _unit_after(kind, fetch, first, size, unit), _unit_after(kind, fetch, last, size, unit)
    place = 0  # in the text behind the block ``first``
    for begin, end, most in ((first, last, _NOWHERE), (last, size, more)):
        given = 0
        for data in _decompressed(kind, fetch, begin, end) if most else ():
            data = data[: most - given]
            given += len(data)
            yield data[max(0, skip - place) :]
            place += len(data)
            if given == most:
                break


def _unit_after(kind: str, fetch: Fetch, block: int, size: int, unit: str) -> int:
    """How far behind the block's beginning the first unit after it begins; 0 at the file's ends, `_NOWHERE` if none does."""
    if block <= 0 or block >= size:
        return 0
    chunks = _decompressed(kind, fetch, block, size)
    held = bytearray()
    base = 0  # where ``held`` begins: bytes before it are not asked for again

    def text(first: int, last: int) -> bytes:
        nonlocal base
        while base + len(held) < last and (data := next(chunks, b"")):
            held.extend(data)
            if base + len(held) <= first:
                base += len(held)
                held.clear()
        del held[: first - base]
        base = first
        return bytes(held[: last - first])

    return boundary(text, 1, _NOWHERE, unit)


def _decompressed(kind: str, fetch: Fetch, start: int, stop: int) -> Iterator[bytes]:
    return decompressed(KINDS[kind], _Stored(fetch, start, stop)) if start < stop else iter(())


class _Stored:
    """Bytes ``start … stop`` as a file for reading."""

    closed = False

    def __init__(self, fetch: Fetch, start: int, stop: int) -> None:
        self._fetch, self._place, self._stop = fetch, start, stop
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, none at the end."""
        if not self._held and self._place < self._stop:
            self._held = self._fetch(self._place, min(self._place + _STEP, self._stop))
            self._place += len(self._held)
        size = len(self._held) if size < 0 else size
        data, self._held = self._held[:size], self._held[size:]
        return data

    def close(self) -> None:
        """For Arrow, which closes what it read from."""
        self.closed = True
