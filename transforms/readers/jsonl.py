"""The format ``jsonl``: one JSON object a line, with a string or a list of tokens in the text field, and perhaps an id.

May import transforms.records, transforms.decompress, transforms.tokenizers and the line reader.

One line is one record is one sentence of the store: a string is tokenised whole, however many sentences it holds (split
documents beforehand, or give them as ``text``), a list is taken as it is. An empty string or list is a sentence of zero
tokens, as a blank line is in ``lines``; a blank line here is refused, for it is not JSON. Position = number of the line,
from 0.
"""

import json
from collections.abc import Iterator
from typing import Any

from transforms.decompress import ByteSource
from transforms.readers.lines import cut_raw, lines_of, text_of
from transforms.records import Piece, ReadSettings, Record, Reject, Sentence
from transforms.tokenizers import Tokenize


class Refused(ValueError):
    """Why a record can't be used."""


def tokens_of(value: Any, field: str, tokenize: Tokenize) -> tuple[str, ...]:
    """Tokens of a text field's value, a string or a list of strings. Refused for anything else."""
    if isinstance(value, str):
        _check(value, f"field {field!r}")
        return tuple(tokenize(value))
    if not isinstance(value, list):
        raise Refused(f"field {field!r} is {_kind(value)}, not a string or a list of strings")
    for i, token in enumerate(value):
        if not isinstance(token, str):
            raise Refused(f"token {i} of field {field!r} is {_kind(token)}, not a string")
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
    raise Refused(f"id field {field!r} is {_kind(value)}, not a string or an integer")


def _check(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{what} has half a surrogate pair (U+{ord(text[error.start]):04X}), which no UTF-8 can hold") from error
    if "\0" in text:
        raise Refused(f"{what} has a NUL character")


def _kind(value: Any) -> str:
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


def read_jsonl(source: ByteSource, piece: Piece, settings: ReadSettings, tokenize: Tokenize) -> Iterator[Record]:
    """One record a line."""
    for position, line in enumerate(lines_of(source, piece, settings.max_line_bytes)):
        text = text_of(line, position, settings.max_line_bytes)
        if isinstance(text, Reject):
            yield text
            continue
        own = ""
        try:
            value = _parsed(text)
            own = _own_id(value, settings.id_field)
            yield Sentence(_tokens(value, settings.text_field, tokenize), own, position)
        except Refused as error:
            yield Reject(position, str(error), cut_raw(text.encode()), own)


def _parsed(text: str) -> dict[str, Any]:
    if not text.strip():
        raise Refused("the line is blank: not JSON")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise Refused("JSON nested too deeply") from error
    except ValueError as error:  # also a number of more digits than Python converts
        raise Refused(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused(f"the line is {_kind(value)}, not a JSON object")
    return value


def _own_id(value: dict[str, Any], field: str) -> str:
    if not field:
        return ""
    if field not in value:
        raise Refused(f"id field {field!r} is missing")
    return id_of(value[field], field)


def _tokens(value: dict[str, Any], field: str, tokenize: Tokenize) -> tuple[str, ...]:
    if field not in value:
        raise Refused(f"field {field!r} is missing")
    return tokens_of(value[field], field, tokenize)
