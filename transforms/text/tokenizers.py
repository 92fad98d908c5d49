"""Tokenizers by name: how a string becomes tokens, with a version that the store records.

``whitespace`` splits on ASCII spaces and tabs, nothing else; for text that is tokenised already. ``unicode`` splits on every
character that Unicode calls white space, as `allennlp elmo` and bilm-tf do (`str.split`). ``ptb`` Penn Treebank rules as
the 1-Billion-Word benchmark has them, which is also how the packaged model's training text was made: ``do n't``, ``John 's``,
brackets as they are, ``"`` for every double quote, straight single quotes with an opening one as a token of its own, ``--`` for
dashes, ``...`` for an ellipsis, a full stop always split off at the end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from transforms.inputs.records import FIELD_FORMATS
from transforms.text.sentences import sentence_spans, without_time_limit

Tokenize = Callable[[str], list[str]]

AUTO = "auto"

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
# Words that begin with an apostrophe: there it is no opening quote.
_CLIPPED = "tis|twas|twere|twill|twould|em|til|till|cause|bout|n|s|d|ll|re|ve|m|t|im|er|un|neath|gainst|mid|midst|round|way|o"
_OPENING = re.compile(rf"(?<![\w.'])'(?=[a-z])(?!(?:{_CLIPPED})\b)", re.IGNORECASE)


def whitespace(text: str) -> list[str]:
    """Tokens between ASCII spaces and tabs; no other separator splits."""
    return [token for token in text.replace("\t", " ").split(" ") if token]


def unicode_whitespace(text: str) -> list[str]:
    """Tokens between white space of any kind: U+00A0, U+2009, U+3000, U+2028, U+0085, U+001C … too."""
    return text.split()


@cache
def _treebank() -> Tokenize:
    from nltk.tokenize import NLTKWordTokenizer  # seconds to import: only where text is tokenised

    without_time_limit()
    tokenize: Tokenize = NLTKWordTokenizer().tokenize
    return tokenize


def ptb_sentence(text: str) -> list[str]:
    """Tokens of one sentence of running text, after the Penn Treebank and the 1-Billion-Word benchmark."""
    text = _SPACED_EN_DASH.sub(" -- ", text).translate(_CHARACTERS)
    text = _SPACED_DOTS.sub(" ... ", text)
    text = text.replace("``", '"').replace("''", '"')
    text = _STOP_IN_QUOTES.sub(" . ", text)
    text = _OPENING.sub("' ", text)
    return ['"' if token in ("``", "''") else token for token in _treebank()(text)]


def ptb(text: str) -> list[str]:
    """Tokens of a record of running text; where it holds several sentences, the full stop of each is a token."""
    return [token for start, stop in sentence_spans(text) for token in ptb_sentence(text[start:stop])]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: for a string that may hold several sentences, and for one sentence."""

    record: Tokenize
    sentence: Tokenize


_TOKENIZERS = {
    "ptb": Tokenizer(ptb, ptb_sentence),
    "whitespace": Tokenizer(whitespace, whitespace),
    "unicode": Tokenizer(unicode_whitespace, unicode_whitespace),
}
NAMES = tuple(_TOKENIZERS)


def name_for(name: str, input_format: str) -> str:
    """The tokenizer that ``name`` means for a format: ``auto`` is whitespace for lines, ptb for strings of other formats.

    ValueError for a name that is not in `NAMES`.
    """
    if name == AUTO:
        return "whitespace" if input_format == "lines" else "ptb"
    if name not in _TOKENIZERS:
        raise ValueError(f"there is no tokenizer {name!r}: take one of {', '.join((AUTO, *NAMES))}")
    return name


def get(name: str, input_format: str) -> Tokenizer:
    """The tokenizer of `name_for`."""
    return _TOKENIZERS[name_for(name, input_format)]


def describe(name: str, input_format: str, *, split_sentences: bool = True) -> str:
    """Name and versions for the store's record, such as ``ptb/1+nltk 3.10.4``; the words of CoNLL are taken ``as given``."""
    if input_format in ("conllu", "conll"):
        return "as given"
    name, nltk = name_for(name, input_format), f"nltk {version('nltk')}"
    if name == "ptb":  # its version speaks for the splitting of sentences too
        return f"ptb/1+{nltk}"
    splits = input_format == "text" or (split_sentences and input_format in FIELD_FORMATS)
    return f"sentences/1+{nltk} {name}/1" if splits else f"{name}/1"
