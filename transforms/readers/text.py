"""The format ``text``: running text, split into sentences and tokens.

May import transforms.records, transforms.decompress, transforms.sentences, transforms.tokenizers and the line reader.

Blank lines separate paragraphs; a sentence never crosses one, and inside a paragraph the ends of lines are spaces
(hard-wrapped text and one paragraph a line both read well). Ids are ``FILE:PARAGRAPH:SENTENCE``, or ``FILE:SENTENCE``
with ``document="file"``, all counted from 0. Position = number of the line, from 0, on which the sentence begins. A line
that can't be used is refused by itself: it ends the sentence before it.
"""

from bisect import bisect_right
from collections.abc import Iterator

from transforms.decompress import ByteSource
from transforms.readers.lines import lines_of, text_of
from transforms.records import Piece, ReadSettings, Record, Reject, Sentence
from transforms.sentences import sentence_spans
from transforms.tokenizers import Tokenize

WINDOW = 1 << 18  # characters of a paragraph that are split at a time
LONGEST = 1 << 19  # characters after which a sentence that does not end is cut at a space


class _Paragraph:
    """Text of the running paragraph that is not split yet, with the line on which each stretch of it began."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._starts: list[int] = []  # character at which each line begins
        self._lines: list[int] = []
        self.length = 0

    def add(self, line: str, number: int) -> None:
        """Append a line."""
        self._starts.append(self.length)
        self._lines.append(number)
        self._text.append(line + " ")
        self.length += len(line) + 1

    def sentences(self, whole: bool) -> Iterator[tuple[str, int]]:
        """Take out sentences with the line each begins on: all of them, or (not ``whole``) all but the last, which may go on."""
        text = "".join(self._text)
        spans = sentence_spans(text)
        end = len(text)
        if not whole:
            if len(spans) > 1:
                end = spans.pop()[0]
            elif len(text) < LONGEST:
                return
            else:
                end = text.rfind(" ", 1, len(text) - 1) + 1 or len(text)
                spans = [(spans[0][0], end)] if spans and spans[0][0] < end else []
        found = [(text[start:stop], self._line_at(start)) for start, stop in spans]
        line = self._line_at(end)
        later = [(start - end, number) for start, number in zip(self._starts, self._lines, strict=True) if start > end]
        self._text, self._starts, self._lines, self.length = [], [], [], 0
        if end < len(text):
            self._text, self.length = [text[end:]], len(text) - end
            self._starts = [0, *(start for start, _ in later)]
            self._lines = [line, *(number for _, number in later)]
        yield from found

    def _line_at(self, character: int) -> int:
        return self._lines[max(bisect_right(self._starts, character) - 1, 0)]


def read_text(source: ByteSource, piece: Piece, settings: ReadSettings, tokenize: Tokenize) -> Iterator[Record]:
    """One record a sentence, or a line that was refused. Sentences without a token are left out: nothing stands there."""
    name = piece.url.rpartition("/")[2]
    by_paragraph = settings.document == "paragraph"
    paragraph = sentence = 0
    held = _Paragraph()

    def sentences(whole: bool) -> Iterator[Sentence]:
        nonlocal sentence
        if held.length:
            for text, line in held.sentences(whole):
                tokens = tuple(tokenize(text))
                if tokens:
                    yield Sentence(tokens, f"{name}:{paragraph}:{sentence}" if by_paragraph else f"{name}:{sentence}", line)
                    sentence += 1

    begun = False  # the paragraph has a line
    for number, line in enumerate(lines_of(source, piece, settings.max_line_bytes)):
        text = text_of(line, number, settings.max_line_bytes)
        if isinstance(text, Reject):
            yield from sentences(whole=True)
            own = f"{name}:{paragraph}:{sentence}" if by_paragraph else f"{name}:{sentence}"
            yield Reject(number, text.reason, text.raw, own)
            sentence += 1
            begun = True
        elif not text.strip():
            yield from sentences(whole=True)
            if begun and by_paragraph:
                paragraph, sentence = paragraph + 1, 0
            begun = False
        else:
            begun = True
            held.add(text, number)
            if held.length >= WINDOW:
                yield from sentences(whole=False)
    yield from sentences(whole=True)
