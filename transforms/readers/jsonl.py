"""The formats ``jsonl``, one JSON object a line, and ``json``, an array of objects in one file (or, as some name it, JSON lines).

Which fields are read and what becomes of them: `transforms.readers.fields`. Position = number of the line, or of the element,
from 0. A blank line is refused, for it is not JSON. Where an array stops being JSON nothing after it can be read: one reject
stands for the rest.
"""

import json
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import ijson

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import Chunks
from transforms.inputs.records import ReadSettings, Reject
from transforms.readers.fields import RawRecord, kind_of
from transforms.readers.lines import Refused, cut_raw, lines_of, text_of

HEAD_BYTES = 4096  # enough to see whether a JSON text is an array
PIECE_BYTES = (
    1 << 16
)  # of an array that are parsed at a time: by so much an element may be longer than allowed
MOST_DEPTH = (
    256  # levels of an element of an array; Python's own parser, for JSON lines, takes about 1,000
)
TOO_DEEP = object()


def json_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The object of each line, or of each element where the format is ``json`` and the file begins with a bracket."""
    chunks = Chunks(source.text())
    whole = source.split.format == "json" and is_array(chunks.peek(HEAD_BYTES))
    yield from (_elements if whole else _lines)(source, chunks, settings)


def is_array(head: bytes) -> bool:
    """Whether a JSON text that begins with ``head`` is an array."""
    return head.removeprefix(BOM_UTF8).lstrip()[:1] == b"["


def _lines(
    source: ByteSource, text: Iterable[bytes], settings: ReadSettings
) -> Iterator[RawRecord | Reject]:
    for position, data in enumerate(lines_of(source, settings.max_line_bytes, text)):
        raw = cut_raw(data)
        try:
            line = text_of(data, settings.max_line_bytes)
            if not line.strip():
                raise Refused("the line is blank: not JSON")
            yield _record(position, json.loads(line), raw, "line")
        except RecursionError:
            yield Reject(position, "JSON nested too deeply", raw)
        except Refused as error:
            yield Reject(position, str(error), raw)
        except ValueError as error:  # also a number of more digits than Python converts
            yield Reject(position, f"not JSON: {error}", raw)


def _record(position: int, value: Any, raw: str, what: str) -> RawRecord | Reject:
    if isinstance(value, dict):
        return RawRecord(position, value, raw)
    return Reject(position, f"the {what} is {kind_of(value)}, not a JSON object", raw)


def _elements(
    source: ByteSource, chunks: Chunks, settings: ReadSettings
) -> Iterator[RawRecord | Reject]:
    try:
        for position, value in enumerate(_items(chunks, settings.max_line_bytes)):
            source.n_positions += 1
            if value is TOO_DEEP:
                yield Reject(position, "JSON nested too deeply", "")
            else:
                raw = cut_raw(
                    json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
                )
                yield _record(position, value, raw, "element")
    except (
        ijson.JSONError,
        ValueError,
    ) as error:  # ValueError: a number of more digits than Python converts
        why = (
            error.args[0].decode(errors="replace")
            if error.args and isinstance(error.args[0], bytes)
            else str(error)
        )
        yield Reject(source.n_positions, f"not JSON from here on: {why.splitlines()[0]}", "")
        source.n_positions += 1
        deque(chunks, maxlen=0)  # what is left: all is counted, and damage further on is told


def _items(chunks: Chunks, most_bytes: int) -> Iterator[Any]:
    """The elements of the array, `TOO_DEEP` for one that is nested deeper than `MOST_DEPTH`.

    ValueError for one of more than ``most_bytes``, a number that Python does not convert, or no JSON. `ijson.items` keeps the
    path to every level: 100,000 brackets, 200 kB, made it take 25 GB.
    """
    depth = deepest = element_bytes = 0  # the last: read since the element began
    builder = ijson.ObjectBuilder()

    def pieces() -> Iterator[bytes]:
        nonlocal element_bytes
        while data := chunks.read(PIECE_BYTES):
            if element_bytes > most_bytes:
                raise ValueError(f"an element is longer than {most_bytes} bytes")
            element_bytes += len(data)
            yield data

    for event, value in ijson.basic_parse(Chunks(pieces()), use_float=True):
        ends = event in ("end_array", "end_map")
        depth += 1 if event in ("start_array", "start_map") else -1 if ends else 0
        if depth == 0 or (depth == 1 and event == "start_array" and not deepest):
            deepest = 1  # inside the array itself
            continue
        deepest = max(deepest, depth)
        if deepest <= MOST_DEPTH:
            builder.event(event, value)
        if depth == 1:
            yield builder.value if deepest <= MOST_DEPTH else TOO_DEEP
            builder, deepest = ijson.ObjectBuilder(), 1
            element_bytes = 0
