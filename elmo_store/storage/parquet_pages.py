"""What columns of a Parquet file would decompress to, by the headers of their pages, before any memory is taken for it.

A footer may lie about sizes; a page's own header is what a reader allocates by.
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift (PageHeader), in Thrift's compact protocol.
"""

from collections.abc import Iterable, Iterator, Sequence
from io import RawIOBase
from typing import IO, Any

import pyarrow.parquet as pq

MOST_BYTES = 1 << 28  # that columns which are read together decompress to, or …
MOST_RATIO = 250  # … so many times what is stored, if that is more
MOST_STORED = 1 << 30  # of a column of a row group
HEADER_BYTES = 256  # read of a page at first
MOST_HEADER_BYTES = 1 << 20
_DATA, _DATA_2 = 5, 8  # fields of a page's header that hold one of their own
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_NUMBERS = (4, 5, 6)
File = IO[bytes] | RawIOBase


def limit(stored_bytes: int) -> int:
    """Bytes that what takes ``stored_bytes`` may decompress to."""
    return max(MOST_BYTES, MOST_RATIO * stored_bytes)


def leaves(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """Places in the schema of the values of the fields of these names."""
    schema = metadata.schema
    return [i for i in range(len(schema)) if schema.column(i).path.partition(".")[0] in columns]


def chunks(metadata: pq.FileMetaData, groups: Iterable[int], columns: Sequence[str]) -> Iterator[tuple[Any, int, int]]:
    """Each column that holds values of the fields of these names, in these row groups; (start, stop) in the file. ValueError."""
    places = leaves(metadata, columns)
    for group in groups:
        row_group = metadata.row_group(group)
        for place in places:
            column = row_group.column(place)
            start, stored = column.data_page_offset, column.total_compressed_size
            if column.has_dictionary_page and (dictionary := column.dictionary_page_offset) is not None:
                start = min(start, dictionary)
            if start < 0 or not 0 <= stored <= MOST_STORED:
                raise ValueError(
                    f"its column {column.path_in_schema} has {stored:,} bytes at {start}; {MOST_STORED:,} are the most"
                )
            yield column, start, start + stored


def check(file: File, size: int, metadata: pq.FileMetaData, groups: Iterable[int], columns: Sequence[str]) -> None:
    """ValueError, with the limit, if columns of row groups of a file of ``size`` would decompress to more, or have no pages."""
    stored = total = 0
    for column, start, stop in chunks(metadata, groups, columns):
        if stop > size:
            raise ValueError(f"its column {column.path_in_schema} ends at byte {stop} of {size}")
        stored += stop - start
        total += _decompressed(file, column, start, stop)
        if total > limit(stored):
            raise ValueError(
                f"its columns {', '.join(columns)} would take {total:,} bytes, more than {MOST_BYTES:,} and "
                f"{MOST_RATIO} times what is stored"
            )


def _decompressed(file: File, column: Any, start: int, stop: int) -> int:
    """Bytes that the pages of a column of a row group decompress to; of numbers of a dictionary, at 4 bytes a value."""
    values, total, all_values = 0, 0, column.num_values
    while start < stop and values < all_values:
        header, length = _header(file, start, stop)
        inner = header.get(_DATA) or header.get(_DATA_2) or {}
        if not isinstance(inner, dict):
            raise ValueError(f"what stands at byte {start} is no header of a page")
        count, stored, size = (_count(value) for value in (inner.get(1, 0), header.get(3), header.get(2)))
        if start + length + stored > stop:
            raise ValueError(f"a page of its column {column.path_in_schema} ends after byte {stop}, where the column does")
        values += count
        total += max(size, 4 * count)
        start += length + stored
    return total


def _header(file: File, start: int, stop: int) -> tuple[dict[int, Any], int]:
    """A page's header and its length."""
    n_bytes = HEADER_BYTES
    while True:
        file.seek(start)
        data = file.read(min(n_bytes, stop - start))
        try:
            return _struct(data, 0)
        except IndexError as error:
            if n_bytes >= min(MOST_HEADER_BYTES, stop - start):
                raise ValueError(f"what stands at byte {start} is no header of a page") from error
        n_bytes *= 16


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"a header of a page says {value!r} where a size must stand")
    return value


# Thrift's compact protocol: each function reads a value of ``data`` at ``at`` and gives it with the place behind it. A scan reads
# a header for every column of every row group. IndexError where the bytes end, ValueError for what is none.


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    if depth > 8:
        raise ValueError("a header of a page is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if kind in _NUMBERS:
            fields[number], at = _integer(data, at)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind == _STRUCT:
            fields[number], at = _struct(data, at, depth + 1)
        elif kind in (_BYTE, _DOUBLE, _BINARY):
            length, at = ({_BYTE: 1, _DOUBLE: 8}[kind], at) if kind != _BINARY else _unsigned(data, at)
            fields[number], at = None, at + length
            if at > len(data):
                raise IndexError
        else:
            raise ValueError(f"a header of a page holds a value of the kind {kind}")
    return fields, at + 1


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
        shift += 7
    raise ValueError("a header of a page holds a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at
