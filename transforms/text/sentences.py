"""Running text into sentences, paragraph by paragraph, in bounded memory and linear time.

Sentences are NLTK's Punkt with the abbreviations listed here, so that no data is downloaded or learned. Punkt gives offsets, and
agrees best with how the packaged model's training text was split: precision/recall of boundaries in 4,000 held-out paragraphs
0.993/0.997, of sentencex 0.97/0.90, of syntok 0.97/0.99.

A paragraph is split in windows: of each the last sentence, which may go on, is carried into the next, unless the window has no
other; so every character is split at most twice.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from typing import Any

from transforms.text.looks import line_ends

MAX_SENTENCE_TOKENS = 512  # of running text; a longer sentence is cut
WINDOW = 1 << 16  # characters of a paragraph that are split at a time
_TITLES = """mr mrs ms dr drs prof profs sr jr st gen col capt lt sgt maj brig cmdr adm pvt cpl supt insp det rev hon sen rep gov
pres messrs mme mlle esq mt ft fr bros"""
_LATIN = "e.g i.e etc vs viz cf ca al ibid op cit approx resp n.b"
_PARTS = "fig figs eq eqs vol vols nos p pp ch sec ed eds art arts ref refs trans dept univ inc ltd co corp ave blvd rd sq dist"
_TIMES = "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m b.c a.d"
_INITIALS = "u.s u.k u.n d.c n.y l.a ph.d m.d b.a m.a b.sc m.sc"
# After an abbreviation these words begin a sentence nevertheless.
_STARTING = """the a an in on at it he she they we i you this that these those there then but and so if when while as for from by
to with after before although though however his her their our my its who what where why how yes now one some many most all each
since during because once here both such another other later meanwhile moreover thus let"""
_STARTERS = frozenset(_STARTING.split())
_GOES_ON = re.compile(r"[\"'\u201c\u2018(\[]*[a-z.,;:!?)\]\u2026]")
_NUMBER = re.compile(r"[Nn]o\.")  # "No. 5", but "No. Never."
_DOTTED = re.compile(r"[\"'\u201c\u2018(\[]*(?:[A-Za-z]\.){2,}")
_ITEM = re.compile(r"[0-9]{1,2}\.")  # "1. Item"
_FIRST_WORD = re.compile(r"\W*(\w*)")


def without_time_limit() -> None:
    """Lift the limit of 5 seconds of CPU time (of all threads) that NLTK 3.10 puts on each search of its own linear patterns.

    What a text becomes must not depend on how long it is or on how busy the machine is.
    """
    import nltk

    redos = getattr(nltk, "redos", None)
    if redos is not None:
        redos.DEFAULT_TIMEOUT = None


@cache
def _punkt() -> Any:
    from nltk.tokenize.punkt import (
        PunktParameters,
        PunktSentenceTokenizer,
    )  # slow to import: only where text is split

    without_time_limit()
    parameters = PunktParameters()
    parameters.abbrev_types = set(" ".join((_TITLES, _LATIN, _PARTS, _TIMES, _INITIALS)).split())
    parameters.sent_starters = set(_STARTERS)
    return PunktSentenceTokenizer(parameters)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and stop of each sentence in ``text`` (characters, white space between sentences left out), in order.

    What begins in lower case or with a stop goes on with the sentence before it (``"What?" he said.`` is one); so does
    what follows the number of an item, ``No.`` before a number, and dotted initials but for words that often begin a
    sentence.
    """
    spans: list[tuple[int, int]] = []
    for start, stop in _punkt().span_tokenize(text):
        if spans and _goes_on(text, spans[-1], start):
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


def _goes_on(text: str, before: tuple[int, int], start: int) -> bool:
    """Whether the sentence ``before`` goes on with what begins at ``start``."""
    if _GOES_ON.match(text, start) or _ITEM.fullmatch(text, *before):
        return True
    last = text[max(before[0], before[1] - 24) : before[1]].split()[-1]
    if _NUMBER.fullmatch(last):
        return text[start].isdigit()
    first = _FIRST_WORD.match(text, start)
    return bool(_DOTTED.fullmatch(last) and first and first[1].lower() not in _STARTERS)


class Paragraph:
    """Text of a paragraph that is not split yet, with the line on which each character of it stood."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._lines: list[
            tuple[int, int]
        ] = []  # the character at which each line begins, and its number
        self.length = 0

    def add(self, line: str, number: int) -> None:
        self._lines.append((self.length, number))
        self._text.append(line + " ")
        self.length += len(line) + 1

    def is_full(self) -> bool:
        return self.length >= WINDOW

    def sentences(self, *, whole: bool) -> Iterator[tuple[str, int]]:
        """Take out sentences with the line each begins on: all of them, or (not ``whole``) all but the last, which may go on."""
        text = "".join(self._text)
        spans = sentence_spans(text)
        end = len(text)
        if not whole and len(spans) > 1 and len(text) - spans[-1][0] <= len(text) // 2:
            end = spans.pop()[0]
        sentences = [(text[start:stop], self._line_at(start)) for start, stop in spans]
        later = [(start - end, number) for start, number in self._lines if start > end]
        self._lines = [(0, self._line_at(end)), *later] if end < len(text) else []
        self._text, self.length = [text[end:]], len(text) - end
        yield from sentences

    def _line_at(self, character: int) -> int:
        return self._lines[max(bisect_right(self._lines, character, key=itemgetter(0)) - 1, 0)][1]


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


def bounded(tokens: list[str]) -> Iterator[tuple[str, ...]]:
    """``tokens`` as sentences of at most `MAX_SENTENCE_TOKENS`; none for none."""
    for first in range(0, len(tokens), MAX_SENTENCE_TOKENS):
        yield tuple(tokens[first : first + MAX_SENTENCE_TOKENS])
