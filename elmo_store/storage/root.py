"""A location that stores are read from and written to: a value that is cheap to make and to pickle.

This is the one interface by which objects are read and written. They are on a local disk or in an object store, which each
process opens when it first needs them. A root may belong to an owner, such as the run of a job, who allows what is written there.
"""

import builtins
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.storage.data import (
    Before,
    Data,
    Listed,
    Range,
    crc32c_digits,
    nothing,
    size_of,
)
from elmo_store.storage.failures import Retrying, TranslatingCalls, translated_errors
from elmo_store.storage.filesystems import (
    check_store_location,
    checked,
    names_filesystem,
    open_filesystem,
)
from elmo_store.storage.json_values import MOST_JSON_BYTES, encoded_json, parse_json
from elmo_store.storage.local_disk import LocalDisk, free_bytes
from elmo_store.storage.object_store import ObjectStore

_CREATE_ATTEMPTS = 3
T = TypeVar("T")
Objects = LocalDisk | ObjectStore


class Owner(Protocol):
    """Who may write to a root; pickled with it."""

    def opens(self) -> None:
        """Called when this process first uses a root of this owner."""

    def confirm(self, rel: str | None) -> None:
        """Raise unless the owner may put the object ``rel`` now; None: remove something."""

    def count_retry(self) -> None:
        """Called by any thread when a call of this root's storage is retried."""


@dataclass(frozen=True)
class _Opened:
    """What a root has opened in one process."""

    process: int
    filesystem: AbstractFileSystem
    folder: str
    is_local: bool
    objects: Objects


class Root:
    """A directory or object prefix, by URL. ``rel`` is everywhere a path relative to it, with ``/`` between its names.

    Attributes:
        storage_options: what its filesystem takes.
        owner: whose it is, None for a root that belongs to nobody.
        watch: sees to it that reads are of the store that was opened, None for a root of no store in particular.
    """

    def __init__(
        self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """``url``: a local path, or a URL of one of `filesystems.STORE_PROTOCOLS`; StoreError for any other URL."""
        self.storage_options = dict(storage_options or {})
        self.owner: Owner | None = None
        self.watch: Callable[[Root, bool], None] | None = None
        text = os.fspath(url)
        if not text:
            raise StoreError("the location of the store is empty: give a folder or a URL")
        if not names_filesystem(text):
            text = os.path.abspath(text)  # worker processes may have another working folder
        check_store_location(text)
        self._location = text.rstrip("/") or "/"
        self._opened: _Opened | None = None

    def owned_by(self, owner: Owner | None) -> "Root":
        """The same location, where ``owner`` allows what is written and calls are retried; None: anybody's."""
        root = copy(self)
        root.owner, root._opened = owner, None
        return root

    def watched_by(self, watch: "Callable[[Root, bool], None] | None") -> "Root":
        """The same location, where ``watch`` is called with it after each read; the flag says that it must look anew."""
        root = copy(self)
        root.watch = watch
        return root

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def __repr__(self) -> str:
        return f"Root({self._location!r})"

    def __str__(self) -> str:
        return self._location

    def _here(self) -> _Opened:
        """What this process has opened; an event loop does not survive a fork."""
        opened = self._opened
        if opened is None or opened.process != os.getpid():
            with translated_errors(self._location):
                filesystem, path = open_filesystem(
                    self._location, self.storage_options, obstore=True
                )
            folder = path.rstrip("/") if path != "/" else path
            is_local = isinstance(filesystem, LocalFileSystem)
            objects: Objects = (
                LocalDisk(folder) if is_local else ObjectStore(filesystem, folder, self._location)
            )
            if self.owner is not None:
                objects = cast(
                    Objects, Retrying(objects, local=is_local, on_retry=self.owner.count_retry)
                )
            opened = self._opened = _Opened(os.getpid(), filesystem, folder, is_local, objects)
            if self.owner is not None:
                self.owner.opens()
        return opened

    @property
    def filesystem(self) -> AbstractFileSystem:
        """The fsspec filesystem of this process."""
        return self._here().filesystem

    @property
    def calls(self) -> Any:
        """The filesystem's methods, whose errors are translated: see `failures.translate_error`."""
        return TranslatingCalls(self.filesystem)

    @property
    def objects(self) -> Objects:
        """What reads and writes here, in this process."""
        return self._here().objects

    @property
    def is_local(self) -> bool:
        """True on a disk of this machine."""
        return self._here().is_local

    def free_bytes(self) -> int | None:
        """Free space where the root is or will be; None where nobody can say (object stores)."""
        return free_bytes(self.path()) if self.is_local else None

    def path(self, rel: str = "") -> str:
        """The filesystem's own path of ``rel``. StoreError if it would leave the root."""
        folder = self._here().folder
        return folder.rstrip("/") + "/" + checked(rel) if rel else folder

    def url(self, rel: str = "") -> str:
        """URL of ``rel`` (a plain path on a local disk), as given to the user and to other programs."""
        return self._location if not rel else self._location.rstrip("/") + "/" + checked(rel)

    # Reading.

    def exists(self, rel: str) -> bool:
        """True if there is an object ``rel``; asked anew, no earlier listing is trusted."""
        return self.size(rel) is not None

    def size(self, rel: str) -> int | None:
        """Bytes of ``rel``; None if there is no such object."""
        stat = self.objects.stat(checked(rel))
        return None if stat is None else stat.size

    def stamp(self, rel: str) -> str | None:
        """`Listed.stamp` of the object ``rel``; None if there is no such object."""
        stat = self.objects.stat(checked(rel))
        return None if stat is None else stat.stamp

    def get(self, rel: str, most_bytes: int | None = None) -> bytes:
        """The bytes of ``rel``.

        FileNotFoundError if it is missing; ShardCorruptError if it is a folder, a pipe or a device; TooLargeError if it has more
        than ``most_bytes``, which are not read.
        """
        with self._reading():
            try:
                return self.objects.get(checked(rel), most_bytes)
            except FileNotFoundError as error:
                raise FileNotFoundError(self.url(rel)) from error

    def get_json(self, rel: str) -> Any:
        """Parse ``rel`` as JSON. FileNotFoundError if it is not there, ValueError if it is not JSON in UTF-8, or too large."""
        return parse_json(self.get(rel, MOST_JSON_BYTES))

    def crc32c(self, rel: str) -> str:
        """CRC-32C of ``rel``, 8 hexadecimal digits; in bounded memory on a local disk. FileNotFoundError if it is not there."""
        with self._reading():
            return self.objects.crc32c(checked(rel))

    def get_many(self, rels: Sequence[str], most_bytes: int | None = None) -> list[bytes]:
        """Return the bytes of each of ``rels``, all requested at once. FileNotFoundError names one missing.

        TooLargeError if one has more than ``most_bytes``.
        """
        with self._reading():
            return self.objects.get_many([checked(rel) for rel in rels], most_bytes)

    def get_tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        """The last bytes of objects, ``tails``: rel → how many, or all of one that has fewer; all requested at once."""
        with self._reading():
            return self.objects.tails({checked(rel): n_bytes for rel, n_bytes in tails.items()})

    def read_ranges(self, ranges: Sequence[Range]) -> None:
        """Fill every range's buffer; all requests of one call are under way together.

        FileNotFoundError if an object is not there, ShortReadError if it ends too early.
        """
        for rel in {piece.rel for piece in ranges}:
            checked(rel)
        with self._reading():
            self.objects.ranges(ranges)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A folder that has an object's name is ShardCorruptError; what was read is confirmed."""
        try:
            yield
        except IsADirectoryError as error:
            raise folder_in_place_of(str(error.filename or error)) from error
        self.confirm()

    def confirm(self, *, now: bool = False) -> None:
        """Called after an object was opened or read: StoreReplacedError of a root that is watched, see `reading.opening`."""
        if self.watch is not None:
            self.watch(self, now)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Relative name → bytes of every object below the folder ``prefix``, as `listed` has them."""
        return {rel: listed.size for rel, listed in self.listed(prefix).items()}

    def listed(self, prefix: str = "") -> dict[str, Listed]:
        """Relative name → size and stamp of every object below the folder ``prefix``, sorted, from one listing.

        Half-written temporary files are left out. Empty if there is no such folder.
        """
        return self.objects.listed(_folder(prefix))

    def list(self, prefix: str = "") -> list[str]:
        """Relative names of every object below the folder ``prefix``, sorted."""
        return list(self.sizes(prefix))

    def names(self, folder: str) -> builtins.list[str]:
        """What stands directly in ``folder``, sorted, empty folders too, no half-written files; [] if there is no such folder."""
        return self.objects.names(_folder(folder))

    # Writing. An owner may refuse all of it but `sweep` and `flush`, which harm nobody.

    def put(self, rel: str, data: Data | Path, *, link: bool = False) -> str:
        """Write the object ``rel`` whole, over what may exist, from bytes or a local file. Its stamp if the answer tells it.

        ``link``: nobody writes into the file, so a hard link serves on the same disk.
        """
        return self._written(
            rel, lambda before: self.objects.put(checked(rel), data, before, link=link)
        )

    def put_json(self, rel: str, value: Any) -> None:
        """Write ``value`` as `encoded_json` has it."""
        self.put(rel, encoded_json(value))

    def put_new(self, rel: str, data: Data | Path) -> bool:
        """Write ``rel`` unless it exists, from bytes or a local file into which nobody writes. Of many who try, one succeeds.

        False if it exists; True if it has these ``bytes`` on an object store, which may be by an attempt whose answer was lost.
        """
        return self._written(rel, lambda before: self.objects.put_new(checked(rel), data, before))

    def create(self, rel: str, data: Data) -> str:
        """Write the new object ``rel`` whole, never over another one. Return its stamp.

        An object that has these bytes already is left as it is: an earlier attempt wrote it. One of other bytes is a late put of
        a run that lost the lease, or is damaged; it is removed first, which the owner must allow. So once an object is created,
        a late ``create`` by another run does not change it.

        Raises:
            FileExistsError: others put other bytes there each time that they were removed.
        """
        for _ in range(_CREATE_ATTEMPTS):
            if self.put_new(rel, data) or self._has_bytes(rel, data):
                return self.stamp(rel) or ""
            self.remove(rel)
        raise FileExistsError(f"{self.url(rel)} is written by another program at the same time")

    def _has_bytes(self, rel: str, data: Data) -> bool:
        """Return True if the object ``rel`` has the bytes ``data``, by size and CRC-32C."""
        if self.size(rel) != size_of(data):
            return False
        try:
            return self.crc32c(rel) == crc32c_digits(data)
        except FileNotFoundError:  # removed since
            return False

    def copy_within(self, source: "Root", source_rel: str, rel: str) -> None:
        """Write the object ``rel`` as a copy of one of ``source``, by the filesystem that both are on."""

        def copy_object(before: Before) -> None:
            before()
            self.calls.cp_file(source.path(source_rel), self.path(rel))

        self._written(rel, copy_object)

    def remove(self, *rels: str) -> None:
        """Remove these objects as far as they exist, and on a local disk the folders that this leaves empty.

        A link in the way of one is removed, and not followed.
        """
        if rels:
            self.objects.remove([checked(rel) for rel in rels], self._before(None))

    def remove_tree(self, prefix: str = "") -> None:
        """Remove everything below the folder ``prefix`` (all of the root without one)."""
        if not self.path(_folder(prefix)).strip("/"):
            raise StoreError(f"{self}: refusing to remove the whole filesystem")
        self.objects.remove_tree(_folder(prefix), self._before(None))

    def remove_unfinished(self, prefix: str = "", *, but: str = "") -> None:
        """Remove the half-written files below the folder ``prefix``, whoever writes them; ``but``: a folder to leave alone."""
        self.objects.remove_unfinished(_folder(prefix), but, self._before(None))

    def remove_unfinished_of(self, *rels: str) -> None:
        """Remove the half-written files of these objects, whoever writes them."""
        self.objects.remove_unfinished_of([checked(rel) for rel in rels], self._before(None))

    def remove_empty(self, prefix: str) -> None:
        """Remove the folder ``prefix`` of a local disk and those below it that hold nothing; of a link in its place the link."""
        self.objects.remove_empty(_folder(prefix), self._before(None))

    def sweep(self, folder: str = "", name: str = "") -> None:
        """Remove the half-written files in ``folder`` that killed processes left; ``name``: of this object alone."""
        self.objects.sweep(_folder(folder), name)

    def flush(self) -> None:
        """Return when what was written is safe from a loss of power."""
        self.objects.flush()

    def _before(self, rel: str | None) -> Before:
        """What is called before a change becomes visible."""
        return nothing if self.owner is None else partial(self.owner.confirm, rel)

    def _written(self, rel: str, write: Callable[[Before], T]) -> T:
        try:
            return write(self._before(rel))
        except (
            FileNotFoundError
        ):  # what was written is swept: whoever took the output over does that
            if self.owner is not None:
                self.owner.confirm(None)
            raise


def folder_in_place_of(url: str) -> ShardCorruptError:
    """The error of a folder that has an object's name."""
    return ShardCorruptError(
        f"{url} is a folder, where an object of the store must be: move that folder away"
    )


def _folder(name: str) -> str:
    return checked(name.rstrip("/")) if name.rstrip("/") else ""
