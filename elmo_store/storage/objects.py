"""What `LocalDisk` and `ObjectStore` share. They have the same methods, and `Root`, which asks them, says what each does.

A name is relative, with ``/`` between its parts. A put is atomic: readers see an object whole or not at all. Every method that
changes something takes ``before``, which is called just before the change becomes visible, and may raise to prevent it.
"""

from collections.abc import Callable
from typing import NamedTuple

TEMPORARY_PREFIX = ".writing-"  # of files that have yet to get their names
Before = Callable[[], None]


class Listed(NamedTuple):
    """What a listing tells of an object.

    Attributes:
        size: bytes.
        stamp: tells this version of the object from any other: ETag, generation, inode and time. "" where nothing does.
    """

    size: int
    stamp: str


def comparable(stamp: str) -> str:
    """What of a stamp outlives a copy that keeps times: of a local file's, the time of its last change."""
    inode, dash, changed = stamp.partition("-")
    return changed if dash and inode.isdecimal() else stamp


def nothing() -> None:
    """The ``before`` of an object that nobody owns."""
