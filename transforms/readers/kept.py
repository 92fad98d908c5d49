"""What sentences keep of their record's fields: values as their columns' types take them.

A type is found in a sample (`transforms.readers.field_sample`); a value that does not fit it makes its record a reject. Text fits
a number, a boolean, a date or a time that it spells; whatever is kept as a string and is none becomes its JSON.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

from elmo_store.format.fields import TOKEN, KeptField, described
from transforms.inputs.records import ReadSettings
from transforms.readers.lines import Refused

INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
FLOAT = re.compile(
    r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
)  # no more digits than a float keeps
BOOLEANS = {"true": True, "false": False, "True": True, "False": False}
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
SHOWN_CHARACTERS = 100  # of a value in a reason


class Twice:
    """What stands for the value of a name that a JSON object has twice: no reader can know which one is meant."""


TWICE = Twice()


class KeptFields:
    """The kept fields of one record."""

    def __init__(self, values: Mapping[str, Any], settings: ReadSettings) -> None:
        """Refused for a value that does not fit its field."""
        self._fields = settings.fields
        self._values = [
            values.get(field.field)
            if field.per == TOKEN
            else _fitted(values.get(field.field), field)
            for field in self._fields
        ]

    def of(self, tokens: Sequence[str], within: int | None = None) -> tuple[Any, ...]:
        """What a sentence with these tokens keeps; ``within``: its number in a document that is tokenised already.

        Refused for a list that is not as long as the tokens.
        """
        return tuple(
            self._of_tokens(value, field, len(tokens), within) if field.per == TOKEN else value
            for value, field in zip(self._values, self._fields, strict=True)
        )

    def _of_tokens(self, value: Any, field: KeptField, n_tokens: int, within: int | None) -> Any:
        if within is not None and isinstance(value, list):
            value = value[within] if within < len(value) else []
        if isinstance(value, list) and len(value) != n_tokens:
            raise _misfit(f"{len(value)} values for {n_tokens} tokens", field)
        return _fitted(value, field, [field.type])


def _fitted(value: Any, field: KeptField, kind: Any = None) -> Any:
    try:
        return fitted(value, field.type if kind is None else kind)
    except (ValueError, OverflowError) as error:
        raise _misfit(str(error), field) from error


def _misfit(reason: str, field: KeptField) -> Refused:
    return Refused(
        f"field {field.field!r} does not fit its column ({described(field.type)}): {reason}"
    )


def fitted(value: Any, kind: Any) -> Any:
    """``value`` as a column of this type takes it; None stays None. ValueError, OverflowError for one that does not fit."""
    if value is None:
        return None
    if isinstance(kind, list):
        if isinstance(value, list | tuple):
            return [fitted(inner, kind[0]) for inner in value]
    elif isinstance(kind, dict):
        if isinstance(value, dict):  # what the sample did not have is not kept
            return {name: fitted(value.get(name), inner) for name, inner in kind.items()}
    elif (fits := _FIT[kind](value)) is not None:
        return fits
    raise ValueError(f"{text_of(value)!r:.{SHOWN_CHARACTERS}} is no {described(kind)}")


def text_of(value: Any) -> str:
    """Return a value as text: a string as it is, a date or a time in ISO 8601, others as JSON.

    ValueError for what is not UTF-8, and for `TWICE`.
    """
    if value is TWICE:
        raise ValueError("the object has this name twice")
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, date | time):
        return value.isoformat()
    is_json = isinstance(value, bool | int | float | list | tuple | dict)
    text = json.dumps(value, ensure_ascii=False, default=text_of) if is_json else str(value)
    text.encode()
    return text


def _boolean(value: Any) -> bool | None:
    return (
        value
        if isinstance(value, bool)
        else BOOLEANS.get(value)
        if isinstance(value, str)
        else None
    )


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        value = int(value) if INTEGER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if -(2**63) <= value < 2**63 else None


def _float(value: Any) -> float | None:
    """None of whole numbers that a float can't hold exactly, too: some above 2^53."""
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, str):
        return float(value) if FLOAT.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return None if isinstance(value, int) and number != value else number


def _date(value: Any) -> date | None:
    if isinstance(value, str):
        return date.fromisoformat(value) if DATE.fullmatch(value) else None
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _timestamp(value: Any) -> datetime | None:
    """In UTC, which a time without a zone is taken to be in, and a date's midnight."""
    if isinstance(value, str) and (TIMESTAMP.fullmatch(value) or DATE.fullmatch(value)):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_FIT = {
    "bool": _boolean,
    "int64": _integer,
    "float64": _float,
    "string": text_of,
    "date": _date,
    "timestamp": _timestamp,
}
