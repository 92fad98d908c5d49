"""Running text into sentences, paragraph by paragraph, in bounded memory and linear time; whether its line ends are breaks.

A sentence never crosses a paragraph. A paragraph is split in windows: of each the last sentence, which may go on, is carried
into the next, unless the window has no other; so every character is split at most twice.

Line ends are judged by the text's looks. Prose that an editor wrapped breaks a line where the next word would not have fitted,
and nowhere else within a paragraph. So among lines that another one follows, those that end within a word of the text's width
tell hard-wrapped prose from a sentence or word a line: measured as the share of line ends after which the next line's first word
would have gone beyond the width. Where half of them end like a sentence, they are breaks whatever their length.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from transforms.text.sentences import sentence_spans

WINDOW = 1 << 16  # characters of a paragraph that are split at a time
SAMPLE_BYTES = 1 << 18  # of a file's text, from its beginning, by which it is judged
_NARROWEST = 30  # characters; nobody wraps prose to less, lists of words and verse are as narrow
_WORDS = 4  # words of a line of prose, at the least on average
_SHARE = 0.6  # of line ends that the width explains, in wrapped text
_ENDED = (".", "!", "?", '."', '!"', '?"', ".'", "!'", "?'", ".)", ". '", '. "', ". ''", ".''", "…")


class Paragraph:
    """Text of a paragraph that is not split yet, with the line on which each character of it stood."""

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
        sentences = [(text[start:stop], self._line_at(start)) for start, stop in spans]
        line = self._line_at(end)
        later = [(start - end, number) for start, number in zip(self._starts, self._lines, strict=True) if start > end]
        self._text, self._starts, self._lines, self.length = [], [], [], 0
        if end < len(text):
            self._text, self.length = [text[end:]], len(text) - end
            self._starts = [0, *(start for start, _ in later)]
            self._lines = [line, *(number for _, number in later)]
        yield from sentences

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


def line_ends(lines: Sequence[str]) -> str:
    """``"space"`` or ``"break"`` for the running text ``lines`` (without their ends; blank ones separate paragraphs).

    Text without two lines in a row gives "space", for there is nothing to decide.
    """
    pairs = [(a.strip(), b.strip()) for a, b in pairwise(lines) if a.strip() and b.strip()]
    if not pairs:
        return "space"
    lengths = sorted(len(line.strip()) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(len(lengths) * 0.97))]  # a few lines (addresses, tables) may be longer
    words = sum(line.count(" ") + 1 for line, _ in pairs) / len(pairs)
    ended = sum(1 for line, _ in pairs if line.endswith(_ENDED))
    if width < _NARROWEST or words < _WORDS or 2 * ended > len(pairs):
        return "break"
    full = sum(1 for line, following in pairs if len(line) + 1 + len(following.split(None, 1)[0]) > width)
    return "space" if full >= _SHARE * len(pairs) else "break"


def line_ends_of(text: bytes | bytearray) -> str:
    """`line_ends` of a text by its first `SAMPLE_BYTES` bytes, of which the last line may go on."""
    return line_ends(bytes(text[:SAMPLE_BYTES]).decode("utf-8", "replace").splitlines()[:-1])
