"""Where a plain file may be cut: the first record that begins at a byte or after it.

A range ``start … stop`` holds the text from the first boundary at ``start`` to the first at ``stop``: both neighbours ask the
same question of the same bytes, so that every record is in exactly one range.

Lines and JSON lines are cut after any line end; blocks (paragraphs, CoNLL sentences) after a blank line. Running text that has
none within `LIMIT` bytes is cut after a line that ends like a sentence, or else after any line.
"""

import re
from collections.abc import Callable, Iterator

Fetch = Callable[[int, int], bytes]  # bytes start … stop of the file, fewer at its end

LINE, BLOCK, TEXT = "line", "block", "text"  # what a file consists of
UNITS = {"lines": LINE, "jsonl": LINE, "conllu": BLOCK, "conll": BLOCK, "text": TEXT}
STEP = 1 << 16  # bytes of the first fetch; then twice as many
LIMIT = 1 << 20
LONGEST_LOOK = (
    16 << 20
)  # bytes, at least, in which a range looks for the first unit that begins in it

_WHITE = b" \t\r\n"
_LINE = re.compile(rb"\n")
_BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")
_ENDED = re.compile(rb"[.!?][\"')\]]*[ \t\r]*\n")


def unit_of(input_format: str, line_ends: str) -> str:
    """What ranges of a format consist of; text whose line ends are breaks consists of lines."""
    return LINE if input_format == "text" and line_ends == "break" else UNITS[input_format]


def range_bounds(fetch: Fetch, start: int, stop: int, size: int, unit: str) -> tuple[int, int]:
    """Return the bytes that the range from ``start`` to ``stop`` reads: from its first boundary to that of the next range.

    A line or a block may be longer than many ranges. The range in which it begins looks for its end, however far that is; the
    ranges within it only see that no unit begins near them, and read nothing. So the time for all ranges is linear.
    """
    # So far beyond the range that the next unit begins in neither this range nor the look of the next one.
    most = max(LONGEST_LOOK, stop - start + 2 * LIMIT)
    first = _boundary(fetch, start, size, unit, most)
    if first is None:
        return start, start
    return first, boundary(fetch, stop, size, unit)


def boundary(fetch: Fetch, offset: int, size: int, unit: str) -> int:
    """The first byte at ``offset`` or after it with which a unit begins; 0 for 0, ``size`` if none begins any more.

    It never falls as ``offset`` grows. Bytes are fetched in their order, each of them once; about `LIMIT` of them are held.
    """
    found = _boundary(fetch, offset, size, unit, size)
    return size if found is None else found


def _boundary(fetch: Fetch, offset: int, size: int, unit: str, most: int) -> int | None:
    """As `boundary`; None if no unit begins within ``most`` bytes. A run of blank lines is followed to its end."""
    if offset <= 0 or offset >= size:
        return 0 if offset <= 0 else size
    # The byte before ``offset`` may be the end of a line: then one begins right there.
    pieces = _pieces(fetch, offset - 1, size)
    stop = min(offset + most, size)
    if unit == BLOCK:
        return _block_start(pieces, size, stop)
    if unit == TEXT:
        window = bytearray()
        for _, data in pieces:
            window += data
            cut = _text_start(window, at_end=offset - 1 + len(window) >= size)
            if cut is not None:
                return offset - 1 + cut
            if len(window) > LIMIT:
                break
    return _line_start(pieces, size, stop)


def _pieces(fetch: Fetch, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The file from ``start`` on, with the byte at which each piece begins."""
    step = STEP
    while start < size and (data := fetch(start, min(start + step, size))):
        yield start, data
        start += len(data)
        step = min(2 * step, LIMIT)


def _line_start(pieces: Iterator[tuple[int, bytes]], size: int, stop: int) -> int | None:
    for start, data in pieces:
        if b"\n" in data:
            return start + data.index(b"\n") + 1
        if stop <= start + len(data) < size:
            return None
    return size


def _block_start(pieces: Iterator[tuple[int, bytes]], size: int, stop: int) -> int | None:
    # Of the white space with which the text so far ends: its line ends, and the byte after the last of them.
    n_line_ends = after = 0
    for start, data in pieces:
        text = data.lstrip(_WHITE) if n_line_ends else data
        white = data[: len(data) - len(text)]
        if b"\n" in white:
            n_line_ends += white.count(b"\n")
            after = start + white.rindex(b"\n") + 1
        if text:
            if n_line_ends > 1:
                return after
            blank = _BLANK.search(text)
            if blank and text[blank.end() :].strip(_WHITE):
                return start + len(white) + blank.end()
            tail = text[len(text.rstrip(_WHITE)) :]
            n_line_ends = tail.count(b"\n")
            after = start + len(data) - len(tail) + tail.rfind(b"\n") + 1
        if stop <= start + len(data) < size and not n_line_ends:
            return None
    return after if n_line_ends > 1 else size


def _text_start(window: bytearray, *, at_end: bool) -> int | None:
    """The cut in the `LIMIT` bytes after an offset; None if the next line end after them is the cut."""
    seen = bytes(window[: LIMIT + 1])
    is_full = len(seen) > LIMIT
    blank = _BLANK.search(seen)
    # A run of blank lines after which nothing but white space was seen may go on.
    if blank and (seen[blank.end() :].strip(_WHITE) or at_end or is_full):
        return blank.end()
    if not is_full:
        return None
    end = _ENDED.search(seen) or _LINE.search(window, LIMIT)
    return end.end() if end else None
