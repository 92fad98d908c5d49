"""The format ``parquet``: a column with strings, lists of tokens or lists of these, perhaps one with ids (strings or integers).

What becomes of a row's fields: `transforms.readers.fields`; null is refused. Position = number of the row within the split,
from 0. Row groups are streamed in small batches, so that neither a file nor a row group is held. Counted as read are the values,
as Arrow holds them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.storage.failures import translated_errors
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings
from transforms.readers.fields import Fields, RawRecord, check_names, fields_of

BATCH_ROWS = 1024
BUFFER_BYTES = 1 << 20


def parquet_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord]:
    """The fields of each row of the split's row groups: text, id and those to keep. Times are cut to microseconds."""
    if source.split.identity.size == 0:
        return
    positions = count()
    for batch in _batches(source, settings):
        source.bytes_read += batch.nbytes
        names = batch.schema.names
        for row in zip(*map(_values, batch.columns), strict=True):
            yield RawRecord(next(positions), dict(zip(names, row, strict=True)))


def parquet_names(source: ByteSource) -> list[str]:
    """The fields of a file."""
    with source.open() as opened, _input_errors(source.url):
        return list(pq.ParquetFile(opened).schema_arrow.names)


def row_group_bytes(url: str, opened: Any, settings: ReadSettings) -> list[int]:
    """Stored bytes of each row group of an opened file. InputError if it is damaged or lacks the wanted fields."""
    with _input_errors(url):
        file = pq.ParquetFile(opened)
        check_fields(url, file.schema_arrow, settings)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]


def check_fields(url: str, schema: pa.Schema, settings: ReadSettings) -> Fields:
    """The fields to read. InputError unless ``schema`` has them: a string, a list of strings or of such lists; an id."""
    fields = fields_of({field.name: [] if _is_list(field.type) else None for field in schema}, settings)
    check_names(url, schema.names, fields)
    text = kind = schema.field(fields.text).type
    for _ in range(2):
        text = text.value_type if _is_list(text) else text
    if not _is_string(text):
        raise InputError(
            url, f"its field {fields.text!r} is {kind}, not a string or a list of strings: name another with --text-field"
        )
    kind = schema.field(fields.own_id).type if fields.own_id else pa.string()
    if not (_is_string(kind) or pa.types.is_integer(kind)):
        raise InputError(url, f"its field {fields.own_id!r} is {kind}, not a string or an integer: name another with --id-field")
    return fields


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in tests)


def _values(column: pa.Array) -> list[Any]:
    """Values of a column; a string that is not UTF-8 comes as bytes."""
    column = column.cast(_readable(column.type), safe=False)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast(_readable(column.type, text=pa.large_binary())).to_pylist()]


def _decoded(value: Any) -> Any:
    """A value with its bytes as strings, where they are UTF-8."""
    if isinstance(value, list):
        return [_decoded(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _decoded(inner) for name, inner in value.items()}
    with suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else value
    return value


def _readable(kind: pa.DataType, text: pa.DataType | None = None) -> pa.DataType:
    """A type whose values Python has: it knows no nanoseconds. ``text``: in place of types of strings."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if text is not None and _is_string(kind):
        return text
    if _is_list(kind):
        return pa.large_list(kind.value_field.with_type(_readable(kind.value_type, text)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type, text)) for field in kind])
    return kind


def _batches(source: ByteSource, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    with source.open() as opened, _input_errors(source.url):
        file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES)
        fields = check_fields(source.url, file.schema_arrow, settings)
        wanted = {*fields, *(field.field for field in settings.fields)}
        columns = [name for name in file.schema_arrow.names if name in wanted]
        split, n_groups = source.split, file.metadata.num_row_groups
        groups = range(split.start, split.stop) if split.is_range else range(n_groups)
        # Rows that can't be read have their positions too.
        source.n_positions = sum(file.metadata.row_group(group).num_rows for group in groups)
        for group in groups:
            yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)


@contextmanager
def _input_errors(url: str) -> Iterator[None]:
    try:
        with translated_errors(url):
            yield
    except (pa.ArrowException, OSError) as error:
        # pyarrow's own OSErrors have no number; a filesystem's may pass
        kind = InputError if isinstance(error, OSError) and (type(error) is not OSError or error.errno) else DamagedInputError
        raise kind(url, f"can't be read as Parquet: {type(error).__name__}: {error}") from error
