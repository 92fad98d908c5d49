"""Where a plain file may be cut: the first record that begins at a byte or after it.

A range ``start … stop`` holds the text from the first boundary at ``start`` to the first at ``stop``: both neighbours ask the
same question of the same bytes, so that every record is in exactly one range.

Lines and JSON lines are cut after any line end; blocks (paragraphs, CoNLL sentences) after a blank line. Running text that has
none within `LIMIT` bytes is cut after a line that ends like a sentence, or else after any line.
"""

import re
from collections.abc import Callable

Fetch = Callable[[int, int], bytes]  # bytes start … stop of the file, fewer at its end

LINE, BLOCK, TEXT = "line", "block", "text"  # what a file consists of
UNITS = {"lines": LINE, "jsonl": LINE, "conllu": BLOCK, "conll": BLOCK, "text": TEXT}
STEP = 1 << 16  # bytes of the first fetch; then twice as many
LIMIT = 1 << 20

_WHITE = b" \t\r\n"
_LINE = re.compile(rb"\n")
_BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")
_ENDED = re.compile(rb"[.!?][\"')\]]*[ \t\r]*\n")


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
