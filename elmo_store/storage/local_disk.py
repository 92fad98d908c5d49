"""Objects as files of a local or mounted disk.

The bytes of a put go to a temporary file in the same folder, which then takes the name. So an owner who sweeps the temporary
files of a run before prevents its late puts: see `elmo_store.storage.lease`.
"""

import ctypes
import errno
import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path, PurePosixPath
from stat import S_ISREG

from elmo_store.errors import DiskFullError, StoreError
from elmo_store.storage.data import (
    TEMPORARY_PREFIX,
    Before,
    Data,
    Listed,
    Range,
    ShortReadError,
    crc32c_of,
    nothing,
    open_regular,
    pieces_of,
    read_regular,
    size_of,
)
from elmo_store.storage.process import is_abandoned, is_temporary_of, temporary_tag

_TEMPORARY_SUFFIX = "~"  # DuckDB, dask and Polars take every *.parquet of a folder, hidden ones too
COPY_BYTES = 1 << 20  # at a time
ROOM_BYTES = 16 << 20  # that a library may hold back before it writes to a file
_ATTEMPTS = 10  # to make a folder and a file in it while others remove the folder
_SYNCFS = getattr(
    ctypes.CDLL(None), "syncfs", None
)  # of the C library, on Linux: one filesystem's buffers, not all


class LocalDisk:
    """The files below ``folder``. Nothing is written or removed through a link below it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _path(self, rel: str) -> str:
        return self._folder.rstrip("/") + "/" + rel.rstrip("/") if rel else self._folder

    def get(self, rel: str, most_bytes: int | None = None) -> bytes:
        return read_regular(self._path(rel), most_bytes)

    def crc32c(self, rel: str) -> str:
        with open_regular(self._path(rel)) as file:
            return crc32c_of(file)

    def get_many(self, rels: Sequence[str], most_bytes: int | None = None) -> list[bytes]:
        return [read_regular(self._path(rel), most_bytes, rel) for rel in rels]

    def tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        data = {}
        for rel, n_bytes in tails.items():
            with open_regular(self._path(rel)) as file:
                size = os.fstat(file.fileno()).st_size
                data[rel] = os.pread(file.fileno(), n_bytes, max(0, size - n_bytes))
        return data

    def ranges(self, ranges: Sequence[Range]) -> None:
        for rel, pieces in groupby(ranges, key=lambda piece: piece.rel):
            # Opened anew for every call: a file that has vanished or was replaced is noticed.
            with open_regular(self._path(rel)) as file:
                for piece in pieces:
                    file.seek(piece.start)
                    if file.readinto(piece.into) < piece.into.nbytes:  # type: ignore[attr-defined]
                        raise ShortReadError(rel, f"ends before byte {piece.stop}")

    def stat(self, rel: str) -> Listed | None:
        try:
            status = os.stat(self._path(rel))
        except FileNotFoundError:
            return None
        return Listed(status.st_size, local_stamp(status)) if S_ISREG(status.st_mode) else None

    def listed(self, prefix: str) -> dict[str, Listed]:
        top, listed = self._path(""), dict[str, Listed]()
        for folder, _, names in os.walk(self._path(prefix), onerror=_raise_unless_missing):
            for name in names:
                path = os.path.join(folder, name)
                if name.startswith(TEMPORARY_PREFIX):
                    continue
                try:
                    status = os.stat(path)  # of a link what it leads to, as readers have it
                except (
                    OSError
                ) as error:  # removed since it was listed, or a link that leads nowhere
                    if not isinstance(error, FileNotFoundError) and not os.path.islink(path):
                        raise
                    continue
                if S_ISREG(status.st_mode):
                    listed[os.path.relpath(path, top)] = Listed(status.st_size, local_stamp(status))
        return dict(sorted(listed.items()))

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(
                name
                for name in os.listdir(self._path(folder))
                if not name.startswith(TEMPORARY_PREFIX)
            )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def put(
        self, rel: str, data: Data | Path, before: Before = nothing, *, link: bool = False
    ) -> str:
        with self._temporary(rel, data, before, link=link) as temporary:
            stamp = local_stamp(os.stat(temporary))  # surely of these bytes, whoever else writes
            before()
            os.replace(temporary, self._path(rel))
        return stamp

    def put_new(self, rel: str, data: Data | Path, before: Before = nothing) -> bool:
        with self._temporary(rel, data, before, link=True) as temporary:
            before()
            return _take_name(temporary, self._path(rel))

    def remove(self, rels: Sequence[str], before: Before = nothing) -> None:
        before()
        for path in map(self._path, rels):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.remove(self._link_above(path) or path)
        folders = {str(folder) for rel in rels for folder in PurePosixPath(rel).parents[:-1]}
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # it holds something
                os.rmdir(self._path(folder))

    def remove_tree(self, prefix: str, before: Before = nothing) -> None:
        before()
        folder = self._path(prefix)
        if os.path.islink(folder) or os.path.isfile(folder):
            os.remove(folder)
        elif os.path.isdir(folder):
            shutil.rmtree(folder)

    def remove_unfinished(self, prefix: str, but: str = "", before: Before = nothing) -> None:
        before()
        left = self._path(but) if but else ""
        for folder, folders, names in os.walk(self._path(prefix)):
            folders[:] = [name for name in folders if os.path.join(folder, name) != left]
            for name in names:
                if name.startswith(TEMPORARY_PREFIX):
                    with suppress(FileNotFoundError):
                        os.remove(os.path.join(folder, name))

    def remove_unfinished_of(self, rels: Sequence[str], before: Before = nothing) -> None:
        before()
        for rel in rels:
            folder, name = posixpath.split(self._path(rel))
            for left in Path(folder).glob(f"{TEMPORARY_PREFIX}*{_TEMPORARY_SUFFIX}"):
                tagged = left.name.removeprefix(TEMPORARY_PREFIX).removesuffix(_TEMPORARY_SUFFIX)
                if is_temporary_of(tagged, name):
                    left.unlink(missing_ok=True)

    def remove_empty(self, prefix: str, before: Before = nothing) -> None:
        before()
        if os.path.islink(self._path(prefix)):
            os.remove(self._path(prefix))
            return
        for folder, _, _ in os.walk(self._path(prefix), topdown=False):
            with suppress(OSError):  # it holds something
                os.rmdir(folder)

    def sweep(self, folder: str, name: str = "") -> None:
        """Nothing that a live process writes is removed, see `process.is_abandoned`."""
        if not os.path.isdir(self._path(folder)):
            return
        ending = f"-{name}{_TEMPORARY_SUFFIX}" if name else ""
        with os.scandir(self._path(folder)) as entries:
            for entry in entries:
                if not entry.name.startswith(TEMPORARY_PREFIX) or not entry.name.endswith(ending):
                    continue
                with suppress(FileNotFoundError):  # its writer, or another sweeper, was faster
                    changed = entry.stat(follow_symlinks=False).st_mtime
                    if is_abandoned(entry.name.removeprefix(TEMPORARY_PREFIX), changed):
                        os.remove(entry.path)

    def flush(self) -> None:
        """A disk that other machines write to too (NFS) has a file at the server once its writer has closed it."""
        descriptor = os.open(self._path(""), os.O_RDONLY)
        try:
            if _SYNCFS is None or _SYNCFS(descriptor) != 0:
                os.sync()
        finally:
            os.close(descriptor)

    @contextmanager
    def _temporary(
        self, rel: str, data: Data | Path, before: Before, *, link: bool
    ) -> Iterator[str]:
        """A file of ``data`` beside the object's place, which is to take its name; none is left behind."""
        before()  # here too, so that who may not write makes no folder
        folder, name = posixpath.split(self._path(rel))
        temporary = posixpath.join(folder, _temporary_name(name))
        if above := self._link_above(temporary):
            raise StoreError(
                f"{above} is a link to {os.readlink(above)}, and nothing is written outside {self._folder}: "
                "put the folder itself there"
            )
        try:
            _write_in_folder(temporary, data, link=link)
            yield temporary
        except BaseException as error:
            with suppress(FileNotFoundError):
                os.remove(temporary)
            with suppress(
                OSError
            ):  # it holds something; made for this object alone, it goes with it
                os.rmdir(folder)
            if is_full(error):
                size = os.path.getsize(data) if isinstance(data, Path) else size_of(data)
                raise disk_full(self._folder, size) from error
            raise
        with suppress(FileNotFoundError):  # moved, or swept by the owner of what it is put beside
            os.remove(temporary)

    def _link_above(self, path: str) -> str | None:
        """The first folder between the top and ``path`` that is a symbolic link."""
        folder = self._folder
        for name in os.path.relpath(path, folder).split(os.sep)[:-1]:
            folder = os.path.join(folder, name)
            if os.path.islink(folder):
                return folder
        return None


def is_full(error: BaseException) -> bool:
    """Return True for the error of a disk without space, or of a quota that is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(folder: str, n_bytes: int = 0) -> DiskFullError:
    """Return the error of a disk that has no room at ``folder``, for an object of ``n_bytes`` where that is known."""
    free = free_bytes(folder)
    figures = f"{free / 1e6:,.1f} MB are free"
    if n_bytes:
        figures += f", the next object takes {n_bytes / 1e6:,.1f} MB"
    if free >= n_bytes > 0:
        figures += "; a quota or the number of files may be used up"
    return DiskFullError(
        f"no space is left at {folder} ({figures}): make room there, then rerun the same command"
    )


def check_room(path: str, n_bytes: int) -> None:
    """Raise DiskFullError unless the disk of the file ``path`` has room for ``n_bytes`` more, and `ROOM_BYTES`."""
    folder = posixpath.dirname(path)
    if free_bytes(folder) < n_bytes + ROOM_BYTES:
        raise disk_full(folder)


def free_bytes(folder: str) -> int:
    """Return the free space of the disk of ``folder``, which need not exist yet."""
    while not os.path.exists(folder):
        folder = posixpath.dirname(folder)
    return shutil.disk_usage(folder).free


def local_stamp(status: os.stat_result) -> str:
    """The stamp of a local file."""
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _take_name(temporary: str, path: str) -> bool:
    """Give a file the name ``path`` too, unless something has it; False if so."""
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


def _write_in_folder(path: str, data: Data | Path, *, link: bool) -> None:
    """`_write`, which makes the folder too: anew if somebody removes it, with the last object in it, before the file stands."""
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            os.makedirs(posixpath.dirname(path), exist_ok=True)
            _write(path, data, link=link)
            return
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # makedirs says that it exists if it goes while it looks
            if not attempts_left:
                raise


def _write(path: str, data: Data | Path, *, link: bool) -> None:
    """Make the file ``path``; from another by a hard link, if that may be (``link``) and the disk allows it."""
    if isinstance(data, Path):
        with open_regular(str(data)) as source:
            if link:
                with suppress(OSError):  # another disk, or one without links
                    os.link(data, path)
                    return
            with open(path, "wb") as target:
                shutil.copyfileobj(source, target, COPY_BYTES)
        return
    with open(path, "wb") as file:
        file.writelines(pieces_of(data))


def _temporary_name(name: str) -> str:
    return (
        os.fsdecode(os.fsencode(f"{TEMPORARY_PREFIX}{temporary_tag()}{name}")[:254])
        + _TEMPORARY_SUFFIX
    )
