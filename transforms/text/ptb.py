"""Penn Treebank tokens of running text, as the 1-Billion-Word benchmark has them: rules, and a table of what they make of words.

The tokens are by definition those of `tokens_by_rules`: ``do n't``, ``John 's``, brackets as they are, ``"`` for every double
quote, straight single quotes with an opening one as a token of its own, ``--`` for dashes, ``...`` for an ellipsis, a full stop
always split off at the end. That is thirty searches of the whole sentence; most words are the same few. So the rules are asked
about a word once, between two others, because none of them looks from a word across a space, but for three things:

- ``. . .`` is one token: where a full stop follows a full stop and a space, the rules read the whole sentence;
- the full stop at the end may stand before brackets, quotes and spaces: from the last piece with a letter or digit on, the rules
  read what is there up to the end;
- a quote or a dash at the very beginning may be another one than after a space: the rules read that piece as the first.

The shape of most words that are new says which tokens they are, without the rules (`_plain_tokens`). A sentence of many other
words that are new (addresses, formulas) is read by the rules as a whole, which is cheaper then. The tests hold all of it against
the rules over the whole sentence (`tests/transforms/test_ptb.py`).
"""

import math
import re
from collections.abc import Callable
from functools import cache
from itertools import chain

from transforms.text.sentences import sentence_spans, without_time_limit

_DOUBLE = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033"
_SINGLE = "\u2018\u2019\u201a\u201b\u2032"
_HYPHEN = "\u2010\u2011\u2212\u2013"  # an en dash between spaces was a dash before this is asked
_SPACE = "\u00a0\u2009\u202f"
_DASH = "\u2014\u2015"
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys(_DOUBLE, '"'),
        **dict.fromkeys(_SINGLE, "'"),
        **dict.fromkeys(_HYPHEN, "-"),
        **dict.fromkeys(_SPACE, " "),
        **dict.fromkeys(_DASH, " -- "),
        "\u2026": " ... ",
    }
)
_SPACED_EN_DASH = re.compile(r"(?<=\s)\u2013(?=\s)")
_SPACED_DOTS = re.compile(r"\.(?: \.){2,}")
_STOP_IN_QUOTES = re.compile(r"(?<=[a-z]{2})\.(?=[\"')\]]+$)")
# Words that begin with an apostrophe: there it is not an opening quote.
_CLIPPED = "tis|twas|twere|twill|twould|em|til|till|cause|bout|n|s|d|ll|re|ve|m|t|im|er|un|neath|gainst|mid|midst|round|way|o"
_OPENING = re.compile(rf"(?<![\w.'])'(?=[a-z])(?!(?:{_CLIPPED})\b)", re.IGNORECASE)


@cache
def _treebank() -> Callable[[str], list[str]]:
    from nltk.tokenize import NLTKWordTokenizer  # seconds to import: only where text is tokenised

    without_time_limit()
    tokenize: Callable[[str], list[str]] = NLTKWordTokenizer().tokenize
    return tokenize


def tokens_by_rules(text: str) -> list[str]:
    """Tokens of one sentence by every rule, ours and then NLTK's."""
    text = _SPACED_EN_DASH.sub(" -- ", text).translate(_CHARACTERS)
    text = _SPACED_DOTS.sub(" ... ", text)
    text = text.replace("``", '"').replace("''", '"')
    text = _STOP_IN_QUOTES.sub(" . ", text)
    text = _OPENING.sub("' ", text)
    return ['"' if token in ("``", "''") else token for token in _treebank()(text)]


# A word with marks that are tokens wherever they stand: letters and digits of any script, single dots, slashes and hyphens
# between them, commas and colons before a digit; none that the Treebank takes apart (can not, gim me).
_CONTRACTIONS = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")
_PART = rf"(?!(?i:{'|'.join(_CONTRACTIONS)})\b)[^\W_]++"
_PLAIN = re.compile(
    rf"""([(\[{{"$#]*) ({_PART}(?:(?:[./-]|[,:](?=[0-9])){_PART})*\.?) ('[sS])? ([;?!%)\]}}"]*+(?:[,:][;?!%)\]}}"]*+)?)""",
    re.VERBOSE,
)
_FINAL_STOP = re.compile(r'(.*[^.])(\.[)\]}"]*+)', re.DOTALL)
_DASHES = re.compile(" *-- *")
_HAS_WORD = re.compile(r"\w")


def _plain_tokens(piece: str, *, is_last: bool) -> list[str] | None:
    """Tokens of a piece without spaces, the last of a text or not, if its shape alone decides them; None otherwise."""
    if piece.isascii():
        if piece.isalnum() and piece.lower() not in _CONTRACTIONS:
            return [piece]
    else:
        piece = piece.translate(_CHARACTERS)
    final = ""
    if is_last and (last := _FINAL_STOP.fullmatch(piece)):
        piece, final = last.groups()
    tokens: list[str] = []
    for part in _DASHES.split(piece) if "--" in piece else (piece,):
        if part:
            plain = _PLAIN.fullmatch(part)
            if plain is None:
                return None
            before, word, clitic, after = plain.groups("")
            tokens += (*before, word, clitic, *after) if clitic else (*before, word, *after)
        tokens.append("--")
    return [*tokens[:-1], *final]


_ODD_PIECES = 3  # of a sentence, put to the rules one by one: about what the whole sentence costs them


class _TooManyOdd(Exception):
    """A sentence has more new pieces for the rules than are worth asking them about one by one."""


class _Table(dict[str, tuple[str, ...]]):
    """Pieces of text → their tokens, where something stands ``before`` and ``after`` them or nothing does.

    It is emptied when it is full, so it follows the text; what it holds never shows in the tokens. ``n_odd_left``: pieces that
    may still be put to the rules; _TooManyOdd at the next one.
    """

    MOST = 1 << 16  # pieces
    LONGEST = 64  # characters of a piece that is kept
    n_odd_left = math.inf

    def __init__(self, before: bool, after: bool) -> None:
        super().__init__()
        self._before, self._after = ["a"] * before, ["a"] * after

    def __missing__(self, piece: str) -> tuple[str, ...]:
        found = _plain_tokens(piece, is_last=not self._after)
        if found is None:
            if not self.n_odd_left:
                raise _TooManyOdd
            self.n_odd_left -= 1
            found = tokens_by_rules(" ".join((*self._before, piece, *self._after)))
            found = found[len(self._before) : len(found) - len(self._after)]
        tokens = tuple(found)
        if len(piece) <= self.LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[piece] = tokens
        return tokens


class PennTreebank:
    """A tokeniser, with tables of what it met."""

    def __init__(self) -> None:
        self._only, self._first = _Table(before=False, after=False), _Table(before=False, after=True)
        self._inner, self._last = _Table(before=True, after=True), _Table(before=True, after=False)

    def sentence(self, text: str) -> list[str]:
        """Tokens of one sentence: those of `tokens_by_rules`."""
        if ". ." in text or text.endswith(" "):
            return tokens_by_rules(text)
        pieces = text.split(" ")
        last = len(pieces) - 1
        while last and not _HAS_WORD.search(pieces[last]):
            last -= 1
        end = " ".join(pieces[last:])
        if not last:
            return list(self._only[end])
        self._inner.n_odd_left = _ODD_PIECES
        try:
            inner = list(chain.from_iterable(map(self._inner.__getitem__, pieces[1:last])))
        except _TooManyOdd:
            return tokens_by_rules(text)
        return [*self._first[pieces[0]], *inner, *self._last[end]]

    def record(self, text: str) -> list[str]:
        """Tokens of a record; where it holds several sentences, the full stop of each is a token."""
        return [token for start, stop in sentence_spans(text) for token in self.sentence(text[start:stop])]
