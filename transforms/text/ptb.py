"""Penn Treebank tokens of running text, as the 1-Billion-Word benchmark has them: rules, and a table of what they make of words.

The tokens are by definition those of `tokens_by_rules`: ``do n't``, ``John 's``, brackets as they are, ``"`` for every double
quote, straight single quotes with an opening one as a token of its own, ``--`` for dashes, ``...`` for an ellipsis, a full stop
always split off at the end. That is thirty searches of the whole sentence; most words are the same few. So the rules are asked
about a word once, between two others, because none of them looks from a word across a space, but for three things:

- ``. . .`` is one token: where a full stop follows a full stop and a space, the rules read the whole sentence;
- the full stop at the end may stand before brackets, quotes and spaces: from the last piece with a letter or digit on, the rules
  read what is there up to the end;
- a quote or a dash at the very beginning may be another one than after a space: the rules read that piece as the first.

The shape of most words that are new says which tokens they are, without the rules (`_PLAIN`). The tests hold all of it against
the rules over the whole sentence (`tests/transforms/test_ptb.py`).
"""

import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
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
_HAS_WORD = re.compile(r"\w")
MOST = 1 << 16  # pieces in each table
LONGEST = 64  # characters of a piece in a table


def _piece_tokens(piece: str, *, before: bool, after: bool) -> list[str]:
    """Tokens of a piece of a sentence, where something stands ``before`` and ``after`` it or nothing does."""
    ends = not after and piece.endswith(".") and not piece.endswith("..")
    if plain := _PLAIN.fullmatch(piece[:-1] if ends else piece):
        first, word, clitic, last = plain.groups("")
        if after or ends or not word.endswith("."):
            return [*first, word, *([clitic] if clitic else []), *last, *(["."] if ends else [])]
    found = tokens_by_rules(" ".join((*["a"] * before, piece, *["a"] * after)))
    return found[before : len(found) - after]


def _table(*, before: bool, after: bool) -> Callable[[str], list[str]]:
    return lru_cache(MOST)(partial(_piece_tokens, before=before, after=after))


class PennTreebank:
    """A tokeniser, with tables of the pieces that it met. What they hold never shows in the tokens."""

    def __init__(self) -> None:
        self._first, self._inner = _table(before=False, after=True), _table(before=True, after=True)
        self._last = _table(before=True, after=False)

    def sentence(self, text: str) -> list[str]:
        """Tokens of one sentence: those of `tokens_by_rules`."""
        pieces = text.split(" ")
        last = len(pieces) - 1
        while last and not _HAS_WORD.search(pieces[last]):
            last -= 1
        if not last or ". ." in text or text.endswith(" ") or max(map(len, pieces)) > LONGEST:
            return tokens_by_rules(text)
        inner = chain.from_iterable(map(self._inner, pieces[1:last]))
        return [*self._first(pieces[0]), *inner, *self._last(" ".join(pieces[last:]))]

    def record(self, text: str) -> list[str]:
        """Tokens of a record; where it holds several sentences, the full stop of each is a token."""
        return [token for start, stop in sentence_spans(text) for token in self.sentence(text[start:stop])]
