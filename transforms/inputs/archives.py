"""Archives: tar and zip files recognised by their first bytes, and the files in them read through ``zip://`` and ``tar://``.

An archive is never text: read as text, headers and packed bytes would become words. So a file that begins like one is
rejected, with the URL that reads what is in it. ``zip://NAME::ARCHIVE`` and ``tar://NAME::ARCHIVE`` are URLs of fsspec; NAME
may be a file, a folder, a glob, or empty for the whole archive, ARCHIVE a file or URL of any kind. We index archives ourselves:
fsspec's filesystems close an archive under the file that is read from it, don't know names that begin with ``./`` (which is how
``tar`` writes a folder), and unpack a compressed tar file again for each of its files.
"""

import io
import posixpath
import re
import struct
import tarfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from tempfile import TemporaryFile
from typing import IO, Any

from fsspec.archive import AbstractArchiveFileSystem

from transforms.inputs.decompress import check_no_bomb, compression_of_bytes, decompressed
from transforms.inputs.records import (
    TAR,
    ZIP,
    ArchivePath,
    DamagedInputError,
    FileIdentity,
    InputError,
    file_name,
)

MAX_OPENED = 4  # archives that a process keeps open and indexed
BUFFER_BYTES = 1 << 16
HEAD_BYTES = 1 << 12  # of a text, enough to recognise an archive and, mostly, to name a file in it
_ARCHIVE_NAME = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|tzst)(\.\w+)?$", re.IGNORECASE)
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_ZIP_NAME = struct.Struct("<26xH2x")  # of a member's header: the length of its name, which follows
# Files of office programs are zip archives whose first member is always the same.
_OFFICE_MEMBERS = ("[Content_Types].xml", "mimetype")
_OTHER_MAGICS = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it, and name the files in it",
    b"Rar!\x1a\x07": "a RAR archive: unpack it, and name the files in it",
    b"%PDF-": "a PDF file: extract its text, for example with pdftotext",
    b"PAR1\x15": "a Parquet file: read it with --input-format parquet",
}


def has_archive_name(url: str) -> bool:
    """Return True if the ending of ``url`` is one of archives, such as ``.zip`` or ``.tar.gz``."""
    return _ARCHIVE_NAME.search(file_name(url)) is not None


def check_no_archive(url: str, head: bytes) -> None:
    """Raise InputError if ``head``, the first bytes of a file once it is decompressed, is not the beginning of a text.

    ``head``: at least 512 bytes if there are as many.
    """
    for magic, what in _OTHER_MAGICS.items():
        if head.startswith(magic):
            raise InputError(url, f"it is {what}")
    kind = _archive_kind(head)
    if not kind:
        return
    name = _first_zip_name(head) if kind == ZIP else _first_tar_name(head)
    if name in _OFFICE_MEMBERS:
        raise InputError(url, "it is a document of an office program: save it as plain text or CSV")
    name = "" if "::" in name else name  # which no URL can name
    one = ArchivePath(kind, name or "NAME", url).url
    folder, ending = posixpath.dirname(name), posixpath.splitext(name)[1]
    every = ArchivePath(kind, posixpath.join(folder, f"*{ending}"), url).url
    raise InputError(
        url, f"it is a {kind} archive, not text: name the files in it, as {one} or '{every}'"
    )


def _archive_kind(head: bytes) -> str:
    """ZIP or TAR if ``head`` begins such an archive, otherwise "". Of tar any format counts whose header's checksum is right."""
    if head.startswith(_ZIP_MAGICS):
        return ZIP
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
        return TAR
    return ""


def _first_zip_name(head: bytes) -> str:
    if not head.startswith(_ZIP_MAGICS[0]) or len(head) < _ZIP_NAME.size:
        return ""
    (length,) = _ZIP_NAME.unpack_from(head)
    name = head[_ZIP_NAME.size : _ZIP_NAME.size + length].decode("utf-8", "replace")
    return name if name.isprintable() and not name.endswith("/") else ""


def _first_tar_name(head: bytes) -> str:
    """The name of the first file in a tar archive, "" if it is not within ``head``."""
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(head), mode="r:") as tar:
        for member in tar:
            if member.isreg() and member.name.isprintable():
                return _clean(member.name)
    return ""


def _clean(name: str) -> str:
    """A member's name without ``./`` and slashes at its beginning, by which no URL could name it."""
    return posixpath.normpath(name).lstrip("/")


class ArchiveFileSystem(AbstractArchiveFileSystem):
    """The files in a zip or tar archive, for several threads at once. It closes ``file`` when it goes."""

    root_marker = ""
    cachable = False

    def __init__(self, kind: str, url: str, version: FileIdentity, file: IO[bytes]) -> None:
        super().__init__()
        self.protocol, self.url, self._version = kind, url, version
        self._file = file
        self._lock = threading.Lock()
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, Any] = {}
        infos = self._read_zip() if kind == ZIP else self._read_tar()
        folders = self._all_dirnames(infos)
        self.dir_cache = {
            folder: {"name": folder, "size": 0, "type": "directory"} for folder in folders
        } | infos

    def _read_zip(self) -> dict[str, dict[str, Any]]:
        self._zip = zipfile.ZipFile(self._file)
        infos = {}
        for member in self._zip.infolist():
            if member.is_dir():
                continue
            name = _clean(member.filename)
            self._members[name] = member
            infos[name] = _info(name, member.file_size, checksum=f"crc32:{member.CRC:08x}")
        return infos

    def _read_tar(self) -> dict[str, dict[str, Any]]:
        self._file = _uncompressed(self.url, self._file)
        with tarfile.TarFile(fileobj=self._file) as archive:
            members = {_clean(member.name): member for member in archive}
        infos = {}
        for name, member in members.items():
            target = member
            if member.islnk():
                target = members.get(_clean(member.linkname), member)
            elif member.issym():
                linked = posixpath.join(posixpath.dirname(member.name), member.linkname)
                target = members.get(_clean(linked), member)
            # No folder, device or pipe, and no link that leads out of the archive.
            if target.isreg() and not target.issparse():
                self._members[name] = target
                # A tar file has no checksums of its files, and often the same time for all of them.
                version = f"{self._version.size}:{self._version.version}"
                infos[name] = _info(name, target.size, checksum=version)
        return infos

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).strip("/")

    def unstrip_protocol(self, name: str) -> str:
        """The URL of the file ``name`` in this archive."""
        return ArchivePath(self.protocol, name, self.url).url

    def _get_dirs(self) -> None:
        """Nothing: an archive is indexed when it is opened."""

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if path not in self._members:
            raise FileNotFoundError(path)
        member = self._members[path]
        opened: Any
        if self._zip is None:
            part = _FilePart(self._file, self._lock, member.offset_data, member.size)
            opened = io.BufferedReader(part, BUFFER_BYTES)
        else:
            check_no_bomb(self.unstrip_protocol(path), ZIP, member.file_size, member.compress_size)
            opened = self._zip.open(member)
        opened.archive = self  # which must not close its file before this one is read
        return opened

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_: Any,
    ) -> Any:
        """As fsspec's, in one pass over the index: its own lists every folder by a pass of its own."""
        folder = self._strip_protocol(path)
        head = f"{folder}/" if folder else ""
        found = {
            name: info
            for name, info in sorted(self.dir_cache.items())
            if (name == folder or name.startswith(head))
            and (withdirs or info["type"] == "file")
            and (maxdepth is None or name.removeprefix(head).count("/") < maxdepth)
        }
        return found if detail else list(found)

    def __del__(self) -> None:
        if file := getattr(self, "_file", None):
            file.close()


def _info(name: str, size: int, checksum: str) -> dict[str, Any]:
    return {"name": name, "size": size, "type": "file", "checksum": checksum}


def _uncompressed(url: str, file: IO[bytes]) -> IO[bytes]:
    """A tar file as it is, or its text in a temporary file: files in it are reached by their offsets."""
    kind = compression_of_bytes(file.read(HEAD_BYTES))
    file.seek(0)
    if not kind:
        return file
    with file, ExitStack() as on_error:
        unpacked = on_error.enter_context(TemporaryFile())
        try:
            for data in decompressed(kind, file):
                unpacked.write(data)
                check_no_bomb(url, kind, unpacked.tell(), file.tell())
        except (EOFError, ValueError) as error:
            raise DamagedInputError(url, f"the {kind} stream is damaged: {error}") from error
        on_error.pop_all()
    unpacked.seek(0)
    return unpacked


class _FilePart(io.RawIOBase):
    """Bytes of a file that several threads read, as a file of its own."""

    def __init__(self, file: IO[bytes], lock: threading.Lock, start: int, size: int) -> None:
        self._file, self._lock = file, lock
        self._offset, self._stop = start, start + size

    def readable(self) -> bool:
        """Return True, as a file must that a buffer reads from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the bytes that are left. EOFError if the file ends before them."""
        size = min(len(buffer), self._stop - self._offset)
        with self._lock:
            self._file.seek(self._offset)
            data = self._file.read(size)
        if size and not data:
            raise EOFError("the archive is cut short")
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


_opened: OrderedDict[Any, ArchiveFileSystem] = OrderedDict()  # of this process, the last ones
_opening = threading.Lock()


def open_archive(
    kind: str,
    url: str,
    version: FileIdentity,
    options: Mapping[str, Any],
    open_file: Callable[[], Any],
) -> ArchiveFileSystem:
    """The files of the archive at ``url``. A process that reads one file after the other indexes the archive once.

    ``version``: which version of the archive is there now; ``open_file`` opens it for reading bytes.
    """
    key = (kind, url, version, repr(options))
    with _opening:
        if key not in _opened:
            _opened[key] = ArchiveFileSystem(kind, url, version, open_file())
        _opened.move_to_end(key)
        while len(_opened) > MAX_OPENED:
            _opened.popitem(last=False)
        return _opened[key]
