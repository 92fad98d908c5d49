"""The format ``text``: running text, split into sentences and tokens.

Blank lines separate paragraphs; a sentence never crosses one. Where line ends are breaks (``line_ends``), every line is a
paragraph. Ids are ``FILE:PARAGRAPH:SENTENCE``, or ``FILE:SENTENCE`` with ``document="file"``, counted from 0. Position = number of
the line, from 0, on which the sentence begins. A line that can't be used is refused by itself: it ends the sentence before it.
"""

from collections.abc import Iterator
from itertools import chain

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import ReadSettings, Record, Reject, Sentence
from transforms.readers.lines import Line, head_of, lines_of, text_of
from transforms.text.sentences import SAMPLE_BYTES, Paragraph, bounded, line_ends
from transforms.text.tokenizers import Tokenizer


def read_text(source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence, or a line that was refused. Sentences without a token are left out: nothing stands there."""
    lines: Iterator[Line] = lines_of(source, settings.max_line_bytes)
    ends = settings.line_ends if source.split.line_ends == "auto" else source.split.line_ends
    if ends == "auto":
        head = _beginning(lines)
        ends = line_ends([line.decode("utf-8", "replace") for line in head if isinstance(line, bytes)])
        lines = chain(head, lines)
    by_paragraph = settings.document == "paragraph"
    paragraph = sentence = 0
    held = Paragraph()

    def place() -> tuple[int, int]:
        """Ordinal and number within it of the next sentence."""
        return (paragraph, sentence) if by_paragraph else (sentence, -1)

    def sentences(whole: bool) -> Iterator[Sentence]:
        nonlocal sentence
        if held.length:
            for text, line in held.sentences(whole=whole):
                for tokens in bounded(tokenizer.sentence(text), settings.max_sentence_tokens):
                    yield Sentence(tokens, "", line, *place())
                    sentence += 1

    begun = False  # the paragraph has a line
    for number, line in enumerate(lines):
        text = text_of(line, number, settings.max_line_bytes)
        if isinstance(text, Reject):
            yield from sentences(whole=True)
            yield Reject(number, text.reason, text.raw, "", *place())
            sentence += 1
            begun = True
        elif text.strip():
            begun = True
            held.add(text, number)
            if held.is_full():
                yield from sentences(whole=False)
        if begun and (ends == "break" or (isinstance(text, str) and not text.strip())):
            yield from sentences(whole=True)
            begun = False
            if by_paragraph:
                paragraph, sentence = paragraph + 1, 0
    yield from sentences(whole=True)
    source.n_ordinals = paragraph + (1 if begun else 0) if by_paragraph else sentence


def _beginning(lines: Iterator[Line]) -> list[Line]:
    """The lines by which the line ends of a text are judged."""
    head: list[Line] = []
    size = 0
    while size < SAMPLE_BYTES and (line := next(lines, None)) is not None:
        head.append(line)
        size += len(head_of(line)) + 1
    return head
