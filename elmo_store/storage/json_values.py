"""JSON as it is stored, and as typed values by msgspec.

msgspec 0.22 describes a type when it first meets it, and crashes the process where two threads meet it at once. So each type is
met here first, by one thread at a time, before anything is converted to it.
"""

import json
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

MOST_JSON_BYTES = 1 << 26  # Python's values take some twenty times as much
T = TypeVar("T")
_MEETING = threading.Lock()
os.register_at_fork(
    before=_MEETING.acquire, after_in_parent=_MEETING.release, after_in_child=_MEETING.release
)


def encoded_json(value: Any) -> bytes:
    """``value`` as JSON in UTF-8, keys in the order given, with two spaces of indent."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_json(data: bytes) -> Any:
    """The value of JSON in UTF-8. ValueError for anything else, or values nested too deeply."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def _new_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    with _MEETING:
        return msgspec.json.Decoder(kind)


_decoder: "Callable[[Any], msgspec.json.Decoder[Any]]" = cache(_new_decoder)


def convert(value: Any, kind: type[T]) -> T:
    """``value``, as JSON is parsed, as ``kind``. msgspec.ValidationError."""
    _decoder(kind)
    return msgspec.convert(value, kind)


def decode(data: bytes, kind: type[T]) -> T:
    """JSON as ``kind``. msgspec.DecodeError; msgspec.ValidationError, which is one."""
    value: T = _decoder(kind).decode(data)
    return value


def decode_lines(data: bytes, kind: type[T]) -> list[T]:
    """Lines of JSON as values of ``kind``. Errors as `decode`'s."""
    values: list[T] = _decoder(kind).decode_lines(data)
    return values
