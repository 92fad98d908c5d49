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
from transforms.inputs.records import Piece, ReadSettings, Record, Reject
from transforms.readers.fields import field_records, text_field
from transforms.readers.lines import Line, LongLine, cut_raw, lines_of
from transforms.readers.schema import check_names
from transforms.text.tokenizers import Tokenizer

SEPARATORS = ",;\t|"


def read_csv(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """The sentences of each row."""
    csv.field_size_limit(settings.max_line_bytes)
    lines = map(decoded, lines_of(source, settings.max_line_bytes))
    first = next(lines, None)
    if first is None:
        return
    rows = rows_of(first, lines, separator_of(first, piece.format, text_field(settings)), piece.format)
    numbered = has_no_names(settings) and not piece.blob  # a blob has a row of numbers
    names: Sequence[str] = ()
    position = 0
    for row in rows:
        if isinstance(row, list) and not names:
            names = [str(i + 1) for i in range(len(row))] if numbered else row
            check_names(piece.url, names, settings)
            if not numbered:
                continue
        yield from _records(row, names, position, settings, tokenizer)
        position += 1
    source.n_positions = position


def has_no_names(settings: ReadSettings) -> bool:
    """Whether the fields are asked for by number."""
    return settings.text_field.isdecimal()


def separator_of(first: str, input_format: str, field: str) -> str:
    """What separates the fields of a file whose first line is ``first``."""
    if input_format == "tsv":
        return "\t"
    for separator in SEPARATORS:
        if field in next(csv.reader([first], delimiter=separator), []):
            return separator
    return max(SEPARATORS, key=first.count) if field.isdecimal() else ","


def decoded(line: Line) -> str:
    """A line with its end; what is not UTF-8 in it stays recognisable, so that its row is refused."""
    data = line.head + b"\xff" if isinstance(line, LongLine) else line
    return data.decode("utf-8", "surrogateescape") + "\n"


def rows_of(first: str, lines: Iterator[str], separator: str, input_format: str) -> Iterator[list[str] | csv.Error]:
    """The rows of a file whose first line is ``first``: those that are not blank, or why there is none."""
    given = chain([first], lines)
    if input_format == "tsv":
        return _rows(csv.reader(given, delimiter=separator, quoting=csv.QUOTE_NONE))
    return _rows(csv.reader(given, delimiter=separator))


def _rows(reader: Iterator[list[str]]) -> Iterator[list[str] | csv.Error]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield error
            continue
        if row:
            yield row


def _records(
    row: list[str] | csv.Error, names: Sequence[str], position: int, settings: ReadSettings, tokenizer: Tokenizer
) -> Iterator[Record]:
    if isinstance(row, csv.Error):
        yield Reject(position, f"not CSV: {row}", "")
        return
    raw = cut_raw("\t".join(row).encode("utf-8", "surrogateescape"))
    if len(row) != len(names):
        yield Reject(position, f"{len(row)} fields instead of {len(names)}", raw)
        return
    yield from field_records(dict(zip(names, row, strict=True)), position, settings, tokenizer, raw)
