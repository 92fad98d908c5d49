"""Where a file may be cut: the first record that begins at a byte or after it, and the compressed blocks where it can be entered.

A range ``start … stop`` holds the text from the first boundary at ``start`` to the first at ``stop`` (of compressed files: after
the blocks there): both neighbours ask the same question of the same bytes, so that every record is in exactly one range.

Lines and JSON lines are cut after any line end; blocks (paragraphs, CoNLL sentences) after a blank line. Running text that has
none within `LIMIT` bytes is cut after a line that ends like a sentence, or else after any line.

bgzip says where its blocks begin, seekable zstd where its frames do; other gzip and zstd files are unpacked by one pass
(`transforms.stages.split`). Not rapidgzip (0.16): it takes a truncated file for whole and holds 2 GB of a bomb.
"""

import re
import struct
from collections.abc import Callable, Iterator
from itertools import accumulate, chain

from transforms.inputs.decompress import Chunks, decompressed

Fetch = Callable[[int, int], bytes]  # bytes start … stop of the file, fewer at its end

LINE, BLOCK, TEXT = "line", "block", "text"  # what a file consists of
UNITS = {"lines": LINE, "jsonl": LINE, "conllu": BLOCK, "conll": BLOCK, "text": TEXT}
STEP = 1 << 16  # bytes of the first fetch; then twice as many
LIMIT = 1 << 20

_WHITE = b" \t\r\n"
_LINE = re.compile(rb"\n")
_BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")
_ENDED = re.compile(rb"[.!?][\"')\]]*[ \t\r]*\n")

BGZIP, SEEKABLE = "bgzip", "seekable zstd"
KINDS = {BGZIP: "gzip", SEEKABLE: "zstd"}  # what decompresses them
# https://samtools.github.io/hts-specs/SAMv1.pdf, section 4.1
_BLOCK_BYTES = 1 << 16  # most that a block of bgzip takes
_HEADER_BYTES = 18  # of a block of bgzip
# https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
_ENTRY_MAGIC, _TABLE_MAGIC = 0x184D2A5E, 0x8F92EAB1
_STORED_STEP = 1 << 20  # compressed bytes of one fetch
_NOWHERE = 1 << 62  # beyond the end of any text


def unit_of(input_format: str, line_ends: str) -> str:
    """What ranges of a format consist of; text whose line ends are breaks consists of lines."""
    return LINE if input_format == "text" and line_ends == "break" else UNITS[input_format]


def boundary(fetch: Fetch, offset: int, size: int, unit: str) -> int:
    """The first byte at ``offset`` or after it with which a unit begins; 0 for 0, ``size`` if none begins any more.

    It never falls as ``offset`` grows. Bytes are fetched in their order, each of them once.
    """
    if offset <= 0 or offset >= size:
        return 0 if offset <= 0 else size
    # The byte before ``offset`` may be the end of a line: then one begins right there.
    start = seen_to = offset - 1  # ``held`` is what is looked at again: start … seen_to
    held = b""
    step = STEP
    while seen_to < size:
        more = fetch(seen_to, min(seen_to + step, size))
        if not more:
            break
        held += more
        seen_to += len(more)
        step = min(2 * step, LIMIT)
        cut = _cut(held, unit, seen_to >= size)
        if cut is not None:
            return start + cut
        if unit != TEXT:  # nothing begins before the white space at the end
            kept = held[len(held.rstrip(_WHITE)) :]
            start, held = seen_to - len(kept), kept
    return size


def _cut(held: bytes, unit: str, at_end: bool) -> int | None:
    """The cut within ``held``; None if more must be seen."""
    if unit == LINE:
        return held.find(b"\n") + 1 or None
    window = held if unit == BLOCK else held[: LIMIT + 1]
    blank = _BLANK.search(window)
    # A run of blank lines after which nothing but white space was seen may go on.
    if blank and (window[blank.end() :].strip(_WHITE) or at_end or len(window) > LIMIT):
        return blank.end()
    if unit == TEXT and len(held) > LIMIT:
        end = _ENDED.search(window) or _LINE.search(held, LIMIT)
        return end.end() if end else None
    return None


def last_boundary(text: bytes | bytearray, unit: str) -> int:
    """The last byte with which a unit begins in ``text``, whose end is no end of the file; 0 if none does but the first."""
    if unit == LINE:
        return text.rfind(b"\n") + 1
    for pattern in (_BLANK, _ENDED, _LINE) if unit == TEXT else (_BLANK,):
        start = max(0, len(text) - LIMIT)
        ends = [match.end() for match in pattern.finditer(text, start) if match.end() < len(text)]
        if ends:
            return ends[-1]
    return 0


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
    behind = Chunks(_decompressed(kind, fetch, last, size))
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
        text.peek(stop - start)
        return text.read(stop - start)

    return boundary(next_bytes, 1, _NOWHERE, unit)


def _decompressed(
    kind: str, fetch: Fetch, start: int, stop: int, count: Callable[[int], object] = lambda n_bytes: None
) -> Iterator[bytes]:
    """The text of the blocks that stand in the bytes ``start … stop``."""

    def stored() -> Iterator[bytes]:
        for offset in range(start, stop, _STORED_STEP):
            data = fetch(offset, min(offset + _STORED_STEP, stop))
            count(len(data))
            yield data

    return decompressed(KINDS[kind], Chunks(stored())) if start < stop else iter(())


def _first_bytes(text: Chunks, n_bytes: int) -> Iterator[bytes]:
    while n_bytes and (data := text.read(n_bytes)):
        n_bytes -= len(data)
        yield data
