"""The formats ``jsonl``, one JSON object a line, and ``json``, an array of objects in one file (or, as some name it, JSON lines).

Which fields are read and what becomes of them: `transforms.readers.fields`. Position = number of the line, or of the element,
from 0. A blank line is rejected, because it is not JSON.

An array is cut into its elements at the commas outside strings and brackets, and each element is parsed by itself, as a line of
JSON lines is: one that is not JSON is one reject, and the elements after it are read. Where the brackets themselves are wrong
(a missing comma, ``{"a": [1}``, an array that is not closed) nobody knows where the next record begins: the file is damaged.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import Chunks
from transforms.inputs.records import DamagedInputError, ReadSettings, Reject
from transforms.readers.fields import RawRecord, kind_of
from transforms.readers.kept import TWICE
from transforms.readers.lines import Refused, cut_raw, lines_of, text_of

HEAD_BYTES = 4096  # enough to see whether a JSON text is an array
PIECE_BYTES = 1 << 16  # of an array that are looked at in one step

_WHITE = b" \t\r\n"
_OPENING = {ord("]"): ord("["), ord("}"): ord("{")}  # the bracket that a closing one belongs to
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# What can be passed over between two brackets, and between two brackets or commas: other characters and whole strings.
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+", re.DOTALL)
_TO_COMMA = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb")*+", re.DOTALL)
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def json_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The object of each line, or of each element where the format is ``json`` and the file begins with a bracket."""
    chunks = Chunks(source.text())
    if source.split.format == "json" and is_array(chunks.peek(HEAD_BYTES)):
        records, what = _elements(source, chunks, settings.max_line_bytes), "element"
    else:
        records, what = lines_of(source, settings.max_line_bytes, chunks), "line"
    for position, data in enumerate(records):
        yield _record(position, data, what, settings.max_line_bytes)


def is_array(head: bytes) -> bool:
    """Whether a JSON text that begins with ``head`` is an array."""
    return head.removeprefix(BOM_UTF8).lstrip()[:1] == b"["


def _record(position: int, data: bytes, what: str, max_bytes: int) -> RawRecord | Reject:
    """Return the record that ``data`` is, a line or an element, or why it is rejected."""
    raw = cut_raw(data)
    try:
        text = text_of(data, max_bytes, what)
        if not text.strip():
            raise Refused(f"the {what} is blank: not JSON")
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        return Reject(position, "JSON nested too deeply", raw)
    except Refused as error:
        return Reject(position, str(error), raw)
    except ValueError as error:  # also a number of more digits than Python converts
        return Reject(position, f"not JSON: {error}", raw)
    if not isinstance(value, dict):
        return Reject(position, f"the {what} is {kind_of(value)}, not a JSON object", raw)
    return RawRecord(position, value, raw)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. A name that it has twice has the value `TWICE`."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = set[str]()
        for name, _ in pairs:
            if name in names:
                values[name] = TWICE
            names.add(name)
    return values


def _elements(source: ByteSource, chunks: Chunks, max_bytes: int) -> Iterator[bytes]:
    """Yield the text of each element of an array, counted as a position.

    Of an element longer than ``max_bytes`` one byte more is kept. DamagedInputError where a bracket is wrong or the array ends
    too early.
    """
    open_brackets = bytearray()
    is_closed = False  # the array's last bracket was passed
    in_string = is_escaped = False  # within a string; after a backslash there
    element = bytearray()
    n_passed = 0  # bytes of the text before the piece

    def keep(data: bytes) -> None:
        if not element:
            data = data.lstrip(_WHITE)
        element.extend(data[: max(0, max_bytes + 1 - len(element))])

    def taken() -> bytes:
        data = bytes(element if len(element) > max_bytes else element.rstrip(_WHITE))
        element.clear()
        source.n_positions += 1
        return data

    def damage(what: str, offset: int) -> DamagedInputError:
        place = f"byte {n_passed + offset} of the text, element {source.n_positions}"
        return DamagedInputError(source.url, f"the JSON array is damaged ({place}): {what}")

    while piece := chunks.read(PIECE_BYTES):
        start = at = 0  # start: of what was not kept yet
        while at < len(piece):
            if in_string:
                stop = _end(_STRING_REST, piece, at + is_escaped)
                is_escaped = piece[stop : stop + 1] == b"\\"  # the last byte of the piece
                in_string = is_escaped or stop == len(piece)
                at = stop + 1
                continue
            at = _end(_TO_COMMA if len(open_brackets) < 2 else _TO_BRACKET, piece, at)
            if is_closed and piece[start:].strip(_WHITE):
                raise damage("more follows after the array's end", start)
            sign, at = piece[at : at + 1], at + 1
            if sign == b'"':
                in_string = True
            elif sign in (b"[", b"{"):
                if len(open_brackets) == 1:
                    before = (element + piece[start : at - 1]).rstrip(_WHITE)
                    if before.endswith((b"]", b"}")):
                        raise damage("no comma before the next element", at - 1)
                if len(open_brackets) > max_bytes:
                    raise damage(f"more than {max_bytes} brackets are open", at - 1)
                start = start if open_brackets else at
                open_brackets += sign
            elif sign in (b"]", b"}"):
                if open_brackets.pop() != _OPENING[sign[0]]:
                    raise damage(f"{sign.decode()} closes a bracket of the other kind", at - 1)
                if not open_brackets:
                    keep(piece[start : at - 1])
                    is_closed, start = True, at
                    if element.strip(_WHITE) or source.n_positions:
                        yield taken()
            elif sign == b",":  # between two elements
                keep(piece[start : at - 1])
                start = at
                yield taken()
        keep(piece[start:])
        n_passed += len(piece)
    if not is_closed:
        place = f"at byte {n_passed} of the text, in element {source.n_positions}"
        raise DamagedInputError(source.url, f"the JSON array is cut short: it ends {place}")


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    """Return where the match of a pattern that matches everywhere ends."""
    match = pattern.match(piece, at)
    assert match is not None
    return match.end()
