"""Whether a file with named fields has those that are asked for, before its records are read."""

from collections.abc import Sequence

import pyarrow as pa

from transforms.inputs.records import InputError, ReadSettings
from transforms.readers.fields import DEFAULT_TEXT_FIELD
from transforms.readers.lines import wide_encoding

NAMES_SHOWN, NAME_SHOWN = 30, 100  # of a file's fields, and characters of each: in another format a name may be a whole line


def check_names(url: str, names: Sequence[str], settings: ReadSettings) -> None:
    """InputError unless ``names`` has the text field and the id field."""
    wanted = [("--text-field", settings.text_field or DEFAULT_TEXT_FIELD)]
    wanted += [("--id-field", settings.id_field)] if settings.id_field else []
    for option, name in wanted:
        if name not in names:
            if wide := wide_encoding("".join(names[:1]).encode("utf-8", "surrogateescape")):
                raise InputError(url, f"the text is {wide}, not UTF-8: read it with --encoding {wide.lower()}")
            shown = ", ".join(repr(one[:NAME_SHOWN]) for one in names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
            raise InputError(url, f"it has no field {name!r}, but {shown}: name one with {option}")


def check_fields(url: str, schema: pa.Schema, settings: ReadSettings) -> None:
    """InputError unless ``schema`` has the text field (string or list of strings) and the id field (string or integer)."""
    check_names(url, schema.names, settings)
    text_field = settings.text_field or DEFAULT_TEXT_FIELD
    kind = schema.field(text_field).type
    inner = kind.value_type if _is_list(kind) else kind
    if not _is_string(inner):
        raise InputError(
            url, f"its field {text_field!r} is {kind}, not a string or a list of strings: name another with --text-field"
        )
    if settings.id_field:
        kind = schema.field(settings.id_field).type
        if not (_is_string(kind) or pa.types.is_integer(kind)):
            raise InputError(
                url, f"its field {settings.id_field!r} is {kind}, not a string or an integer: name another with --id-field"
            )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)):
        return True
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
