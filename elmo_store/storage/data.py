"""Bytes of objects as they are put, whole or in pieces that are neither joined nor copied, and as they are read, by ranges.

And what `LocalDisk` and `ObjectStore` share. They have the same methods, and `Root`, which asks them, says what each does. A name
is relative, with ``/`` between its parts. A put is atomic: readers see an object whole or not at all. Every method that changes
something takes ``before``, which is called just before the change becomes visible, and may raise to prevent it.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from elmo_store.errors import ShardCorruptError

Whole = bytes | bytearray
Data = (
    Whole | tuple[bytes | memoryview, ...]
)  # pieces follow each other; those of memory are of unsigned bytes, one dimension

CRC_BYTES_AT_ONCE = 1 << 20  # hashed under the interpreter's lock: 0.2 ms
MERGE_GAP_BYTES = 4096  # ranges of one object that lie closer are asked for as one: a request costs more than these bytes

TEMPORARY_PREFIX = ".writing-"  # of files that have yet to get their names
Before = Callable[[], None]


class TooLargeError(ValueError):
    """An object that has more bytes than its kind may have. ``rel`` names it where several were read."""

    def __init__(self, most_bytes: int, rel: str = "") -> None:
        super().__init__(f"it has more than {most_bytes:,} bytes")
        self.rel = rel


def open_regular(path: str) -> BinaryIO:
    """Open a regular file of this machine for reading, or one that a link leads to.

    Every file of a store is opened here, so that nothing in its place can make a reader wait or read for ever.

    Raises:
        FileNotFoundError, IsADirectoryError, other OSErrors.
        ShardCorruptError: a pipe or a device is there.
    """
    # Without O_NONBLOCK the open of a pipe waits until somebody writes to it. Regular files are read as always.
    file = open(  # noqa: SIM115 - the caller closes it
        path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ShardCorruptError(f"{path} is a pipe or a device, where a file must be: move it away")
    return file


def regular_size(path: str) -> int:
    """Return the bytes of a regular file, for a library that opens it by name. Raises what `open_regular` does."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def read_regular(path: str, most_bytes: int | None = None, rel: str = "") -> bytes:
    """Return the bytes of a regular file. Raises what `open_regular` does, and TooLargeError before anything is read."""
    with open_regular(path) as file:
        if most_bytes is not None and os.fstat(file.fileno()).st_size > most_bytes:
            raise TooLargeError(most_bytes, rel)
        return file.read()


def pieces_of(data: Data) -> tuple[bytes | bytearray | memoryview, ...]:
    """The pieces, one of what is whole."""
    return data if isinstance(data, tuple) else (data,)


def size_of(data: Data) -> int:
    """Bytes of all pieces."""
    return sum(map(len, pieces_of(data)))


def crc32c(data: Data) -> int:
    """CRC-32C (Castagnoli) of the bytes of all pieces; by the processor's own instruction where it has one."""
    value = 0
    for piece in pieces_of(data):
        view = np.frombuffer(piece, np.uint8)
        view.flags.writeable = False  # the library takes no other
        for first in range(0, len(view), CRC_BYTES_AT_ONCE):
            value = google_crc32c.extend(value, view[first : first + CRC_BYTES_AT_ONCE])
    return value


def crc32c_digits(data: Data) -> str:
    """`crc32c` as 8 hexadecimal digits, as markers and manifests have it."""
    return f"{crc32c(data):08x}"


def crc32c_of(file: BinaryIO) -> str:
    """`crc32c_digits` of what is left of an open file, in bounded memory."""
    value = 0
    while piece := file.read(CRC_BYTES_AT_ONCE):
        value = google_crc32c.extend(value, piece)
    return f"{value:08x}"


def joined(data: Data) -> Whole:
    """The bytes whole, for clients that take nothing else.

    ``b"".join`` copies memory under the interpreter's lock: 84 MB stop every thread for 40 ms. NumPy lets others run.
    """
    if not isinstance(data, tuple):
        return data
    whole = bytearray(size_of(data))
    view, place = np.frombuffer(whole, np.uint8), 0
    for piece in data:
        view[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
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


class Listed(NamedTuple):
    """What a listing tells of an object."""

    size: int  # bytes
    stamp: str  # tells this version of the object from any other: ETag, generation, inode and time. "" where nothing does.


def comparable(stamp: str) -> str:
    """What of a stamp outlives a copy that keeps times: of a local file's, the time of its last change."""
    inode, dash, changed = stamp.partition("-")
    return changed if dash and inode.isdecimal() else stamp


def is_of_parts(stamp: str) -> bool:
    """Return True for the ETag of an S3 object that was put in several parts.

    Such an ETag ends with the number of parts and follows from where they were cut. A copy of the object has another one,
    while the ETag of an object that was put at once is often the MD5 of its bytes, which copies keep.
    """
    return re.fullmatch(r"ETag=\W*[0-9a-f]{32}-\d+\W*", stamp) is not None


def nothing() -> None:
    """The ``before`` of an object that nobody owns."""
