"""The format ``parquet``: a column with strings or lists of tokens, perhaps one with ids (strings or integers).

What becomes of a row's fields: `transforms.readers.fields`; null is refused. Position = number of the row within the piece,
from 0. Row groups are streamed in small batches, so that neither a file nor a row group is held. Digest and count are of the
values that were read.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, Piece, ReadSettings, Record, Reject
from transforms.readers.fields import Refused, field_records, text_field
from transforms.readers.lines import cut_raw
from transforms.readers.schema import check_fields
from transforms.text.tokenizers import Tokenizer

BATCH_ROWS = 1024
BUFFER_BYTES = 1 << 20


def read_parquet(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """The sentences of each row of the piece's row groups."""
    if piece.identity.size == 0:
        return
    text, own = text_field(settings), settings.id_field
    for batch in _batches(source, piece, settings):
        ids = _values(batch.column(own)) if own else [""] * batch.num_rows
        for value, name in zip(_values(batch.column(text)), ids, strict=True):
            source.count(repr((name, value)).encode("utf-8", "backslashreplace"))
            yield from _records(value, name, source.n_positions, settings, tokenizer)
            source.n_positions += 1


def _records(value: Any, own: Any, position: int, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    field, values = text_field(settings), {}
    try:
        if settings.id_field:
            values[settings.id_field] = _text(own, settings.id_field)
        values[field] = [_text(v, field) for v in value] if isinstance(value, list) else _text(value, field)
    except Refused as error:
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
        yield Reject(position, str(error), cut_raw(raw), values.get(settings.id_field) or "")
        return
    yield from field_records(values, position, settings, tokenizer)


def _text(value: Any, field: str) -> Any:
    """Bytes as the UTF-8 they should be; other values as they are."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"invalid UTF-8 at byte {error.start} of field {field!r} (0x{value[error.start]:02x})") from error


def _values(column: pa.Array) -> list[Any]:
    """Values of a column; a string that is not UTF-8 comes as bytes."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(column[i]) for i in range(len(column))]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if isinstance(scalar, pa.ListScalar):
            return [_value(inner) for inner in scalar.values]
        if isinstance(scalar, pa.DictionaryScalar):
            return _value(scalar.value)
        return scalar.as_buffer().to_pybytes()


def _batches(source: ByteSource, piece: Piece, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    columns = [text_field(settings)] + [settings.id_field] * bool(settings.id_field)
    with source.open() as opened:
        try:
            file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES)
            check_fields(piece.url, file.schema_arrow, settings)
            groups = range(piece.start, file.metadata.num_row_groups if piece.stop is None else piece.stop)
            for group in groups:
                yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            # pyarrow's own OSErrors have no number; a filesystem's may pass
            kind = InputError if isinstance(error, OSError) and (type(error) is not OSError or error.errno) else DamagedInputError
            raise kind(piece.url, f"can't be read as Parquet: {type(error).__name__}: {error}") from error
