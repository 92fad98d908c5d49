"""Objects at a location, by name: the one interface that a store is read and written by.

A name is relative, with ``/`` between its parts. A put is atomic: readers see an object whole or not at all. Every method that
changes something takes ``before``, which is called just before the change becomes visible, and may raise to prevent it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from elmo_store.storage.data import Data, Range

TEMPORARY_PREFIX = ".writing-"  # of files that have yet to get their names


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


class Objects(Protocol):
    """What `LocalDisk` and `ObjectStore` do. FileNotFoundError names an object that is missing by its path or URL."""

    def get(self, rel: str, most_bytes: int | None = None) -> bytes:
        """The bytes of an object. IsADirectoryError for a folder, TooLargeError for more than ``most_bytes``."""
        ...

    def crc32c(self, rel: str) -> str:
        """CRC-32C of an object, 8 hexadecimal digits; in bounded memory on a local disk."""
        ...

    def get_many(self, rels: Sequence[str]) -> list[bytes]:
        """`get` of each, all requested at once."""
        ...

    def tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        """The last bytes of objects, name → how many, or all of one that has fewer; all requested at once."""
        ...

    def ranges(self, ranges: Sequence[Range]) -> None:
        """Fill every range's buffer, all requested at once, merged where they touch. ShortReadError for an object that ends."""
        ...

    def stat(self, rel: str) -> Listed | None:
        """Size and stamp, asked anew; None if there is no such object."""
        ...

    def listed(self, prefix: str) -> dict[str, Listed]:
        """Name → size and stamp of every object below a folder, sorted, from one listing; without half-written files."""
        ...

    def names(self, folder: str) -> list[str]:
        """What stands directly in a folder, sorted, without half-written files."""
        ...

    def holds(self, folder: str) -> bool:
        """Whether there is such a folder, though it may be empty or hold half-written files alone."""
        ...

    def put(self, rel: str, data: Data, before: Callable[[], None] = nothing) -> str:
        """Write an object whole, over what may exist. Its stamp where the put's answer tells it, otherwise ""."""
        ...

    def put_file(self, rel: str, path: str, *, link: bool = False, before: Callable[[], None] = nothing) -> None:
        """`put` of a local file, in bounded memory; ``link``: nobody writes into it, so a hard link serves on the same disk."""
        ...

    def put_if_absent(self, rel: str, data: bytes | bytearray, before: Callable[[], None] = nothing) -> bool:
        """Write an object unless it exists; False if it has other bytes. Of many who try, each with its own, one succeeds."""
        ...

    def put_file_if_absent(self, rel: str, path: str, before: Callable[[], None] = nothing) -> bool:
        """Write an object from a local file, into which nobody writes, unless it exists; False if it does."""
        ...

    def remove(self, rels: Sequence[str], before: Callable[[], None] = nothing) -> None:
        """Remove objects as far as they exist, and the folders that this leaves empty."""
        ...

    def remove_tree(self, prefix: str, before: Callable[[], None] = nothing) -> None:
        """Remove everything below a folder."""
        ...

    def remove_unfinished(self, prefix: str, but: str = "", before: Callable[[], None] = nothing) -> None:
        """Remove half-written files below a folder, whoever writes them. ``but``: a folder to leave alone."""
        ...

    def remove_empty(self, prefix: str, before: Callable[[], None] = nothing) -> None:
        """Remove a folder and those below it that hold nothing; of a link in its place the link."""
        ...

    def sweep(self, folder: str, name: str = "") -> None:
        """Remove the half-written files directly in a folder that killed processes left; ``name``: of this object alone."""
        ...

    def flush(self) -> None:
        """Return when what was written is safe from a loss of power."""
        ...
