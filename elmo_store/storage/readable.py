"""What stands at a store's root on a disk or an object store, named, read and listed: whole objects, or ranges of them."""

import os
import posixpath
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.storage.data import Range, ShortReadError, TooLargeError, crc32c_digits, crc32c_of_file, merged, read_regular
from elmo_store.storage.failures import Calls, telling, told
from elmo_store.storage.filesystems import (
    check_store_location,
    checked,
    is_azure,
    names_filesystem,
    opened,
    protocols_of,
)
from elmo_store.storage.json_values import MOST_JSON_BYTES, parse_json

TEMPORARY_PREFIX = ".writing-"  # of files that have yet to get their names
_STAMPS = ("ETag", "etag", "md5Hash", "checksum", "generation", "mtime", "LastModified", "last_modified", "updated", "created")


class ReadableRoot:
    """A directory or object prefix, by URL. Cheap to make and to pickle: the filesystem is opened when it is first used.

    ``rel`` is everywhere a path relative to the root, with ``/`` between its names.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        """``url``: a local path, or a URL of one of `STORE_PROTOCOLS`; ``storage_options``: what its filesystem takes.

        StoreError for any other URL.
        """
        self.storage_options = dict(storage_options or {})
        text = os.fspath(url)
        if not text:
            raise StoreError("the location of the store is empty: give a folder or a URL")
        if not names_filesystem(text):
            text = os.path.abspath(text)  # worker processes may have another working folder
        check_store_location(text)
        self._location = text.rstrip("/") or "/"
        self._opened: tuple[int, fsspec.AbstractFileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"storage_options": self.storage_options, "_location": self._location, "_opened": None}

    def __repr__(self) -> str:
        return f"Root({self._location!r})"

    def __str__(self) -> str:
        return self._location

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReadableRoot):
            return NotImplemented
        return (self._location, self.storage_options) == (other._location, other.storage_options)

    def __hash__(self) -> int:
        return hash(self._location)

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:  # an event loop does not survive a fork
            with telling(self._location):
                filesystem, path = opened(self._location, self.storage_options)
            self._opened = (pid, filesystem, path.rstrip("/") if path != "/" else path)
        return self._opened[1], self._opened[2]

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        """The fsspec filesystem of this process."""
        return self._open()[0]

    @property
    def calls(self) -> Any:
        """The filesystem's methods, whose errors are told in the same way whichever client it has: see `failures.told`."""
        filesystem = self.filesystem
        if self.is_local or getattr(filesystem, "takes_pieces", False):  # whose errors are told already
            return filesystem
        return Calls(filesystem)

    @property
    def is_local(self) -> bool:
        """True on a disk of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    def free_bytes(self) -> int | None:
        """Free space where the root stands or will stand; None where nobody can say (object stores)."""
        if not self.is_local:
            return None
        folder = self.path()
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return shutil.disk_usage(folder).free

    def path(self, rel: str = "") -> str:
        """The filesystem's own path of ``rel``. StoreError if it would leave the root."""
        base = self._open()[1]
        if not rel:
            return base
        return base.rstrip("/") + "/" + checked(rel)

    def url(self, rel: str = "") -> str:
        """URL of ``rel`` (a plain path on a local disk), as given to the user and to other programs."""
        return self._location if not rel else self._location.rstrip("/") + "/" + checked(rel)

    def exists(self, rel: str) -> bool:
        """True if there is an object ``rel``; asked of the filesystem anew, no listing of earlier is trusted."""
        return self.size(rel) is not None

    def size(self, rel: str) -> int | None:
        """Bytes of ``rel``; None if there is no such object."""
        info = described(self.calls, self.path(rel))
        return int(info["size"]) if info is not None and info["type"] == "file" else None

    def stamp(self, rel: str) -> str | None:
        """What tells this version of the object ``rel`` from any other that was put: ETag, generation, inode and time.

        None if there is no such object, "" where the filesystem tells nothing but its size.
        """
        if self.is_local:
            try:
                return local_stamp(os.stat(self.path(rel)))
            except FileNotFoundError:
                return None
        info = described(self.calls, self.path(rel))
        if info is None:
            return None
        return _stamp_of(info)

    def get(self, rel: str, most_bytes: int | None = None) -> bytes:
        """The bytes of ``rel``.

        FileNotFoundError if it is missing; ShardCorruptError if it is a folder, a pipe or a device; TooLargeError if it has more
        than ``most_bytes``, which are not read.
        """
        path = self.path(checked(rel))
        try:
            if self.is_local:
                return read_regular(path, most_bytes)
            asked = {} if most_bytes is None else {"start": 0, "end": most_bytes + 1}
            data: bytes = self.calls.cat_file(path, **asked, **self._one_request())
        except FileNotFoundError as error:  # some libraries name no object
            raise FileNotFoundError(self.url(rel)) from error
        except IsADirectoryError as error:
            raise folder_in_place_of(self.url(rel)) from error
        except OSError:
            if most_bytes is None or self.size(rel) != 0:  # a server may know no range of an empty object
                raise
            return b""
        if most_bytes is not None and len(data) > most_bytes:
            raise TooLargeError(most_bytes)
        return data

    def _one_request(self) -> dict[str, Any]:
        """What keeps a filesystem from asking for an object's size before it asks for the object."""
        return {"max_concurrency": 1} if "s3" in protocols_of(self.filesystem) else {}

    def get_json(self, rel: str) -> Any:
        """Parse ``rel`` as JSON. FileNotFoundError if it is not there, ValueError if it is not JSON in UTF-8, or too large."""
        return parse_json(self.get(rel, MOST_JSON_BYTES))

    def crc32c(self, rel: str) -> str:
        """CRC-32C of ``rel``, 8 hexadecimal digits; in bounded memory on a local disk. FileNotFoundError if it is not there."""
        return crc32c_of_file(self.path(checked(rel))) if self.is_local else crc32c_digits(self.get(rel))

    def get_many(self, rels: Sequence[str]) -> list[bytes]:
        """The bytes of each of ``rels``, all asked for at once where the filesystem can. FileNotFoundError names one missing."""
        if self.is_local or len(rels) < 2:
            return [self.get(rel) for rel in rels]
        ranges = [self.path(rel) for rel in rels], [None] * len(rels), [None] * len(rels)
        values: list[bytes] = self.calls.cat_ranges(*ranges, on_error="return", **self._one_request())
        for rel, value in zip(rels, values, strict=True):
            _raise_for(self.url(rel), value)
        return values

    def get_tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        """The last bytes of objects, ``tails``: rel → how many, or all of one that has fewer; all asked for at once.

        FileNotFoundError if an object is not there.
        """
        if self.is_local:
            return {rel: self._local_tail(rel, n_bytes) for rel, n_bytes in tails.items()}
        paths, starts = [self.path(rel) for rel in tails], [-n_bytes for n_bytes in tails.values()]
        if is_azure(self.filesystem):  # which knows no ranges from the end
            for i, (rel, n_bytes) in enumerate(tails.items()):
                size = ReadableRoot.size(self, rel)
                if size is None:
                    raise FileNotFoundError(self.url(rel))
                starts[i] = max(0, size - n_bytes)
        data_or_errors = self.calls.cat_ranges(paths, starts, [None] * len(paths), on_error="return")
        for rel, data in zip(tails, data_or_errors, strict=True):
            _raise_for(self.url(rel), data)
        return dict(zip(tails, data_or_errors, strict=True))

    def _local_tail(self, rel: str, n_bytes: int) -> bytes:
        try:
            with open(self.path(rel), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return os.pread(file.fileno(), n_bytes, max(0, size - n_bytes))
        except IsADirectoryError as error:
            raise folder_in_place_of(self.url(rel)) from error

    def read_ranges(self, ranges: Sequence[Range]) -> None:
        """Fill every range's buffer; all requests of one call are under way together where the filesystem can.

        FileNotFoundError if an object is not there, ShortReadError if it ends too early.
        """
        if self.is_local:
            self._read_local(ranges)
            return
        groups = merged(ranges)
        stops = [max(piece.stop for piece in group) for group in groups]
        data_or_errors = self.calls.cat_ranges(
            [self.path(group[0].rel) for group in groups], [group[0].start for group in groups], stops, on_error="return"
        )
        for group, stop, data in zip(groups, stops, data_or_errors, strict=True):
            _raise_for(self.url(group[0].rel), data)
            if len(data) < stop - group[0].start:
                raise ShortReadError.before(group[0].rel, stop)
            view = memoryview(data)
            for piece in group:
                offset = piece.start - group[0].start
                piece.into[:] = view[offset : offset + piece.into.nbytes]

    def _read_local(self, ranges: Sequence[Range]) -> None:
        # A file is opened anew for every call: one that has vanished or was replaced since is noticed.
        open_rel, descriptor = "", -1
        try:
            for rel, start, into in ranges:
                if rel != open_rel:
                    if descriptor >= 0:
                        os.close(descriptor)
                    open_rel, descriptor = rel, -1
                    descriptor = os.open(self.path(rel), os.O_RDONLY)
                done = 0
                while done < len(into):  # a system call may give fewer bytes than asked for (2 GiB on Linux)
                    n_bytes = os.preadv(descriptor, (into[done:],), start + done)
                    if n_bytes == 0:
                        raise ShortReadError.before(rel, start + len(into))
                    done += n_bytes
        except IsADirectoryError as error:
            raise folder_in_place_of(self.url(open_rel)) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def confirm(self, *, now: bool = False) -> None:
        """Called after an object was opened. A root of no store in particular has nothing to confirm: see `watched.StoreRoot`."""

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Relative name → bytes of every object below the folder ``prefix``, as `listed` has them."""
        return {rel: listed.size for rel, listed in self.listed(prefix).items()}

    def listed(self, prefix: str = "") -> dict[str, "Listed"]:
        """Relative name → size and `stamp` of every object below the folder ``prefix``, sorted, from one listing.

        Half-written temporary files are left out. Empty if there is no such folder.
        """
        self.calls.invalidate_cache()
        base = self.path()
        folder = self.path(prefix.rstrip("/"))
        try:
            infos = self.calls.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        head = base.rstrip("/") + "/"
        listed: dict[str, Listed] = {}
        for path, info in sorted(infos.items()):
            is_temporary = posixpath.basename(path).startswith(TEMPORARY_PREFIX)
            if path.startswith(head) and info["type"] == "file" and not is_temporary:
                try:
                    stamp = local_stamp(os.stat(path)) if self.is_local else _stamp_of(info)
                except FileNotFoundError:  # removed since it was listed
                    continue
                listed[path[len(head) :]] = Listed(int(info["size"]), stamp)
        return listed

    def names(self, folder: str) -> list[str]:
        """Names of what stands directly in ``folder``, sorted, without half-written files; [] if there is no such folder."""
        self.calls.invalidate_cache()
        try:
            if self.is_local:
                names = os.listdir(self.path(folder))
            else:
                names = [posixpath.basename(path.rstrip("/")) for path in self.calls.ls(self.path(folder), detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if name and not name.startswith(TEMPORARY_PREFIX))

    def list(self, prefix: str = "") -> list[str]:
        """Relative names of every object below the folder ``prefix``, sorted."""
        return list(self.sizes(prefix))

    def holds(self, prefix: str) -> bool:
        """Whether there is a folder ``prefix``, though it may be empty, or hold half-written files alone."""
        return described(self.calls, self.path(prefix)) is not None


class Listed(NamedTuple):
    """What a listing tells of an object: its size in bytes, and its stamp."""

    size: int
    stamp: str


def _stamp_of(info: Mapping[str, Any]) -> str:
    return next((f"{name}={info[name]}" for name in _STAMPS if info.get(name)), "")


def folder_in_place_of(url: str) -> ShardCorruptError:
    """The error of a folder that has an object's name."""
    return ShardCorruptError(f"{url} is a folder, where an object of the store must stand: move that folder away")


def described(calls: Any, path: str) -> dict[str, Any] | None:
    """What a filesystem says now of an object or a folder, None without one. Not ``exists``, which takes any failure for a no."""
    calls.invalidate_cache()
    try:
        return dict(calls.info(path))
    except FileNotFoundError:
        return None


def comparable(stamp: str) -> str:
    """What of a stamp outlives a copy that keeps times: of a local file's, the time of its last change."""
    inode, dash, changed = stamp.partition("-")
    return changed if dash and inode.isdecimal() else stamp


def local_stamp(status: os.stat_result) -> str:
    """`ReadableRoot.stamp` of a local file."""
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _raise_for(url: str, data_or_error: Any) -> None:
    """Raise what a filesystem returned in place of bytes; a missing object by its URL."""
    error = told(data_or_error, url) if isinstance(data_or_error, Exception) else data_or_error
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(url) from error
    if isinstance(error, BaseException):
        raise error
