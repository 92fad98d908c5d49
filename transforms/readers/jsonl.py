"""The formats ``jsonl``, one JSON object a line, and ``json``, an array of objects in one file (or, as some name it, JSON lines).

May import ijson, transforms.{byte_source,records,tokenizers}, the line reader and fields. Which fields are read and what
becomes of them: `transforms.readers.fields`. Position = number of the line, or of the element, from 0. A blank line is
refused, for it is not JSON. Where an array stops being JSON nothing after it can be read: one reject stands for the rest.
"""

import json
from collections.abc import Iterator
from typing import Any

import ijson

from transforms.byte_source import ByteSource, Chunks
from transforms.readers.fields import Refused, field_records, kind_of
from transforms.readers.lines import BOM, LongLine, cut_raw, split_lines, text_of
from transforms.records import Piece, ReadSettings, Record, Reject
from transforms.tokenizers import Tokenizer


def read_jsonl(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """The sentences of each line."""
    yield from _lines(source, Chunks(source.text()), settings, tokenizer)


def read_json(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """The sentences of each element of an array; JSON lines if the file begins with no bracket."""
    chunks = Chunks(source.text())
    if is_array(chunks.peek(4096)):
        yield from _elements(source, chunks, settings, tokenizer)
    else:
        yield from _lines(source, chunks, settings, tokenizer)


def is_array(head: bytes) -> bool:
    """Whether a JSON text that begins with ``head`` is an array."""
    return head.removeprefix(BOM).lstrip()[:1] == b"["


def _lines(source: ByteSource, chunks: Chunks, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    for position, line in enumerate(split_lines(iter(chunks), settings.max_line_bytes)):
        source.n_positions += 1
        if position == 0 and not isinstance(line, LongLine):
            line = line.removeprefix(BOM)
        text = text_of(line, position, settings.max_line_bytes)
        if isinstance(text, Reject):
            yield text
            continue
        raw = cut_raw(text.encode())
        try:
            values = _parsed(text)
        except Refused as error:
            yield Reject(position, str(error), raw)
            continue
        yield from field_records(values, position, settings, tokenizer, raw)


def _elements(source: ByteSource, chunks: Chunks, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    if chunks.peek(3) == BOM:
        chunks.read(3)
    try:
        for position, value in enumerate(ijson.items(chunks, "item", use_float=True)):
            source.n_positions += 1
            raw = cut_raw(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace"))
            if isinstance(value, dict):
                yield from field_records(value, position, settings, tokenizer, raw)
            else:
                yield Reject(position, f"the element is {kind_of(value)}, not a JSON object", raw)
    except ijson.JSONError as error:
        reason = f"not JSON from here on: {str(error).splitlines()[0]}"
        yield Reject(source.n_positions, reason, "")
        source.n_positions += 1
        for _ in chunks:  # so that count and digest are whole
            pass


def _parsed(text: str) -> dict[str, Any]:
    if not text.strip():
        raise Refused("the line is blank: not JSON")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise Refused("JSON nested too deeply") from error
    except ValueError as error:  # also a number of more digits than Python converts
        raise Refused(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused(f"the line is {kind_of(value)}, not a JSON object")
    return value
