"""Records with named fields → sentences: what JSON lines, JSON arrays, CSV and Parquet have in common.

A string is a document: it is split into sentences with the ids ``DOC:0``, ``DOC:1``, … (DOC is the record's own id, or
``FILE:POSITION``); with ``split_sentences=False`` it is one sentence whatever it holds, with the id DOC. A list is one
tokenised sentence, taken as it is, with the id DOC. A document without a token is a sentence of zero tokens, so that every
record has its place.
"""

from collections.abc import Iterator
from typing import Any

from transforms.inputs.records import ReadSettings, Record, Reject, Sentence
from transforms.readers.lines import RAW_BYTES, cut_raw
from transforms.text.paragraphs import bounded, document_sentences
from transforms.text.tokenizers import Tokenizer

DEFAULT_TEXT_FIELD = "text"


class Refused(ValueError):
    """Why a record can't be used."""


def text_field(settings: ReadSettings) -> str:
    """The field that holds the text."""
    return settings.text_field or DEFAULT_TEXT_FIELD


def field_records(
    values: dict[str, Any], position: int, settings: ReadSettings, tokenizer: Tokenizer, raw: str | None = None
) -> Iterator[Record]:
    """The sentences of a record, or one reject. ``raw``: how a reject shows it; None = by its text field."""
    own, field = "", text_field(settings)
    try:
        if settings.id_field:
            own = id_of(_field(values, settings.id_field, "id field"), settings.id_field)
        value = _field(values, field, "field")
        if isinstance(value, str):
            _check(value, f"field {field!r}")
            yield from document(value, own, position, settings, tokenizer)
        else:
            yield Sentence(tokens_of(value, field), own, position)
    except Refused as error:
        if raw is None:
            shown = values.get(field)
            raw = cut_raw(shown if isinstance(shown, bytes) else str(shown)[:RAW_BYTES].encode("utf-8", "backslashreplace"))
        yield Reject(position, str(error), raw, own)


def document(text: str, own: str, position: int, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Sentence]:
    """The sentences of a string."""
    if not settings.split_sentences:
        yield Sentence(tuple(tokenizer.record(text)), own, position)
        return
    within = 0
    for sentence in document_sentences(text, settings.line_ends):
        for tokens in bounded(tokenizer.sentence(sentence), settings.max_sentence_tokens):
            yield Sentence(tokens, own, position, within=within)
            within += 1
    if not within:
        yield Sentence((), own, position, within=0)


def _field(values: dict[str, Any], name: str, what: str) -> Any:
    if name not in values:
        raise Refused(f"{what} {name!r} is missing")
    return values[name]


def tokens_of(value: Any, field: str) -> tuple[str, ...]:
    """A list of strings as tokens. Refused for anything else."""
    if not isinstance(value, list):
        raise Refused(f"field {field!r} is {kind_of(value)}, not a string or a list of strings")
    for i, token in enumerate(value):
        if not isinstance(token, str):
            raise Refused(f"token {i} of field {field!r} is {kind_of(token)}, not a string")
        if not token:
            raise Refused(f"token {i} of field {field!r} is an empty string")
        _check(token, f"token {i} of field {field!r}")
    return tuple(value)


def id_of(value: Any, field: str) -> str:
    """An id as a string: strings as they are, integers in decimal. Refused for anything else and for an empty string."""
    if isinstance(value, str):
        if not value:
            raise Refused(f"id field {field!r} is empty")
        _check(value, f"id field {field!r}")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Refused(f"id field {field!r} is {kind_of(value)}, not a string or an integer")


def _check(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if 0xDC80 <= ord(text[error.start]) <= 0xDCFF:  # a byte that was let through to be refused here
            raise Refused(f"{what} has invalid UTF-8 (0x{ord(text[error.start]) - 0xDC00:02x})") from error
        raise Refused(f"{what} has half a surrogate pair (U+{ord(text[error.start]):04X}), which no UTF-8 can hold") from error
    if "\0" in text:
        raise Refused(f"{what} has a NUL character")


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
        bytes: "binary",
    }
    return names.get(type(value), type(value).__name__)
