"""Running text into sentences, paragraph by paragraph, in bounded memory and linear time.

A sentence never crosses a paragraph. A paragraph is split in windows: of each the last sentence, which may go on, is carried
into the next, unless the window has no other; so every character is split at most twice.
"""

from bisect import bisect_right
from collections.abc import Iterator

from transforms.text.line_ends import line_ends
from transforms.text.sentences import sentence_spans

WINDOW = 1 << 16  # characters of a paragraph that are split at a time


class Paragraph:
    """Text of a paragraph that is not split yet, with the line on which each stretch of it began."""

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

    def is_full(self) -> bool:
        """Whether sentences should be taken out before more is added."""
        return self.length >= WINDOW

    def sentences(self, *, whole: bool) -> Iterator[tuple[str, int]]:
        """Take out sentences with the line each begins on: all of them, or (not ``whole``) all but the last, which may go on."""
        text = "".join(self._text)
        spans = sentence_spans(text)
        end = len(text)
        if not whole and len(spans) > 1 and len(text) - spans[-1][0] <= len(text) // 2:
            end = spans.pop()[0]
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


def document_sentences(text: str, ends: str) -> Iterator[str]:
    """The sentences of a document. ``ends``: "space", "break", or "auto" for what the document looks like."""
    lines = text.replace("\r\n", "\n").split("\n")
    if ends == "auto":
        ends = line_ends(lines)
    held = Paragraph()
    for number, line in enumerate(lines):
        blank = not line.strip()
        if not blank:
            held.add(line, number)
        if held.length and (blank or ends == "break" or held.is_full()):
            yield from (sentence for sentence, _ in held.sentences(whole=blank or ends == "break"))
    if held.length:
        yield from (sentence for sentence, _ in held.sentences(whole=True))


def bounded(tokens: list[str], most: int) -> Iterator[tuple[str, ...]]:
    """``tokens`` as sentences of at most ``most``; none for none."""
    for first in range(0, len(tokens), most):
        yield tuple(tokens[first : first + most])
