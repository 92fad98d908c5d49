"""Ranges of bytes of objects, and which of them are asked for as one: pure."""

from collections.abc import Sequence
from typing import NamedTuple

MERGE_GAP_BYTES = 4096  # ranges of one object that lie closer are asked for as one: a request costs more than these bytes


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
