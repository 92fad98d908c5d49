"""The JSON of a store as typed values: what a field may hold, and conversion with errors that name the field."""

import json
import re
import sys
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from elmo_store.storage.json_values import convert

Json = str | int | float | bool | None
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Number = Annotated[
    float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)
]  # neither infinite nor NaN
Name = Annotated[str, Meta(min_length=1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Crc32c = Annotated[str, Meta(pattern="^[0-9a-f]{8}$", max_length=8)]
SHOWN_CHARACTERS = 80  # of a value in a message

T = TypeVar("T")


def converted(value: Any, kind: type[T]) -> T:
    """``value``, as JSON is parsed, as the dataclass ``kind``; members that ``kind`` does not name are ignored.

    Raises:
        ValueError: a member is missing (in ``kind`` it may have a default) or of a wrong type; names the member, shows its value.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
        result = convert(value, kind)
    except UnicodeEncodeError as error:  # JSON's escapes can make strings that UTF-8 has not
        before = error.object[max(0, error.start - SHOWN_CHARACTERS) : error.start]
        raise ValueError(f"half a surrogate pair, which is not text, follows {before!r}") from error
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        path = path.strip("`.")
        raise ValueError(
            f"{path} is {_at(value, path)!r:.{SHOWN_CHARACTERS}}: {reason}" if path else reason
        ) from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    if missing := [field.name for field in fields(kind) if field.name not in value]:  # type: ignore[arg-type]
        raise ValueError(f"{missing[0]} is missing")
    return result


def _at(value: Any, path: str) -> Any:
    """The value at a path of msgspec's; ``[...]``, which stands for any member of an object, is that object."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name or int(index)]
    return value
