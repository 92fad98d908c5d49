"""The format ``parquet``: a column with strings, lists of tokens or lists of these, perhaps one with ids (strings or integers).

What becomes of a row's fields: `transforms.readers.fields`; null is refused. Position = number of the row within the split,
from 0. Row groups are streamed in small batches, so that neither a file nor a row group is held. Counted as read is the share of
the file that its rows are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
        names = batch.schema.names
        for row in zip(*map(_values, batch.columns), strict=True):
            yield RawRecord(next(positions), dict(zip(names, row, strict=True)))


def parquet_names(source: ByteSource, settings: ReadSettings) -> list[str]:
    """Return the names of a file's columns, with any ``settings``."""
    with source.open() as opened, _input_errors(source.url):
        return list(pq.ParquetFile(opened).schema_arrow.names)


def row_group_bytes(url: str, opened: Any, settings: ReadSettings) -> list[int]:
    """Stored bytes of each row group of an opened file. InputError if it is damaged or lacks the wanted fields."""
    with _input_errors(url):
        file = pq.ParquetFile(opened)
        _fields(url, file.schema_arrow, settings)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        return [
            sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            for group in groups
        ]


def _fields(url: str, schema: pa.Schema, settings: ReadSettings) -> Fields:
    """Return the fields to read. InputError unless ``schema`` has them, and those to keep at most once."""
    fields = fields_of(
        {field.name: [] if _is_list(field.type) else None for field in schema}, settings
    )
    kept = [field.field for field in settings.fields]
    check_names(url, schema.names, fields, kept)
    for field in schema:
        if field.name in (*fields, *kept) and (twin := _twin(field.type)):
            raise InputError(
                url, f"objects of the field {field.name!r} have {twin!r} twice: rename one of them"
            )
    return fields


def _twin(kind: pa.DataType) -> str:
    """Return a name that objects of this type, or within it, have twice; "" if there is none."""
    children = [kind.field(i) for i in range(kind.num_fields)]
    names = [child.name for child in children]
    twins = [name for name in names if names.count(name) > 1]
    return next((name for name in (*twins, *map(_twin, (c.type for c in children))) if name), "")


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _values(column: pa.Array) -> list[Any]:
    """Values of a column; bytes in place of one in which a string is not UTF-8."""
    column = column.cast(_readable(column.type), safe=False)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return bytes(error.object)


def _readable(kind: pa.DataType) -> pa.DataType:
    """A type whose values Python has: it knows no nanoseconds, and bytes are read as text."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.large_string()
    if _is_list(kind):
        return pa.large_list(kind.value_field.with_type(_readable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type)) for field in kind])
    return kind


def _batches(source: ByteSource, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    with source.open() as opened, _input_errors(source.url):
        file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES)
        fields = _fields(source.url, file.schema_arrow, settings)
        wanted = {*fields, *(field.field for field in settings.fields)}
        columns = [name for name in file.schema_arrow.names if name in wanted]
        split, n_groups = source.split, file.metadata.num_row_groups
        groups = range(split.start, split.stop) if split.is_range else range(n_groups)
        # Rows that can't be read have their positions too.
        source.n_positions = sum(file.metadata.row_group(group).num_rows for group in groups)
        n_rows = 0
        for group in groups:
            for batch in file.iter_batches(
                BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
            ):
                yield batch
                n_rows += batch.num_rows
                source.bytes_read = split.identity.size * n_rows // file.metadata.num_rows
                if source.sample_bytes is not None and source.bytes_read >= source.sample_bytes:
                    source.is_cut = n_rows < source.n_positions
                    return


@contextmanager
def _input_errors(url: str) -> Iterator[None]:
    try:
        with translated_errors(url):
            yield
    except (pa.ArrowException, OSError) as error:
        # pyarrow's own OSErrors have no number; a filesystem's may pass
        kind = (
            InputError
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno)
            else DamagedInputError
        )
        raise kind(url, f"can't be read as Parquet: {type(error).__name__}: {error}") from error
