"""A store's root on a disk or an object store: what is read there, see `readable`, and whole objects put and removed.

Writing an object is atomic: an object store's put is; on a local disk the bytes go to a temporary file in the same folder that
then takes the name. Readers therefore see an object whole or not at all.
"""

import ctypes
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any

from elmo_store.errors import StoreError
from elmo_store.storage.data import Data, joined, pieces_of
from elmo_store.storage.filesystems import checked, is_azure
from elmo_store.storage.json_values import encoded_json
from elmo_store.storage.process import is_abandoned, temporary_tag
from elmo_store.storage.readable import TEMPORARY_PREFIX, ReadableRoot, local_stamp

_TEMPORARY_SUFFIX = "~"  # DuckDB, dask and Polars take every *.parquet of a folder, hidden ones too
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None)  # of the C library, on Linux: one filesystem's buffers, not all


class Root(ReadableRoot):
    """A root that is written to: each method here changes what stands there. A `JobRoot` makes sure that its run may."""

    def put(self, rel: str, data: Data) -> None:
        """Write the object ``rel`` whole, over what may be there."""
        self._put(rel, data)

    def put_stamped(self, rel: str, data: Data) -> str:
        """`put`; returns the object's `stamp`. On a local disk it is surely of these bytes, whoever else writes."""
        return self._put(rel, data) or self.stamp(rel) or ""

    def put_json(self, rel: str, value: Any) -> None:
        """Write ``value`` as `encoded_json` has it."""
        self.put(rel, encoded_json(value))

    def _put(self, rel: str, data: Data) -> str:
        """Write ``rel``; returns its stamp where the writing itself tells it, otherwise ""."""
        path, filesystem = self.path(checked(rel)), self.filesystem
        if not self.is_local and not getattr(filesystem, "takes_pieces", False):
            data = bytes(joined(data)) if is_azure(filesystem) else joined(data)
        with self._apart(path) as apart:
            if not self.is_local:
                self.calls.pipe_file(apart, data)
                return ""
            _write(apart, data)
            return local_stamp(os.stat(apart))

    @contextmanager
    def _apart(self, path: str) -> Iterator[str]:
        """Where an object is written whose name will be ``path``: a file beside it, then moved, or there if puts are atomic."""
        if not self.is_local:
            yield path
            return
        with self._temporary(path) as temporary:
            yield temporary
            self._check_owner()
            os.replace(temporary, path)

    def _check_owner(self) -> None:
        """Asked when a file is written and has yet to get its name: a root that belongs to a run raises if another has it."""

    @contextmanager
    def _temporary(self, path: str) -> Iterator[str]:
        """A name beside ``path``, of a disk, for a file that is to be moved onto it; none is left behind."""
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, _temporary_name(name))
        self._make_folder_of(path)
        try:
            yield temporary
        except BaseException:
            with suppress(FileNotFoundError):
                os.remove(temporary)
            with suppress(OSError):  # it holds something; made for this object alone, it goes with it
                os.rmdir(folder)
            raise
        with suppress(FileNotFoundError):  # moved, or swept by the owner of what it is put beside
            os.remove(temporary)

    def _make_folder_of(self, path: str) -> None:
        """Make the folder of a disk's object. StoreError if a link below the root stands in its way."""
        if link := self._link_above(path):
            raise StoreError(
                f"{link} is a link to {os.readlink(link)}, and nothing is written outside {self}: put the folder itself there"
            )
        os.makedirs(posixpath.dirname(path), exist_ok=True)

    def _link_above(self, path: str) -> str | None:
        """The first folder between this local root and ``path`` that is a symbolic link."""
        folder = self.path()
        if not self.is_local:
            return None
        for name in os.path.relpath(path, folder).split(os.sep)[:-1]:
            folder = os.path.join(folder, name)
            if os.path.islink(folder):
                return folder
        return None

    def put_file(self, rel: str, path: str) -> None:
        """`put` of what the local file ``path`` holds, in bounded memory."""
        with self._apart(self.path(checked(rel))) as apart:
            self.calls.put_file(path, apart)
        self.calls.invalidate_cache()

    def put_link(self, rel: str, path: str) -> None:
        """`put_file`, by a hard link where this root and the local file ``path``, which nobody may write into, share a disk."""
        if self.is_local:
            with suppress(OSError), self._apart(self.path(checked(rel))) as apart:  # another disk, or one without links
                os.link(path, apart)
                return
        self.put_file(rel, path)

    def put_new(self, rel: str, data: bytes | bytearray) -> bool:
        """Write ``rel`` unless it exists; False if it has other bytes. Of many who try, each with its own, one succeeds."""
        path = self.path(checked(rel))
        if self.is_local:
            with self._temporary(path) as temporary:
                _write(temporary, data)
                return _take_name(temporary, path)
        if self.size(rel) is not None:
            return self.get(rel) == data  # by an attempt whose answer was lost
        try:
            self.calls.pipe_file(path, data, mode="create")
        except OSError:  # FileExistsError, but some servers' clients name it otherwise
            if self.size(rel) is None:
                raise
        self.calls.invalidate_cache()
        return self.get(rel) == data  # a filesystem that ignores the condition, or a put that was tried again

    def put_new_file(self, rel: str, path: str) -> bool:
        """`put_new` of the file ``path`` of this machine, of any size; for object stores, whose puts are whole by themselves."""
        if self.size(rel) is not None:
            return False
        try:
            self.calls.put_file(path, self.path(checked(rel)), mode="create")
        except OSError:  # FileExistsError, but some servers' clients name it otherwise
            if self.size(rel) is None:
                raise
            return False
        return True

    def move_new(self, temporary: str, rel: str) -> bool:
        """Give the file ``temporary`` of a local disk the name ``rel``; False if something has it. FileNotFoundError."""
        path, target = self.path(checked(temporary)), self.path(checked(rel))
        self._make_folder_of(target)
        if not _take_name(path, target):
            return False
        with suppress(FileNotFoundError):
            os.remove(path)
        return True

    def remove(self, rel: str) -> None:
        """Remove the object ``rel``; nothing happens if it is not there. A link in its way is removed, and not followed."""
        path = self.path(checked(rel))
        try:
            self.calls.rm_file(self._link_above(path) or path)
        except FileNotFoundError:
            return
        self.calls.invalidate_cache()

    def remove_many(self, rels: Sequence[str]) -> None:
        """Remove these objects, as far as they are there; on a local disk also the folders that this leaves empty."""
        if not rels:
            return
        paths = [self.path(checked(rel)) for rel in rels]
        if not self.is_local:
            try:
                self.calls.rm(paths)
            except FileNotFoundError:  # by an attempt whose answer was lost
                for rel in rels:
                    self.remove(rel)
            self.calls.invalidate_cache()
            return
        for path in paths:
            with suppress(FileNotFoundError):
                os.remove(self._link_above(path) or path)
        base = self.path()
        folders = {str(folder) for rel in rels for folder in PurePosixPath(rel).parents[:-1]}
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # what is not ours stands in it
                os.rmdir(os.path.join(base, folder))

    def remove_tree(self, prefix: str = "") -> None:
        """Remove everything below the folder ``prefix`` (all of the root without one)."""
        folder = self.path(prefix.rstrip("/"))
        if folder in ("", "/") or not folder.strip("/"):
            raise StoreError(f"{self}: refusing to remove the whole filesystem")
        self.calls.invalidate_cache()
        try:
            self.calls.rm(folder, recursive=True)
        except FileNotFoundError:
            return
        self.calls.invalidate_cache()

    def remove_empty(self, prefix: str) -> None:
        """Remove the folder ``prefix`` of a local disk and those below it that hold nothing; of a link in its place the link."""
        if self.is_local and os.path.islink(self.path(prefix)):
            os.remove(self.path(prefix))
        elif self.is_local:
            for folder, _, _ in os.walk(self.path(prefix), topdown=False):
                with suppress(OSError):  # something stands in it
                    os.rmdir(folder)

    def remove_temporaries(self, prefix: str = "", *, but: str = "") -> None:
        """Remove the files below the folder ``prefix`` that have yet to get their names, which nobody can give them then.

        ``but``: a folder that is left as it is. Object stores have no such files.
        """
        if not self.is_local:
            return
        left = self.path(but) if but else ""
        for folder, folders, names in os.walk(self.path(prefix)):
            folders[:] = [name for name in folders if os.path.join(folder, name) != left]
            for name in names:
                if name.startswith(TEMPORARY_PREFIX):
                    with suppress(FileNotFoundError):
                        os.remove(os.path.join(folder, name))

    def sweep(self, prefix: str = "", name: str = "") -> None:
        """Remove the half-written files in the folder ``prefix`` that killed processes left; ``name``: of this object alone.

        On a local disk; nothing that a live process writes is touched, see `process.is_abandoned`.
        """
        if not self.is_local or not os.path.isdir(self.path(prefix)):
            return
        with os.scandir(self.path(prefix)) as entries:
            for entry in entries:
                ending = f"-{name}{_TEMPORARY_SUFFIX}" if name else ""
                if not entry.name.startswith(TEMPORARY_PREFIX) or not entry.name.endswith(ending):
                    continue
                with suppress(FileNotFoundError):  # its writer, or another sweeper, was faster
                    changed = entry.stat(follow_symlinks=False).st_mtime
                    if is_abandoned(entry.name.removeprefix(TEMPORARY_PREFIX), changed):
                        os.remove(entry.path)

    def flush(self) -> None:
        """Return when what was written is safe from a loss of power: on a local disk its system's buffers are written out.

        Object stores keep what they have acknowledged; a disk that other machines write to too (NFS) has it
        at the server once a writer has closed its file.
        """
        if not self.is_local:
            return
        descriptor = os.open(self.path(), os.O_RDONLY)
        try:
            if _SYNCFS is None or _SYNCFS(descriptor) != 0:
                os.sync()
        finally:
            os.close(descriptor)


def _take_name(temporary: str, path: str) -> bool:
    """Give a file of a local disk the name ``path`` too, unless something has it; False if so."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # a disk without hard links: whoever makes the name may put the file there
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        os.replace(temporary, path)
    return True


def _write(path: str, data: Data) -> None:
    with open(path, "wb") as file:
        file.writelines(pieces_of(data))


def _temporary_name(name: str) -> str:
    return f"{TEMPORARY_PREFIX}{temporary_tag()}{name}"[:254] + _TEMPORARY_SUFFIX
