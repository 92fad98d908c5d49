"""What the pages of a Parquet file say of their own sizes.

A reader takes memory by the headers of pages, not by the footer, which may say anything. pyarrow shows no header, so they are
parsed here: structs of Thrift's compact protocol, of which numbers are kept and all else is passed over.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift (``PageHeader``)
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

# Field numbers of `PageHeader`, and of the headers inside it.
_UNCOMPRESSED_BYTES, _COMPRESSED_BYTES = 2, 3
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 5, 7, 8
_N_VALUES = 1
_ENCODINGS = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}
# A value of this encoding may repeat any number of bytes of the one before: what it takes shows only when it is decoded.
_DELTA_BYTE_ARRAY = 7
# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_MOST_NESTED = 16  # structs, lists and maps inside one another; a page header has three


class Page(NamedTuple):
    """What the header of a page says."""

    uncompressed_bytes: int
    n_values: int


def pages(chunk: memoryview) -> Iterator[Page]:
    """Yield the pages of a column chunk, dictionary first. ValueError for headers that are damaged, or can't be believed."""
    place = 0
    while place < len(chunk):
        header, place = _struct(chunk, place, 0)
        stored, uncompressed = (
            header.get(_COMPRESSED_BYTES, -1),
            header.get(_UNCOMPRESSED_BYTES, -1),
        )
        kind = next((kind for kind in _ENCODINGS if isinstance(header.get(kind), dict)), None)
        inner = header[kind] if kind is not None else {}
        n_values = inner.get(_N_VALUES, 0)
        if min(stored, uncompressed, n_values) < 0 or stored > len(chunk) - place:
            raise ValueError(
                f"a page says that it has {stored:,} bytes of {len(chunk) - place:,}, {uncompressed:,} when it is decompressed, "
                f"and {n_values:,} values"
            )
        if kind is not None and inner.get(_ENCODINGS[kind]) == _DELTA_BYTE_ARRAY:
            raise ValueError(
                "a page has the encoding DELTA_BYTE_ARRAY, which no store is written with"
            )
        yield Page(uncompressed, n_values)
        place += stored


def _struct(data: memoryview, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """Parse a struct; return its numbers and structs by field number, and the place behind it. ValueError."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, place = _byte(data, place)
        kind, delta = head & 15, head >> 4
        if kind == _STOP:
            return fields, place
        if delta:
            number += delta
        else:
            number, place = _integer(data, place)
        if kind in (_TRUE, _FALSE):
            continue
        value, place = _value(data, place, kind, depth)
        if value is not None:
            fields[number] = value


def _value(data: memoryview, place: int, kind: int, depth: int) -> tuple[Any, int]:
    """Parse a value; return it, None for one that is passed over, and the place behind it. ValueError."""
    if depth > _MOST_NESTED:
        raise ValueError("the header of a page is nested too deeply")
    if kind in (_I16, _I32, _I64):
        return _integer(data, place)
    if kind == _STRUCT:
        return _struct(data, place, depth + 1)
    if kind in (_TRUE, _FALSE, _BYTE):  # true and false take a byte as members of a list
        return None, _behind(data, place, 1)
    if kind == _DOUBLE:
        return None, _behind(data, place, 8)
    if kind == _BINARY:
        size, place = _unsigned(data, place)
        return None, _behind(data, place, size)
    if kind in (_LIST, _SET):
        head, place = _byte(data, place)
        size = head >> 4
        if size == 15:
            size, place = _unsigned(data, place)
        return None, _passed_over(data, place, size, (head & 15,), depth)
    if kind == _MAP:
        size, place = _unsigned(data, place)
        if not size:
            return None, place
        kinds, place = _byte(data, place)
        return None, _passed_over(data, place, size, (kinds >> 4, kinds & 15), depth)
    raise ValueError(f"the header of a page has a field of the unknown type {kind}")


def _passed_over(data: memoryview, place: int, n: int, kinds: tuple[int, ...], depth: int) -> int:
    """Return the place behind ``n`` members of a list or a map. Every member takes a byte or more, so this ends."""
    for _ in range(n):
        for kind in kinds:
            _, place = _value(data, place, kind, depth + 1)
    return place


def _byte(data: memoryview, place: int) -> tuple[int, int]:
    if place >= len(data):
        raise ValueError("the header of a page is cut")
    return data[place], place + 1


def _behind(data: memoryview, place: int, size: int) -> int:
    if size > len(data) - place:
        raise ValueError("the header of a page is cut")
    return place + size


def _unsigned(data: memoryview, place: int) -> tuple[int, int]:
    """Parse a number in groups of seven bits, lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte, place = _byte(data, place)
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("the header of a page has a number of more than 64 bits")


def _integer(data: memoryview, place: int) -> tuple[int, int]:
    """Parse a number with a sign, which is its lowest bit."""
    value, place = _unsigned(data, place)
    return (value >> 1) ^ -(value & 1), place
