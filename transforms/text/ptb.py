"""Penn Treebank tokens of running text, as the 1-Billion-Word benchmark has them.

The tokens are by definition those of `tokens_by_rules`: ``do n't``, ``John 's``, brackets as they are, ``"`` for every double
quote, straight single quotes with an opening one as a token of its own, ``--`` for dashes, ``...`` for an ellipsis, a full stop
always split off at the end. That is thirty searches of the whole sentence. Where the shape of every word says which tokens it
is (`_PLAIN`), as in most sentences, they are spared. The tests hold this against the rules (`tests/transforms/test_ptb.py`).
"""

import re
from collections.abc import Callable
from functools import cache

from transforms.text.sentences import sentence_spans, without_time_limit

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys(
            "\u2010\u2011\u2212\u2013", "-"
        ),  # an en dash between spaces was a dash before this is asked
        **dict.fromkeys("\u00a0\u2009\u202f", " "),
        **dict.fromkeys("\u2014\u2015", " -- "),
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
_PART = r"(?!(?i:cannot|gimme|gonna|gotta|lemme|wanna)\b)[^\W_]++"
_PLAIN = re.compile(
    rf"""([(\[{{"$#]*) ({_PART}(?:(?:[./-]|[,:](?=[0-9])){_PART})*\.?) ('[sS])? ([;?!%)\]}}"]*+(?:[,:][;?!%)\]}}"]*+)?)""",
    re.VERBOSE,
)


def sentence_tokens(text: str) -> list[str]:
    """Tokens of one sentence: those of `tokens_by_rules`."""
    *inner, last = text.split(" ")
    ends = last.endswith(".") and not last.endswith("..")
    tokens: list[str] = []
    for piece in (*inner, last[:-1] if ends else last):
        plain = _PLAIN.fullmatch(piece)
        if plain is None:
            return tokens_by_rules(text)
        first, word, clitic, marks = plain.groups("")
        tokens += (*first, word, *([clitic] if clitic else []), *marks)
    if not inner or (
        word.endswith(".") and not ends
    ):  # a quote at the beginning, a full stop at the end
        return tokens_by_rules(text)
    return [*tokens, "."] if ends else tokens


def record_tokens(text: str) -> list[str]:
    """Tokens of a record; where it holds several sentences, the full stop of each is a token."""
    return [
        token for start, stop in sentence_spans(text) for token in sentence_tokens(text[start:stop])
    ]
