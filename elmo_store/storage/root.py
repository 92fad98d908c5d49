"""A store's root on any fsspec filesystem: whole objects in, whole objects or ranges out.

Writing an object is atomic everywhere: an object store's put is; on a local disk, and on file servers, the bytes go to a
temporary file in the same folder that then takes the name. Readers therefore see an object whole or not at all.
"""

import ctypes
import hashlib
import json
import os
import posixpath
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import PurePosixPath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.storage.data import Data, joined, pieces_of
from elmo_store.storage.failures import Calls, telling, told
from elmo_store.storage.filesystems import checked, is_azure, is_file_server, names_filesystem, opened
from elmo_store.storage.process import is_abandoned, temporary_tag
from elmo_store.storage.ranges import Range, ShortReadError, merged

TEMPORARY_PREFIX = ".writing-"
_TEMPORARY_SUFFIX = "~"  # DuckDB, dask and Polars take every *.parquet of a folder, hidden ones too
MOST_JSON_BYTES = 1 << 26  # Python's values take some twenty times as much
SETTLE_SECONDS = 1.0  # how long a put of someone else may take to show, where nothing can be put on a condition
_STAMPS = ("ETag", "etag", "md5Hash", "checksum", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None)  # of the C library, on Linux: one filesystem's buffers, not all


class Root:
    """A directory or object prefix, by URL. Cheap to make and to pickle: the filesystem is opened when it is first used.

    ``rel`` is everywhere a path relative to the root, with ``/`` between its names.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        """``url``: anything fsspec understands, a plain local path too; ``storage_options``: what its filesystem takes."""
        self.storage_options = dict(storage_options or {})
        text = os.fspath(url)
        if not text:
            raise StoreError("the location of the store is empty: give a folder or a URL")
        if not names_filesystem(text):
            text = os.path.abspath(text)  # worker processes may have another working folder
        self._location = text.rstrip("/") or "/"
        self._opened: tuple[int, fsspec.AbstractFileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"storage_options": self.storage_options, "_location": self._location, "_opened": None}

    def __repr__(self) -> str:
        return f"Root({self._location!r})"

    def __str__(self) -> str:
        return self._location

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Root):
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
        return Calls(filesystem, puts_whole=not is_file_server(filesystem))

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

    def put(self, rel: str, data: Data) -> None:
        """Write the object ``rel`` whole, over what may be there."""
        self._put(rel, data)

    def put_stamped(self, rel: str, data: Data) -> str:
        """`put`; returns the object's `stamp`. On a local disk it is surely of these bytes, whoever else writes."""
        return self._put(rel, data) or self.stamp(rel) or ""

    def _put(self, rel: str, data: Data) -> str:
        """Write ``rel``; returns its stamp where the writing itself tells it, otherwise ""."""
        path, filesystem, calls = self.path(checked(rel)), self.filesystem, self.calls
        if self.is_local:
            with self._temporary(path) as temporary:
                _write(temporary, data)
                stamp = _local_stamp(os.stat(temporary))
                self._check_owner()
                os.replace(temporary, path)
            return stamp
        if not getattr(filesystem, "takes_pieces", False):
            data = bytes(joined(data)) if is_azure(filesystem) else joined(data)
        if not is_file_server(filesystem):
            calls.pipe_file(path, data)
            return ""
        with self._temporary_remote(path) as temporary:
            calls.pipe_file(temporary, data)
        return ""

    @contextmanager
    def _temporary_remote(self, path: str) -> Iterator[str]:
        """A name beside ``path`` of a file server for a file that is then moved onto it; none is left behind."""
        calls = self.calls
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/{_temporary_name(name)}"
        _make_folder(calls, folder)
        try:
            yield temporary
            self._check_owner()
            _move_remote(calls, temporary, path)
            self._check_owner()  # what was swept counts there as moved
        except BaseException:
            if calls.exists(temporary):
                calls.rm_file(temporary)
            raise

    def _check_owner(self) -> None:
        """Asked when a file is written and has yet to get its name: a root that belongs to a run raises if another has it."""

    def remove_temporaries(self, prefix: str = "", *, but: str = "") -> None:
        """Remove the files below the folder ``prefix`` that have yet to get their names, which nobody can give them then.

        ``but``: a folder that is left as it is. Object stores have no such files.
        """
        if self.is_local:
            left = self.path(but) if but else ""
            paths = []
            for folder, folders, names in os.walk(self.path(prefix)):
                folders[:] = [name for name in folders if os.path.join(folder, name) != left]
                paths += [os.path.join(folder, name) for name in names]
        elif is_file_server(self.filesystem):
            paths = self.calls.find(self.path(prefix), **self._whole_listing())
        else:
            return
        for path in paths:
            if posixpath.basename(path).startswith(TEMPORARY_PREFIX):
                with suppress(FileNotFoundError):
                    self.calls.rm_file(path)

    @contextmanager
    def _temporary(self, path: str) -> Iterator[str]:
        """A name beside the local ``path`` for a file that is to be moved onto it; none is left behind."""
        folder = self._made_folder(path)
        temporary = os.path.join(folder, _temporary_name(os.path.basename(path)))
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

    def _made_folder(self, path: str) -> str:
        """The folder of the local ``path``, made if it is missing. StoreError if a link below the root stands in its way."""
        if link := self._link_above(path):
            raise StoreError(
                f"{link} is a link to {os.readlink(link)}, and nothing is written outside {self}: put the folder itself there"
            )
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        return folder

    def _link_above(self, path: str) -> str | None:
        """The first folder between this local root and ``path`` that is a symbolic link."""
        folder = self.path()
        for name in os.path.relpath(path, folder).split(os.sep)[:-1]:
            folder = os.path.join(folder, name)
            if os.path.islink(folder):
                return folder
        return None

    def put_file(self, rel: str, path: str) -> None:
        """`put` of what the local file ``path`` holds, in bounded memory."""
        final = self.path(checked(rel))
        if self.is_local:
            with self._temporary(final) as temporary:
                shutil.copyfile(path, temporary)
                os.replace(temporary, final)
            return
        with self._temporary_remote(final) if is_file_server(self.filesystem) else nullcontext(final) as target:
            self.calls.put_file(path, target)
        self.calls.invalidate_cache()

    def put_link(self, rel: str, path: str) -> None:
        """`put_file`, by a hard link where this root and the local file ``path``, which nobody may write into, share a disk."""
        if self.is_local:
            final = self.path(checked(rel))
            with self._temporary(final) as temporary, suppress(OSError):  # another disk, or one without links
                os.link(path, temporary)
                os.replace(temporary, final)
                return
        self.put_file(rel, path)

    def put_new(self, rel: str, data: bytes | bytearray) -> bool:
        """Write ``rel`` unless there is such an object; False if there is. Of many who try at once one succeeds.

        Where the filesystem has no put on a condition: look, put, and look again after `SETTLE_SECONDS`.
        """
        path = self.path(checked(rel))
        if self.is_local:
            with self._temporary(path) as temporary:
                _write(temporary, data)
                try:
                    os.link(temporary, path)
                    return True
                except FileExistsError:
                    return False
                except OSError:  # a disk without hard links
                    return self._put_looking(rel, data)
        if self.size(rel) is not None:
            return False
        if is_file_server(self.filesystem):
            _make_folder(self.calls, posixpath.dirname(path))
        try:
            self.calls.pipe_file(path, data, mode="create")
        except (ValueError, TypeError, NotImplementedError):
            return self._put_looking(rel, data)
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
        except (ValueError, TypeError, NotImplementedError):  # it knows no condition
            self.calls.put_file(path, self.path(rel))
        except OSError:  # FileExistsError, but some servers' clients name it otherwise
            if self.size(rel) is None:
                raise
            return False
        return True

    def put_apart(self, apart: str, data: bytes | bytearray) -> None:
        """Write the file ``apart``, which nobody reads until it is moved: not atomically. On local disks and file servers."""
        path = self.path(checked(apart))
        if not self.is_local:
            _make_folder(self.calls, posixpath.dirname(path))
            self.calls.pipe_file(path, data)
            return
        self._made_folder(path)
        _write(path, data)

    def move(self, apart: str, rel: str) -> None:
        """Give the file ``apart`` the name ``rel``, in place of what may have it. On local disks and file servers."""
        path, target = self.path(checked(apart)), self.path(checked(rel))
        if not self.is_local:
            _move_remote(self.calls, path, target)
            return
        self._made_folder(target)
        os.replace(path, target)

    def move_new(self, apart: str, rel: str) -> bool:
        """`move` unless something has the name; False if so. On a local disk with hard links one of many who try succeeds.

        FileNotFoundError if ``apart`` is not there.
        """
        path, target = self.path(checked(apart)), self.path(checked(rel))
        if self.is_local:
            self._made_folder(target)
            try:
                os.link(path, target)
                os.remove(path)
                return True
            except FileNotFoundError:
                raise
            except FileExistsError:
                return False
            except OSError:  # a disk without hard links
                pass
        if self.exists(rel):
            return False
        self.move(apart, rel)
        return True

    def _put_looking(self, rel: str, data: bytes | bytearray) -> bool:
        if self.size(rel) is not None:
            return False
        self.put(rel, data)
        time.sleep(SETTLE_SECONDS)
        return self.get(rel) == data

    def stamp(self, rel: str) -> str | None:
        """What tells this version of the object ``rel`` from any other that was put: ETag, generation, inode and time.

        None if there is no such object, "" where the filesystem tells nothing but its size, or times of whole seconds.
        """
        if self.is_local:
            try:
                return _local_stamp(os.stat(self.path(rel)))
            except FileNotFoundError:
                return None
        self.calls.invalidate_cache()
        try:
            info = self.calls.info(self.path(rel))
        except FileNotFoundError:
            return None
        if is_file_server(self.filesystem):
            return ""
        return next((f"{name}={info[name]}" for name in _STAMPS if info.get(name)), "")

    def get(self, rel: str) -> bytes:
        """The bytes of ``rel``. FileNotFoundError if it is not there, ShardCorruptError if a folder stands there."""
        try:
            data: bytes = self.calls.cat_file(self.path(checked(rel)), **self._one_request())
        except FileNotFoundError as error:  # some libraries name no object
            raise FileNotFoundError(self.url(rel)) from error
        except IsADirectoryError as error:
            raise folder_in_place_of(self.url(rel)) from error
        return data

    def _one_request(self) -> dict[str, Any]:
        """What keeps a filesystem from asking for an object's size before it asks for the object."""
        protocol = self.filesystem.protocol
        return {"max_concurrency": 1} if "s3" in ((protocol,) if isinstance(protocol, str) else protocol) else {}

    def sha256(self, rel: str) -> str:
        """SHA-256 of ``rel``, 64 hexadecimal digits; in bounded memory on a local disk. FileNotFoundError if it is not there."""
        if not self.is_local:
            return hashlib.sha256(self.get(rel)).hexdigest()
        with open(self.path(checked(rel)), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def get_many(self, rels: Sequence[str]) -> list[bytes]:
        """The bytes of each of ``rels``, all asked for at once where the filesystem can. FileNotFoundError names one missing."""
        if self.is_local or len(rels) < 2:
            return [self.get(rel) for rel in rels]
        by_path: dict[str, Any] = self.calls.cat([self.path(rel) for rel in rels], on_error="return", **self._one_request())
        values = [by_path[self.path(rel)] for rel in rels]
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
        if is_azure(self.filesystem) or is_file_server(self.filesystem):  # which know no ranges from the end
            for i, (rel, n_bytes) in enumerate(tails.items()):
                size = Root.size(self, rel)
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

    def exists(self, rel: str) -> bool:
        """True if there is an object ``rel``; asked of the filesystem anew, no listing of earlier is trusted."""
        return self.size(rel) is not None

    def size(self, rel: str) -> int | None:
        """Bytes of ``rel``; None if there is no such object."""
        self.calls.invalidate_cache()
        try:
            info = self.calls.info(self.path(rel))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Relative name → bytes of every object below the folder ``prefix``, sorted, from one listing.

        Half-written temporary files are left out. Empty if there is no such folder.
        """
        self.calls.invalidate_cache()
        base = self.path()
        folder = self.path(prefix.rstrip("/"))
        try:
            infos = self.calls.find(folder, detail=True, **self._whole_listing())
        except FileNotFoundError:
            return {}
        head = base.rstrip("/") + "/"
        sizes: dict[str, int] = {}
        for path, info in sorted(infos.items()):
            is_temporary = posixpath.basename(path).startswith(TEMPORARY_PREFIX)
            if path.startswith(head) and info["type"] == "file" and not is_temporary:
                sizes[path[len(head) :]] = int(info["size"])
        return sizes

    def _whole_listing(self) -> dict[str, Any]:
        """What keeps a listing from leaving out the folders of a file server that it can't read, which may be all."""
        return {"on_error": _raise_unless_missing} if is_file_server(self.filesystem) else {}

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

    def remove(self, rel: str) -> None:
        """Remove the object ``rel``; nothing happens if it is not there. A link in its way is removed, and not followed."""
        path = self.path(checked(rel))
        try:
            self.calls.rm_file(self._link_above(path) or path if self.is_local else path)
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

    def holds(self, prefix: str) -> bool:
        """Whether there is a folder ``prefix``, though it may be empty, or hold half-written files alone."""
        self.calls.invalidate_cache()
        return _is_there(self.calls, self.path(prefix))

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

    def remove_empty(self, prefix: str) -> None:
        """Remove the folder ``prefix`` of a local disk and those below it that hold nothing; of a link in its place the link."""
        if self.is_local and os.path.islink(self.path(prefix)):
            os.remove(self.path(prefix))
        elif self.is_local:
            for folder, _, _ in os.walk(self.path(prefix), topdown=False):
                with suppress(OSError):  # something stands in it
                    os.rmdir(folder)

    def flush(self) -> None:
        """Return when what was written is safe from a loss of power: on a local disk its system's buffers are written out.

        Object stores and file servers keep what they have acknowledged; a disk that other machines write to too (NFS) has it
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

    def put_json(self, rel: str, value: Any) -> None:
        """Write ``value`` as `encoded_json` has it."""
        self.put(rel, encoded_json(value))

    def get_json(self, rel: str) -> Any:
        """Parse ``rel`` as JSON. FileNotFoundError if it is not there, ValueError if it is not JSON in UTF-8, or too large."""
        if self.is_local and os.stat(self.path(checked(rel))).st_size > MOST_JSON_BYTES:  # elsewhere that is a request more
            raise ValueError(f"it has more than {MOST_JSON_BYTES:,} bytes")
        return parse_json(self.get(rel))


def encoded_json(value: Any) -> bytes:
    """``value`` as JSON in UTF-8, keys in the order given, with two spaces of indent."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_json(data: bytes) -> Any:
    """The value of JSON in UTF-8. ValueError for anything else, more than `MOST_JSON_BYTES`, or values nested too deeply."""
    if len(data) > MOST_JSON_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, more than {MOST_JSON_BYTES:,}")
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def folder_in_place_of(url: str) -> ShardCorruptError:
    """The error of a folder that has an object's name."""
    return ShardCorruptError(f"{url} is a folder, where an object of the store must stand: move that folder away")


def _move_remote(calls: Any, path: str, target: str) -> None:
    """Move a file of a file server, in place of what may have the name ``target``."""
    try:
        calls.mv(path, target)
    except Exception:
        if not _is_there(calls, target):
            raise
        if not _is_there(calls, path):  # it was moved all the same, and the answer was lost
            return
        calls.rm_file(target)  # some servers move onto no file that is there: it is absent for a moment, never torn
        calls.mv(path, target)


def _is_there(calls: Any, path: str) -> bool:
    """Whether there is such an object. Not ``exists``, which takes any failure for a no."""
    try:
        calls.info(path)
    except FileNotFoundError:
        return False
    return True


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_folder(calls: Any, path: str) -> None:
    """Make a folder of a file server and those above it; someone else may be doing just that."""
    for attempts_left in (2, 1, 0):
        try:
            calls.makedirs(path, exist_ok=True)
            return
        except OSError:
            if not attempts_left and not calls.isdir(path):
                raise


def _write(path: str, data: Data) -> None:
    with open(path, "wb") as file:
        file.writelines(pieces_of(data))


def _temporary_name(name: str) -> str:
    return f"{TEMPORARY_PREFIX}{temporary_tag()}{name}"[:254] + _TEMPORARY_SUFFIX


def _local_stamp(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _raise_for(url: str, data_or_error: Any) -> None:
    """Raise what a filesystem returned in place of bytes; a missing object by its URL."""
    error = told(data_or_error, url) if isinstance(data_or_error, Exception) else data_or_error
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(url) from error
    if isinstance(error, BaseException):
        raise error
