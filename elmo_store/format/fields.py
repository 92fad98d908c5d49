"""Kept fields: columns of ``sentences/`` that the input's records brought; their types as JSON and as Arrow, and their names.

A type is the name of a plain one, ``[TYPE]`` for a list, or ``{"key": TYPE, …}`` for an object.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from elmo_store.format import layout
from elmo_store.format.typed import Name

PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
SENTENCE, TOKEN = "sentence", "token"
MOST_DEPTH = 32  # levels of a type
# Columns of sentences, of rows, of parts that are not numbered yet, and entries of a batch for PyTorch: fields stand beside them.
OWN_NAMES = frozenset((*layout.SENTENCES_SCHEMA.names, *layout.DOCUMENT_SCHEMA.names, layout.TEXT.name, *layout.ROW_COLUMNS)) | {
    "ordinal", "within", "document_start", "index", "states", "scale", "mask",
}  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^.,=\x00-\x1f\ud800-\udfff]{1,200}")


@dataclass(frozen=True)
class KeptField:
    """A column of sentences: its name, what the input calls it, its type, and whether that is of a sentence or of each token."""

    name: Name
    field: str
    type: Any
    per: Annotated[str, Meta(pattern=f"^({SENTENCE}|{TOKEN})$")]

    @property
    def column(self) -> pa.Field:
        """The column; null where a record has none."""
        kind = arrow_type(self.type)
        return pa.field(self.name, _list_of(kind) if self.per == TOKEN else kind)

    @property
    def asked(self) -> str:
        """As it is asked for: NAME or NAME=COLUMN."""
        return self.field if self.field == self.name else f"{self.field}={self.name}"

    def __str__(self) -> str:
        return f"{self.name} ({described(self.type)}{', one a token' if self.per == TOKEN else ''})"


def arrow_type(kind: Any, depth: int = 0) -> pa.DataType:
    """The Arrow type of a type as JSON. ValueError for what is none."""
    if depth > MOST_DEPTH:
        raise ValueError(f"a field's type is nested deeper than {MOST_DEPTH} levels")
    if isinstance(kind, str) and kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, list | tuple) and len(kind) == 1:
        return _list_of(arrow_type(kind[0], depth + 1))
    if isinstance(kind, dict) and kind:
        if lone := next(filter(_SURROGATE.search, kind), None):
            raise ValueError(
                f"{lone!r:.250}, a key of an object, holds a surrogate, which no column can: keep other fields"
            )
        return pa.struct(
            [pa.field(name, arrow_type(inner, depth + 1)) for name, inner in kind.items()]
        )
    raise ValueError(
        f"{kind!r:.80} is not a type of a field: known are {', '.join(PLAIN)}, lists and objects of these"
    )


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def described(kind: Any) -> str:
    """A type for people to read."""
    if isinstance(kind, dict):
        return "{" + ", ".join(f"{name}: {described(inner)}" for name, inner in kind.items()) + "}"
    return kind if isinstance(kind, str) else f"list of {described(kind[0])}"


def check_fields(fields: Sequence[KeptField]) -> None:
    """ValueError, with the remedy, unless the fields can be columns of one table; its readers may not tell case apart."""
    known: dict[str, str] = {}
    for field in fields:
        name = field.name
        if name.casefold() in OWN_NAMES:
            reason = "the store has a column of that name itself"
        elif not _NAME.fullmatch(name):
            reason = "a column's name has up to 200 characters, none of them . , = a control character or a surrogate"
        elif name.casefold() in known:
            reason = f"there is {known[name.casefold()]!r} already"
        else:
            known[name.casefold()] = name
            arrow_type(field.type)
            continue
        raise ValueError(
            f"the field {field.field!r:.250} can't be kept as {name!r:.250} ({reason}): rename it, {field.field[:80]}=new_name"
        )


def sentences_schema(fields: Sequence[KeptField], *, text: bool = False) -> pa.Schema:
    """All columns of sentences as they are written."""
    columns = [*layout.SENTENCES_SCHEMA, *layout.DOCUMENT_SCHEMA, *([layout.TEXT] if text else [])]
    return pa.schema([*columns, *(field.column for field in fields)])
