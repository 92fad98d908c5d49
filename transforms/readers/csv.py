"""The formats ``csv`` and ``tsv``: a row a record, with the names of the fields in the first row.

CSV is read by Python's csv module: fields in double quotes may hold separators and line ends; the separator is the one of ``, ;
TAB |`` under which the first row has the text field. TSV has tabs and no quotes: a ``"`` is a character. A field that is a
number (``--text-field 2``, from 1) means a file without a row of names. What becomes of a row's fields:
`transforms.readers.fields`. Position = number of the row, from 0, without the row of names and without blank lines. A row of
another length than the first is refused.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import ReadSettings, Reject
from transforms.readers.fields import RawRecord, asked_fields, check_names
from transforms.readers.lines import RAW_BYTES, cut_raw, lines_of

SEPARATORS = ",;\t|"


def csv_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The fields of each row; what is empty is None, but for the text and the id."""
    csv.field_size_limit(settings.max_line_bytes)
    lines = (
        _decoded(line, settings.max_line_bytes)
        for line in lines_of(source, settings.max_line_bytes)
    )
    own, numbered, first = asked_fields(settings), settings.text_field.isdecimal(), next(lines, "")
    plain = source.split.format == "tsv"  # without quotes
    separator = "\t" if plain else _separator(first, own.text)
    rows = csv.reader(
        chain([first], lines),
        delimiter=separator,
        quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
    )
    names: Sequence[str] = ()
    position = 0
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield Reject(position, f"not CSV: {error}", "")
            position += 1
            continue
        if row is None:
            break
        if row and not names:
            names = [str(i + 1) for i in range(len(row))] if numbered else row
            check_names(source.url, names, own)
            row = row if numbered else []
        if not row:  # blank, or the names
            continue
        raw = cut_raw("\t".join(row).encode("utf-8", "surrogateescape"))
        if len(row) == len(names):
            values = {
                name: text or (text if name in own else None)
                for name, text in zip(names, row, strict=True)
            }
            yield RawRecord(position, values, raw, spelt=True)
        else:
            yield Reject(position, f"{len(row)} fields instead of {len(names)}", raw)
        position += 1
    source.n_positions = position


def _separator(first: str, field: str) -> str:
    """What separates the fields of CSV whose first line is ``first``."""
    for separator in SEPARATORS:
        if field in next(csv.reader([first], delimiter=separator), []):
            return separator
    return max(SEPARATORS, key=first.count) if field.isdecimal() else ","


def _decoded(line: bytes, max_bytes: int) -> str:
    """A line with its end; what is not UTF-8 in it stays recognisable, so that its row is refused, and one too long is none."""
    data = line[:RAW_BYTES] + b"\xff" if len(line) > max_bytes else line
    return data.decode("utf-8", "surrogateescape") + "\n"
