"""The formats ``csv`` and ``tsv``: a row a record, with the names of the fields in the first row.

CSV is read by Python's csv module: fields in double quotes may hold separators and line ends, and quotes that are doubled; the
separator is the one of ``, ; TAB |`` under which the first row has the text field. TSV has tabs and no quotes: a ``"`` is a
character. A field that is a number (``--text-field 2``, from 1) means a file without a row of names. What becomes of a row's
fields: `transforms.readers.fields`. Position = number of the row, from 0, without the row of names and without blank lines.

A row of another length than the first is rejected. A quote that is not closed, or that closes a field before its end, makes the
file damaged: where the next row begins depends on every quote before it, so that nobody can tell rows from text after it.
"""

import csv
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings, Reject
from transforms.readers.fields import RawRecord, asked_fields, check_names
from transforms.readers.lines import LONE_RETURN, cut_raw, in_wide_encoding, lines_of, split_lines
from transforms.text.looks import SAMPLE_BYTES

SEPARATORS = ",;\t|"
Row = list[str] | str  # the fields, or why the row is rejected


def csv_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The fields of each row; what is empty is None, but for the text and the id."""
    own = asked_fields(settings)
    names, rows = _names_and_rows(
        source.url, source.split.format, _lines(source, settings), settings
    )
    position = 0
    for row in rows:
        if isinstance(row, str):
            yield Reject(position, row, "")
        elif len(row) != len(names):
            yield Reject(position, f"{len(row)} fields instead of {len(names)}", _raw(row))
        else:
            values = {
                name: text or (text if name in own else None)
                for name, text in zip(names, row, strict=True)
            }
            yield RawRecord(position, values, _raw(row), spelt=True)
        position += 1
    source.n_positions = position


def csv_names(source: ByteSource, settings: ReadSettings) -> Sequence[str]:
    """Return the names of a table's fields. InputError if they lack one to read."""
    return _names_and_rows(source.url, source.split.format, _lines(source, settings), settings)[0]


def check_table(url: str, input_format: str, head: bytes, settings: ReadSettings) -> None:
    """Raise InputError if a table whose UTF-8 text begins with ``head`` lacks a field to read.

    ``head`` has `SAMPLE_BYTES` bytes unless it is the whole text. Damage is left to the reader.
    """
    if b"\n" in head or len(head) < SAMPLE_BYTES:
        lines = split_lines([head.removeprefix(BOM_UTF8)], settings.max_line_bytes)
        with suppress(DamagedInputError):
            _names_and_rows(url, input_format, lines, settings)


def is_quoted(head: bytes) -> bool:
    """Return True if a table with tabs, whose text begins with ``head``, is written with quotes as CSV is.

    It is if all its rows have one length when quotes are read so, and a row would have another length, or a quote in a field
    would be doubled, when they are not.
    """
    csv.field_size_limit(sys.maxsize)
    goes_on = len(head) == SAMPLE_BYTES
    if goes_on:
        head = head[: head.rfind(b"\n") + 1]  # whole lines only
    lines = split_lines([head.removeprefix(BOM_UTF8)], SAMPLE_BYTES)
    text = _RowLines("", lines, SAMPLE_BYTES)
    rows = csv.reader(text, delimiter="\t", strict=True)
    width = 0
    found = False
    try:
        while True:
            text.begin_row()
            row = next(rows, None)
            if row is None or (width and row and len(row) != width):
                return found and row is None
            width = width or len(row)
            if row:
                is_cut = any(line.count("\t") != width - 1 for line in text.row)
                found = found or is_cut or any(_is_doubled(field, text.row) for field in row)
    except csv.Error:  # perhaps a quoted field that goes on after ``head``
        return found and text.is_at_end and goes_on


def _is_doubled(field: str, lines: Sequence[str]) -> bool:
    """Return True if ``field`` has a quote, and one of ``lines`` holds it in quotes."""
    quoted = '"' + field.replace('"', '""') + '"'
    return '"' in field and any(quoted in line for line in lines)


def _lines(source: ByteSource, settings: ReadSettings) -> Iterator[bytes]:
    return lines_of(source, settings.max_line_bytes)


def _raw(row: Sequence[str]) -> str:
    return cut_raw("\t".join(row).encode("utf-8", "surrogateescape"))


def _names_and_rows(
    url: str, input_format: str, lines: Iterator[bytes], settings: ReadSettings
) -> tuple[Sequence[str], Iterator[Row]]:
    """Return the names of a table's fields and its other rows.

    InputError if the names lack a field to read, or have it twice.
    """
    csv.field_size_limit(sys.maxsize)  # `_RowLines` has a limit for rows
    n_blank = 0
    for first in lines:
        if first.strip(b"\r"):
            break
        n_blank += 1
    else:
        return (), iter(())
    _check_encoding(url, first)
    own = asked_fields(settings)
    numbered = settings.text_field.isdecimal()
    lines = chain([first], lines)
    max_bytes = settings.max_line_bytes
    if input_format == "tsv":
        rows = _tab_rows(lines, max_bytes)
    else:
        separator = _separator(_decoded(first), own.text)
        rows = _quoted_rows(_RowLines(url, lines, max_bytes, n_blank), separator)
    header = next(rows)
    if isinstance(header, str):
        raise InputError(url, f"the first row can't be read: {header}")
    names = [str(number) for number in range(1, len(header) + 1)] if numbered else header
    check_names(url, names, own, [field.field for field in settings.fields])
    return names, chain([header], rows) if numbered else rows


def _check_encoding(url: str, first: bytes) -> None:
    """Raise InputError if the first line of a table shows that its text is not UTF-8."""
    if wide := in_wide_encoding(first):
        raise InputError(url, wide)
    if b"\0" in first:
        raise InputError(
            url,
            "the first row has a NUL character: if the text is UTF-16 without a byte order mark, "
            "read it with --encoding utf-16-le",
        )


def _separator(first: str, field: str) -> str:
    """Return what separates the fields of CSV whose first line is ``first``."""
    for separator in SEPARATORS:
        with suppress(csv.Error):
            if field in next(csv.reader([first], delimiter=separator), []):
                return separator
    return max(SEPARATORS, key=first.count)


def _decoded(line: bytes) -> str:
    """Return a line as text. What is not UTF-8 in it stays recognisable, so that its row is rejected."""
    return line.decode("utf-8", "surrogateescape")


def _tab_rows(lines: Iterable[bytes], max_bytes: int) -> Iterator[Row]:
    """Yield the rows of a table with tabs and without quotes, blank ones left out."""
    for line in lines:
        text = _decoded(line.rstrip(b"\r"))
        if len(line) > max_bytes:
            yield f"the line is longer than {max_bytes} bytes"
        elif "\r" in text:
            yield LONE_RETURN
        elif text:
            yield text.split("\t")


class _RowLines:
    """The lines of a table as `csv.reader` takes them, with those of the row that it is reading."""

    def __init__(self, url: str, lines: Iterator[bytes], max_bytes: int, n_before: int = 0) -> None:
        """``max_bytes``: of a row; ``n_before``: lines of the file before these ones."""
        self._url, self._lines, self._max_bytes = url, lines, max_bytes
        self._n_lines = n_before  # of the file so far
        self._first = n_before + 1  # number of the row's first line
        self.row: list[str] = []  # its lines so far
        self._row_bytes = 0
        self.is_at_end = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line with its end. DamagedInputError if the row becomes too long."""
        try:
            line = next(self._lines)
        except StopIteration:
            self.is_at_end = True
            raise
        self._n_lines += 1
        self._row_bytes += len(line) + 1
        # The middle of such a line is not kept: a quote may be opened or closed there.
        if self._row_bytes > self._max_bytes + 1:
            raise self.damage(
                f"the row is longer than {self._max_bytes} bytes (is a quote not closed?)"
            )
        self.row.append(_decoded(line))
        return self.row[-1] + "\n"

    def begin_row(self) -> None:
        """Forget the row before: the next line is the first of another."""
        self._first = self._n_lines + 1
        self.row.clear()
        self._row_bytes = 0

    def error(self, error: csv.Error) -> DamagedInputError:
        """Return the error for a row in which `csv.reader` found a quote or a line end that makes no sense."""
        if self.is_at_end:
            return self.damage("a quote is opened in the row and not closed")
        if "new-line" in str(error):
            return self.damage(LONE_RETURN)
        what = "text follows the quote that closes a field"
        if '\\"' in self.row[-1]:
            return self.damage(
                f'{what}: the file seems to write \\" for a quote, as Spark does, where CSV writes "" '
                """(Spark's option escape='"')"""
            )
        return self.damage(f"{what}: within a field CSV writes a quote twice")

    def damage(self, what: str) -> DamagedInputError:
        """Return the error for a row after which nothing can be told apart."""
        place = f"line {self._first}"
        if not self.is_at_end and self._n_lines > self._first:
            place += f", where the row of line {self._n_lines} begins"
        return DamagedInputError(self._url, f"it can't be read as CSV from {place}: {what}")


def _quoted_rows(lines: _RowLines, separator: str) -> Iterator[Row]:
    """Yield the rows of CSV, blank ones left out. DamagedInputError for a quote that makes no sense."""
    rows = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        lines.begin_row()
        try:
            row = next(rows, None)
        except csv.Error as error:
            text = "".join(lines.row)
            if "\r" not in text or '"' in text:
                raise lines.error(error) from error
            # No quote is open: the next row begins with the next line.
            yield LONE_RETURN
            continue
        if row is None:
            return
        if row:
            yield row
