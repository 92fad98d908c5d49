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


def chunks(metadata: pq.FileMetaData, group: int, columns: Sequence[str]) -> Iterator[tuple[Any, int, int]]:
    """Each column of a row group that belongs to the fields of these names, and its (start, stop) in the file. ValueError."""
    row_group = metadata.row_group(group)
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        if any(column.path_in_schema in (name, f"{name}.list.element") for name in columns):
            start, stored = column.data_page_offset, column.total_compressed_size
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            if start < 0 or not 0 <= stored <= MOST_STORED:
                raise ValueError(
                    f"its column {column.path_in_schema} has {stored:,} bytes at {start}; {MOST_STORED:,} are the most"
                )
            yield column, start, start + stored


def check(file: File, size: int, metadata: pq.FileMetaData, groups: Iterable[int], columns: Sequence[str]) -> None:
    """ValueError, with the limit, if columns of row groups of a file of ``size`` would decompress to more, or have no pages."""
    stored = total = 0
    for group in groups:
        for column, start, stop in chunks(metadata, group, columns):
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
    values = total = 0
    while start < stop and values < column.num_values:
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
            return _Compact(data).struct_and_length()
        except IndexError as error:
            if n_bytes >= min(MOST_HEADER_BYTES, stop - start):
                raise ValueError(f"what stands at byte {start} is no header of a page") from error
        n_bytes *= 16


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"a header of a page says {value!r} where a size must stand")
    return value


class _Compact:
    """Reads values of Thrift's compact protocol. IndexError where the bytes end, ValueError for what is none."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct_and_length(self) -> tuple[dict[int, Any], int]:
        """A structure, and how many bytes it takes."""
        return self._struct(), self._at

    def _struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > 8:
            raise ValueError("a header of a page is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _NUMBERS:
            return self._integer()
        if kind == _STRUCT:
            return self._struct(depth + 1)
        if kind in (_BYTE, _DOUBLE, _BINARY):
            self._skip({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._unsigned())
            return None
        raise ValueError(f"a header of a page holds a value of the kind {kind}")

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _skip(self, n_bytes: int) -> None:
        self._at += n_bytes
        if self._at > len(self._data):
            raise IndexError

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a header of a page holds a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
