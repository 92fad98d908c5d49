"""Bytes of objects as they are put, whole or in pieces that are neither joined nor copied, and as they are read, by ranges."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Whole = bytes | bytearray
Data = Whole | tuple[bytes | memoryview, ...]  # pieces follow each other; those of memory are of unsigned bytes, one dimension

MERGE_GAP_BYTES = 4096  # ranges of one object that lie closer are asked for as one: a request costs more than these bytes

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)


def pieces_of(data: Data) -> tuple[bytes | bytearray | memoryview, ...]:
    """The pieces, one of what is whole."""
    return data if isinstance(data, tuple) else (data,)


def size_of(data: Data) -> int:
    """Bytes of all pieces."""
    return sum(map(len, pieces_of(data)))


def joined(data: Data) -> Whole:
    """The bytes whole, for clients that take nothing else.

    ``b"".join`` copies memory under the interpreter's lock: 84 MB stop every thread for 40 ms. This lets others run.
    """
    if not isinstance(data, tuple):
        return data
    whole: bytes = _new_bytes(None, size_of(data))  # not filled yet, and nobody else has it
    place = np.frombuffer(whole, np.uint8).ctypes.data if whole else 0
    for piece in data:
        ctypes.memmove(place, np.frombuffer(piece, np.uint8).ctypes.data if len(piece) else 0, len(piece))
        place += len(piece)
    return whole


class Range(NamedTuple):
    """Bytes to read: of object ``rel`` from byte ``start`` on, as many as the writable buffer of bytes ``into`` has."""

    rel: str
    start: int
    into: memoryview

    @property
    def stop(self) -> int:
        """The byte after the last."""
        return self.start + self.into.nbytes


class ShortReadError(OSError):
    """An object ends before the bytes that were asked for, or has another size than it must. ``rel`` names it."""

    def __init__(self, rel: str, problem: str) -> None:
        super().__init__(f"{rel} {problem}")
        self.rel = rel

    @classmethod
    def before(cls, rel: str, stop: int) -> "ShortReadError":
        """Of an object that ends before byte ``stop``."""
        return cls(rel, f"ends before byte {stop}")


def merged(ranges: Sequence[Range], gap_bytes: int = MERGE_GAP_BYTES) -> list[list[Range]]:
    """The ranges, each in one group; those of a group lie in one object, in order, at most ``gap_bytes`` apart.

    Groups come in the order of (object, start). Overlapping ranges share a group.
    """
    groups: list[list[Range]] = []
    stop = 0
    for piece in sorted((r for r in ranges if r.into.nbytes), key=lambda r: (r.rel, r.start)):
        if groups and groups[-1][0].rel == piece.rel and piece.start - stop <= gap_bytes:
            groups[-1].append(piece)
            stop = max(stop, piece.stop)
        else:
            groups.append([piece])
            stop = piece.stop
    return groups
