"""Lines of a file, and the format ``lines``: one sentence a line, already tokenised.

LF and CRLF end a line and nothing else does: a lone CR, a form feed, U+0085 or U+2028 is a character like any other. A last
line without an end counts; an end of line at the end of the file begins no other. Line i is sentence i, whatever is wrong with
it.
"""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import ReadSettings, Record, Reject, Sentence
from transforms.text.tokenizers import Tokenizer

RAW_BYTES = 2048  # what is kept of a line that is too long
RAW_CHARACTERS = 500  # what a reject shows
BOM = b"\xef\xbb\xbf"


class Refused(ValueError):
    """Why a record can't be used."""


@dataclass(frozen=True)
class LongLine:
    """A line over the limit; only its beginning was kept."""

    head: bytes


Line = bytes | LongLine


def cut_raw(line: bytes) -> str:
    """The beginning of ``line`` for people to read: bytes that are not UTF-8 become ``\\xNN``."""
    return line[:RAW_BYTES].decode("utf-8", errors="backslashreplace")[:RAW_CHARACTERS]


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[Line]:
    """Each line without its end. A line longer than ``max_bytes`` is not held."""
    held: list[bytes] = []  # the beginning of a line that goes on in the next chunk
    held_bytes = 0  # bytes of that line so far, kept or not
    for chunk in chunks:
        *ended, last = chunk.split(b"\n")
        for line in ended:
            line_bytes = held_bytes + len(line)
            if held:
                line = b"".join((*held, line))
                held = []
            held_bytes = 0
            kept_whole = len(line) == line_bytes
            line = line[:-1] if kept_whole and line.endswith(b"\r") else line
            yield line if kept_whole and len(line) <= max_bytes else LongLine(line[:RAW_BYTES])
        if last:
            held_bytes += len(last)
            held.append(last)
            if held_bytes > max_bytes + 1:  # one more: a CR may belong to the end of the line
                held = [b"".join(held)[:RAW_BYTES]]
    if held_bytes:
        line = b"".join(held)
        yield line if held_bytes == len(line) <= max_bytes else LongLine(line[:RAW_BYTES])


def lines_of(source: ByteSource, max_bytes: int, text: Iterable[bytes] | None = None) -> Iterator[Line]:
    """The lines of ``text``, by default the split's, counted as its positions. A byte order mark at the start is dropped."""
    for line in split_lines(source.text() if text is None else text, max_bytes):
        if source.n_positions == 0:
            line = LongLine(line.head.removeprefix(BOM)) if isinstance(line, LongLine) else line.removeprefix(BOM)
        source.n_positions += 1
        yield line


def head_of(line: Line) -> bytes:
    """What is there of a line."""
    return line.head if isinstance(line, LongLine) else line


def text_of(line: Line, position: int, max_bytes: int) -> str | Reject:
    """The text of ``line``, or why there is none: too long, not UTF-8, or with a NUL character in it."""
    if isinstance(line, LongLine):
        return Reject(position, f"the line is longer than {max_bytes} bytes", cut_raw(line.head))
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        if wide := wide_encoding(line):
            return Reject(position, f"the text is {wide}, not UTF-8: read it with --encoding {wide.lower()}", cut_raw(line))
        return Reject(position, f"invalid UTF-8 at byte {error.start} of the line (0x{byte:02x})", cut_raw(line))
    if "\0" in text:
        wide = "; it may be UTF-16: try --encoding utf-16-le or utf-16-be" if 3 * text.count("\0") >= len(text) else ""
        return Reject(position, f"NUL character at character {text.index(chr(0))} of the line{wide}", cut_raw(line))
    return text


def wide_encoding(head: bytes) -> str:
    """``UTF-16`` or ``UTF-32`` if ``head`` begins with the byte order mark of one, ``""`` otherwise."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    return "UTF-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""


def read_lines(source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a line. Position = number of the line, from 0. A blank line is a sentence of zero tokens."""
    for position, line in enumerate(lines_of(source, settings.max_line_bytes)):
        text = text_of(line, position, settings.max_line_bytes)
        yield text if isinstance(text, Reject) else Sentence(tuple(tokenizer.record(text)), "", position)
