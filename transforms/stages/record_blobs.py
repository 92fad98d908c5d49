"""CSV and JSON arrays, in which only who read all before knows where a record begins → blobs that are such files themselves.

Pure over chunks of UTF-8; may import ijson, transforms.{byte_source,records} and the readers, whose rules decide where a record
ends. What a reader makes of the blobs, one after the other, is what it would make of the whole file; positions are counted on by
the plan.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

import ijson

from transforms.inputs.byte_source import Chunks
from transforms.inputs.records import ReadSettings
from transforms.readers.csv import decoded, has_no_names, rows_of, separator_of
from transforms.readers.fields import text_field
from transforms.readers.jsonl import BOM, MOST_DEPTH, TOO_DEEP, items_of
from transforms.readers.lines import LongLine, split_lines


def csv_blobs(text: Iterable[bytes], input_format: str, settings: ReadSettings, blob_bytes: int) -> Iterator[bytes]:
    """Whole rows, about ``blob_bytes`` a blob, each blob with the row of names before them.

    Where fields go by number, that row is ``1,2,3`` …, which a reader takes for names in a blob.
    """
    csv.field_size_limit(settings.max_line_bytes)
    held: list[bytes] = []  # lines since the last cut
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in split_lines(iter(text), settings.max_line_bytes):
            # A line that is too long to be held stays too long, and begins as it did.
            data = line.head.ljust(settings.max_line_bytes + 1) if isinstance(line, LongLine) else line
            held.append((data if size or held else data.removeprefix(BOM)) + b"\n")
            size += len(held[-1])
            yield decoded(LongLine(line.head) if isinstance(line, LongLine) else held[-1][:-1])

    every = lines()
    first = next(every, None)
    if first is None:
        return
    separator = separator_of(first, input_format, text_field(settings))
    names = b""
    for row in rows_of(first, every, separator, input_format):
        if isinstance(row, list) and not names:
            if has_no_names(settings):
                names = separator.join(str(i + 1) for i in range(len(row))).encode() + b"\n"
            else:
                names = b"".join(held)
                held.clear()
                size = len(names)  # not 0: a byte order mark is at the beginning of the file alone
        elif names and size >= blob_bytes:
            yield names + b"".join(held)
            held.clear()
            size = len(names)
    if held:
        yield names + b"".join(held)


def json_blobs(chunks: Chunks, settings: ReadSettings, blob_bytes: int) -> Iterator[bytes]:
    """The elements of an array, about ``blob_bytes`` a blob, as arrays. Where it stops being JSON, the last blob does."""
    if chunks.peek(3) == BOM:
        chunks.read(3)
    held: list[bytes] = []
    size = 0
    end = b"]"
    try:
        for value in items_of(chunks, settings.max_line_bytes):
            held.append(_encoded(value))
            size += len(held[-1])
            if size >= blob_bytes:
                yield b"[" + b",\n".join(held) + b"]"
                held, size = [], 0
    except (ijson.JSONError, ValueError):  # as the reader has it
        end = b""
        for _ in chunks:  # so that count and digest are whole
            pass
    if held or not end:
        yield b"[" + b",\n".join(held) + end


def _encoded(value: Any) -> bytes:
    """One element again. What is nested too deeply stays so; a number beyond all floats is refused."""
    if value is TOO_DEEP:
        return b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError as error:
        return json.dumps(f"an element that can't be written as JSON: {error}").encode("ascii")
