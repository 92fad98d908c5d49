"""Tokenizers by name: how a string becomes tokens, with a version that the store records.

``whitespace`` splits on ASCII spaces and tabs, nothing else; for text that is tokenised already. ``unicode`` splits on every
character that Unicode calls white space, as `allennlp elmo` and bilm-tf do (`str.split`). ``ptb`` is of `transforms.text.ptb`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from transforms.inputs.records import FIELD_FORMATS, ReadSettings
from transforms.text import ptb

Tokenize = Callable[[str], list[str]]


def whitespace(text: str) -> list[str]:
    """Tokens between ASCII spaces and tabs; no other separator splits."""
    return [token for token in text.replace("\t", " ").split(" ") if token]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: for a string that may hold several sentences, and for one sentence."""

    record: Tokenize
    sentence: Tokenize


def name_for(name: str, input_format: str) -> str:
    """The tokenizer that ``name`` means for a format: ``auto`` is whitespace for lines, ptb for strings of other formats."""
    if name == "auto":
        return "whitespace" if input_format == "lines" else "ptb"
    return name


_BY_NAME: Mapping[str, Tokenizer] = {
    "ptb": Tokenizer(ptb.record_tokens, ptb.sentence_tokens),
    "whitespace": Tokenizer(whitespace, whitespace),
    "unicode": Tokenizer(str.split, str.split),
}


def get(name: str, input_format: str) -> Tokenizer:
    """Return the tokenizer that ``name`` means for a format. ValueError for a name that is none."""
    tokenizer = _BY_NAME.get(name_for(name, input_format))
    if tokenizer is None:
        raise ValueError(f"tokenizer is {name!r}; known are {', '.join(_BY_NAME)}")
    return tokenizer


def describe(settings: ReadSettings, input_format: str) -> str:
    """Name and versions for the store's record, such as ``ptb/1+nltk 3.10.4``; the words of CoNLL are taken ``as given``."""
    if input_format in ("conllu", "conll"):
        return "as given"
    name, nltk = name_for(settings.tokenizer, input_format), f"nltk {version('nltk')}"
    if name == "ptb":  # its version speaks for the splitting of sentences too
        return f"ptb/1+{nltk}"
    splits = input_format == "text" or (settings.split_sentences and input_format in FIELD_FORMATS)
    return f"sentences/1+{nltk} {name}/1" if splits else f"{name}/1"
