"""Typed access to the fields of a JSON object, with errors that name the field."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from elmo_store.errors import ManifestError

Json = str | int | float | bool | None
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Fields:
    """A JSON object at ``where`` (file, and the way to the object in it); every getter raises ManifestError."""

    def __init__(self, value: Any, where: str, path: str = "") -> None:
        self._where, self._path = where, path
        if not isinstance(value, dict):
            raise ManifestError(f"{where}: {path or 'the whole'} is {_kind(value)}, not an object")
        self._value: dict[str, Any] = value

    @property
    def where(self) -> str:
        """The file."""
        return self._where

    def error(self, name: str, problem: str) -> ManifestError:
        """The error that says ``problem`` of field ``name``."""
        return ManifestError(f"{self._where}: {self._path}{name} {problem}")

    def _get(self, name: str) -> Any:
        if name not in self._value:
            raise self.error(name, "is missing")
        return self._value[name]

    def _wrong(self, name: str, wanted: str) -> ManifestError:
        return self.error(name, f"is {_kind(self._value[name])}, not {wanted}")

    def is_null(self, name: str) -> bool:
        """True if the field is there and null."""
        return self._get(name) is None

    def text(self, name: str) -> str:
        """A string."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return self._utf8(name, value)

    def _utf8(self, name: str, value: str) -> str:
        """``value`` if it can be printed and be a name: JSON's escapes can make strings that UTF-8 has not."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(name, f"is {value!r}, which holds half a surrogate pair and is no text") from error
        return value

    def one_of(self, name: str, allowed: Sequence[str]) -> str:
        """A string of ``allowed``."""
        value = self.text(name)
        if value not in allowed:
            raise self.error(name, f"is {value!r}; known are {', '.join(allowed)}")
        return value

    def sha256(self, name: str) -> str:
        """64 lower-case hexadecimal digits."""
        value = self.text(name)
        if not _SHA256.fullmatch(value):
            raise self.error(name, f"is {value!r}, not 64 lower-case hexadecimal digits")
        return value

    def count(self, name: str, at_least: int = 0) -> int:
        """An integer of ``at_least`` or more."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer")
        if not at_least <= value < 2**63:
            raise self.error(name, f"is {str(value)[:40]}; it must be {at_least} or more and below 2^63")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        return _number(self._get(name), self._wrong(name, "a finite number"))

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of different, non-empty strings."""
        value = self._list(name)
        if any(not isinstance(one, str) or not one for one in value) or len(set(value)) != len(value):
            raise self.error(name, f"is {value!r}, not a list of different names")
        return tuple(self._utf8(name, one) for one in value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        wrong = self.error(name, "is not a list of finite numbers")
        return tuple(_number(one, wrong) for one in self._list(name))

    def child(self, name: str) -> "Fields":
        """An object."""
        return Fields(self._get(name), self._where, f"{self._path}{name}.")

    def children(self, name: str) -> list["Fields"]:
        """A list of objects."""
        return [Fields(one, self._where, f"{self._path}{name}[{i}].") for i, one in enumerate(self._list(name))]

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, as it is."""
        value = self._get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return dict(value)

    def texts(self, name: str) -> dict[str, str]:
        """An object whose values are strings."""
        one = self.child(name)
        return {key: one.text(key) for key in one._value}

    def scalars(self, name: str) -> dict[str, Json]:
        """An object whose values are strings, numbers, true, false or null."""
        one = self.child(name)
        for key, value in one._value.items():
            if isinstance(value, dict | list):
                raise one._wrong(key, "a string, a number, true, false or null")
            one._utf8(key, key + str(value))
        return dict(one._value)


def _number(value: Any, wrong: ManifestError) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise wrong
        return float(value)
    except OverflowError as error:  # a whole number beyond every float
        raise wrong from error


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return repr(value)
