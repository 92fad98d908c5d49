"""Lines of a file, and the formats of text: ``lines``, one tokenised sentence a line, and ``text``, running text.

LF and CRLF end a line and nothing else does: a lone CR, a form feed, U+0085 or U+2028 is a character like any other. A last
line without an end counts; an end of line at the end of the file begins no other. Line i is sentence i of ``lines``, whatever is
wrong with it.

In ``text`` blank lines separate paragraphs; a sentence never crosses one. Where line ends are breaks (``document="line"``, or by
the looks of the text), every line is a paragraph. Ids are ``FILE:PARAGRAPH:SENTENCE``, or ``FILE:SENTENCE`` with
``document="file"``, counted from 0. Position = number of the line, from 0, on which the sentence begins. A line that can't be
used is refused by itself: it ends the sentence before it.
"""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import Chunks
from transforms.inputs.records import (
    DamagedInputError,
    InDocument,
    ReadSentence,
    ReadSettings,
    Record,
    Reject,
)
from transforms.text.looks import SAMPLE_BYTES, line_ends_of
from transforms.text.sentences import Paragraph, bounded
from transforms.text.tokenizers import Tokenizer

RAW_BYTES, RAW_CHARACTERS = 2048, 500  # of a record, what a reject shows
LONE_RETURN = "a carriage return without a line feed: convert the line ends to LF or CRLF"


class Refused(ValueError):
    """Why a record can't be used."""


def cut_raw(line: bytes) -> str:
    """The beginning of ``line`` for people to read: bytes that are not UTF-8 become ``\\xNN``."""
    return line[:RAW_BYTES].decode("utf-8", errors="backslashreplace")[:RAW_CHARACTERS]


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Each line without its end; one longer than ``max_bytes`` may lack some of its middle, and is longer nevertheless."""
    held: list[bytes] = []  # the beginning of a line that goes on in the next chunk
    held_bytes, most = (
        0,
        max_bytes + 2,
    )  # with a CR, which may belong to the line's end, and one byte too many
    for chunk in chunks:
        *ended, last = chunk.split(b"\n")
        for line in ended:
            if held:
                line = b"".join((*held, line[:most]))
                held, held_bytes = [], 0
            yield line.removesuffix(b"\r")
        if last and held_bytes < most:
            held.append(last[:most])
            held_bytes += len(held[-1])
    if held:
        yield b"".join(held)


def lines_of(
    source: ByteSource, max_bytes: int, text: Iterable[bytes] | None = None
) -> Iterator[bytes]:
    """The lines of ``text``, by default the split's, counted as its positions."""
    for line in split_lines(source.text() if text is None else text, max_bytes):
        source.n_positions += 1
        yield line


def text_of(line: bytes, max_bytes: int, what: str = "line") -> str:
    """Return the text of ``line``. Refused if it is too long, not UTF-8, or has a NUL character in it.

    ``what``: the bytes are called so in the reason.
    """
    if len(line) > max_bytes:
        raise Refused(f"the {what} is longer than {max_bytes} bytes")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        invalid = f"invalid UTF-8 at byte {error.start} of the {what} (0x{line[error.start]:02x})"
        raise Refused(in_wide_encoding(line) or invalid) from error
    if "\0" in text:
        wide = (
            "; it may be UTF-16: try --encoding utf-16-le or utf-16-be"
            if 3 * text.count("\0") >= len(text)
            else ""
        )
        raise Refused(f"NUL character at character {text.index(chr(0))} of the {what}{wide}")
    return text


def in_wide_encoding(head: bytes) -> str:
    """What to say of a text that begins with the byte order mark of UTF-16 or UTF-32, ``""`` of any other."""
    for name, *marks in (
        ("32", codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
        ("16", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    ):
        if head.startswith(tuple(marks)):
            return f"the text is UTF-{name}, not UTF-8: read it with --encoding utf-{name}"
    return ""


def read_lines(
    source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer
) -> Iterator[Record]:
    """One record a line. Position = number of the line, from 0. A blank line is a sentence of zero tokens."""
    for position, line in enumerate(lines_of(source, settings.max_line_bytes)):
        document = InDocument(position)
        try:
            text = text_of(line, settings.max_line_bytes)
        except Refused as error:
            yield Reject(position, str(error), cut_raw(line), document=document)
        else:
            kept = text if settings.keep_text else ""
            yield ReadSentence(
                tuple(tokenizer.record(text)), "", position, text=kept, document=document
            )
    source.ends_in = InDocument(source.n_positions)


def read_text(source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence, or a line that was refused. Sentences without a token are left out: nothing stands there."""
    chunks = Chunks(source.text())
    ends = settings.line_ends if source.split.line_ends == "auto" else source.split.line_ends
    if ends == "auto":
        ends = line_ends_of(chunks.peek(SAMPLE_BYTES))
    by_paragraph = settings.document != "file"
    paragraph = sentence = 0
    held = Paragraph()

    def place() -> dict[str, Any]:
        """Where the next sentence stands: ordinal, number within it, number in a document that is the file."""
        if by_paragraph:
            return {"ordinal": paragraph, "within": sentence}
        return {"ordinal": sentence, "document": InDocument(sentence)}

    def sentences(whole: bool) -> Iterator[ReadSentence]:
        nonlocal sentence
        if held.length:
            for text, line in held.sentences(whole=whole):
                for tokens in bounded(tokenizer.sentence(text)):
                    yield ReadSentence(tokens, "", line, **place())
                    sentence += 1

    begun = False  # the paragraph has a line
    try:
        for number, line in enumerate(lines_of(source, settings.max_line_bytes, chunks)):
            try:
                text = text_of(line, settings.max_line_bytes)
            except Refused as error:
                yield from sentences(whole=True)
                yield Reject(number, str(error), cut_raw(line), **place())
                sentence += 1
                blank = False
            else:
                blank = not text.strip()
                if not blank:
                    held.add(text, number)
                if held.is_full():
                    yield from sentences(whole=False)
            begun = begun or not blank
            if begun and (blank or ends == "break"):
                yield from sentences(whole=True)
                begun = False
                if by_paragraph:
                    paragraph, sentence = paragraph + 1, 0
    except DamagedInputError:
        yield from list(sentences(whole=True))[:-1]  # the last one may have gone on
        raise
    yield from sentences(whole=True)
    source.n_ordinals = paragraph + (1 if begun else 0) if by_paragraph else sentence
    source.ends_in = InDocument(0 if by_paragraph else sentence)
