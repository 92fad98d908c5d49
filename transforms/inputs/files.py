"""What the user named (files, folders, globs on any fsspec URL) → files, each with the version of it that was listed."""

import logging
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from glob import has_magic
from tempfile import TemporaryFile
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import MissingPackageError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage.failures import translate_error
from elmo_store.storage.filesystems import names_filesystem, open_filesystem
from elmo_store.storage.location import Location
from transforms.inputs.archives import ArchiveFileSystem, open_archive
from transforms.inputs.decompress import compression_of_name
from transforms.inputs.records import (
    ArchivePath,
    DamagedInputError,
    FileIdentity,
    InputError,
    file_name,
    split_archive_path,
)

BY_SUFFIX = {
    ".jsonl": "jsonl", ".jsonlines": "jsonl", ".ndjson": "jsonl", ".json": "json",
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".conllu": "conllu", ".conllup": "conllu", ".conll": "conll", ".conll03": "conll", ".conllx": "conll",
    ".gold_conll": "conll", ".auto_conll": "conll", ".v4_gold_conll": "conll", ".v4_auto_conll": "conll",
    ".bio": "conll", ".iob": "conll", ".iob2": "conll",
    ".parquet": "parquet", ".pq": "parquet",
    ".txt": "text", ".text": "text",
    ".tok": "lines", ".lines": "lines", ".tokens": "lines", ".snt": "lines",
}  # fmt: skip
_DAMAGED_ARCHIVE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)
Files = dict[str, FileIdentity]  # by full name
ARCHIVE_BLOCK_BYTES = (
    1 << 20
)  # read-ahead within an archive, whose index and files are in many places
_log = logging.getLogger(__name__)


def filesystem_of(
    location: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of ``location`` and its path there.

    A file of this machine whose name holds ``::`` is that file, and no chain of filesystems (``zip://a::b.zip``).
    Of a file in an archive ``storage_options`` are those of the storage that holds the archive.
    """
    if "::" in location and not is_chained(location):
        return LocalFileSystem(), os.path.abspath(location)
    if member := split_archive_path(location):
        return _archive(member, storage_options), member.name
    return open_filesystem(location, storage_options)


def _archive(member: ArchivePath, storage_options: Mapping[str, Any] | None) -> ArchiveFileSystem:
    """The archive that ``member`` is in, opened as the version of it that is there now."""
    filesystem, path = _locate(member.archive, storage_options)
    filesystem.invalidate_cache()
    return open_archive(
        member.kind,
        _name(filesystem, path),
        identity_of(filesystem.info(path)),
        storage_options or {},
        lambda: _open_archive_file(filesystem, path),
    )


def _open_archive_file(filesystem: fsspec.AbstractFileSystem, path: str) -> IO[bytes]:
    """Open an archive, which is read in many places: a copy on this machine if it is on a web server."""
    if not is_read_whole(path):
        opened: IO[bytes] = filesystem.open(path, "rb", block_size=ARCHIVE_BLOCK_BYTES)
        return opened
    with ExitStack() as on_error:
        copied = on_error.enter_context(TemporaryFile())
        with filesystem.open(path, "rb", block_size=0) as opened:
            shutil.copyfileobj(opened, copied)
        on_error.pop_all()
    copied.seek(0)
    return copied


def is_chained(location: str) -> bool:
    """Whether ``location`` is a chain of filesystems: it has ``::`` after the name of one, and is not a file here."""
    return "::" in location and names_filesystem(location) and not os.path.lexists(location)


def is_read_whole(url: str) -> bool:
    """Whether a file is read from its beginning only: web servers may have no ranges, nor have files within files."""
    return is_chained(url) or url.startswith(("http://", "https://"))


VERSIONS = (
    "ETag", "etag", "md5Hash", "checksum", "crc32c", "blob_id",
    "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created",
)  # fmt: skip


def identity_of(info: Mapping[str, Any]) -> FileIdentity:
    """Size and version of what a filesystem's ``info`` describes: ETag, checksum or time of change, whichever it has first."""
    size = int(info.get("size") or 0)
    for name in VERSIONS:
        value = info.get(name)
        if isinstance(value, datetime):
            value = (
                value.timestamp()
            )  # listings and single answers of one filesystem may differ in its zone
        if value:
            return FileIdentity(size, f"{name}={value}")
    return FileIdentity(size, "")


@contextmanager
def input_errors(url: str, what: str = "can't be opened") -> Iterator[None]:
    """The block's errors, of which every filesystem has its own, as InputError."""
    try:
        yield
    except (InputError, MissingPackageError):
        raise
    except Exception as error:
        cause = translate_error(error, url)
        missing = "there is no such file or folder: check the name"
        reason = (
            missing
            if isinstance(cause, FileNotFoundError)
            else f"{what}: {type(cause).__name__}: {cause}"
        )
        kind = DamagedInputError if isinstance(error, _DAMAGED_ARCHIVE) else InputError
        raise kind(url, reason) from cause


def known_format(name: str) -> str:
    """The format that ``auto`` reads in the ending of ``name`` (before that of a compression); "" for an unknown one."""
    own_name = file_name(name)
    base = os.path.splitext(own_name)[0] if compression_of_name(name) else own_name
    return BY_SUFFIX.get(os.path.splitext(base)[1].lower(), "")


def find_files(
    inputs: Sequence[str],
    *,
    only_known: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    exclude: Sequence[Location] = (),
) -> Files:
    """All files that ``inputs`` name, each once, sorted by full name, with the version of each that was found.

    A folder stands for every file below it, but for names that begin with ``.`` or ``_`` (as in Hadoop); with
    ``only_known`` also but for endings that `known_format` does not know (a README beside the data), which the log names.
    What stands in a store below it is left out. A file named by itself or by a glob is always taken. ``exclude``: folders
    whose files are left out, such as the store that is being written. InputError for a missing input, an empty folder or
    glob, a location that can't be read.
    """
    left_out = tuple(
        _name(*_locate(folder.url, folder.storage_options)).rstrip("/") + "/" for folder in exclude
    )
    every: Files = {}
    for location in inputs:
        with input_errors(location, "bad input location"):
            listed = _expand(location, only_known, storage_options)
        files = {
            url: identity
            for url, identity in listed.items()
            if not (url + "/").startswith(left_out)
        }
        if not files:
            raise InputError(
                location,
                "no file to read is there: check the folder or the glob (hidden files are not counted)",
            )
        every |= files
    return dict(sorted(every.items()))


def _locate(
    location: str, storage_options: Mapping[str, Any] | None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """Filesystem and path of a location; a local path is absolute and without ``..``, so that a file has one name."""
    filesystem, path = filesystem_of(location, storage_options)
    return filesystem, os.path.abspath(path) if isinstance(filesystem, LocalFileSystem) else path


def _name(filesystem: fsspec.AbstractFileSystem, path: str) -> str:
    """The full name of ``path``: absolute path on the local disk, URL elsewhere."""
    name = path if isinstance(filesystem, LocalFileSystem) else filesystem.unstrip_protocol(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            name.encode(errors="backslashreplace").decode(),
            "the name is not UTF-8: rename the file",
        ) from error
    return str(name)


def _expand(location: str, only_known: bool, storage_options: Mapping[str, Any] | None) -> Files:
    if is_chained(location) and (member := split_archive_path(location)):
        # A glob or a folder of archives names the files of each of them.
        archives = _expand(member.archive, only_known=False, storage_options=storage_options)
        files: Files = {}
        for url in archives:
            opened = _archive(member._replace(archive=url), storage_options)
            files |= _matches(opened, member.name, location, only_known)
        return files
    filesystem, path = _locate(location, storage_options)
    filesystem.invalidate_cache()
    if is_chained(location):
        info = filesystem.info(path)
        if info["type"] != "file":
            raise InputError(location, "a chained URL must name one file: no folder, no glob")
        return {location: identity_of(info)}
    return _matches(filesystem, path, location, only_known)


def _matches(
    filesystem: fsspec.AbstractFileSystem, path: str, location: str, only_known: bool
) -> Files:
    """The files that ``path`` names: one file, a glob, or all files below a folder."""
    try:
        info = filesystem.info(path)  # first as it stands: a name may hold [ or ? itself
    except FileNotFoundError:
        if not has_magic(path):
            raise
        infos = [i for i in filesystem.glob(path, detail=True).values() if i["type"] == "file"]
        return {_name(filesystem, i["name"]): identity_of(i) for i in infos}
    if info["type"] == "file":
        return {_name(filesystem, path): identity_of(info)}
    return _below(filesystem, path, location, only_known)


def _below(
    filesystem: fsspec.AbstractFileSystem, folder: str, location: str, only_known: bool
) -> Files:
    head = f"{folder.rstrip('/')}/" if folder else ""
    infos = filesystem.find(folder, detail=True)
    stores = tuple(path.removesuffix(MANIFEST) for path in infos if path.endswith(f"/{MANIFEST}"))
    files: Files = {}
    unknown = []
    for path, info in infos.items():
        relative = path[len(head) :] if path.startswith(head) else path.rpartition("/")[2]
        hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
        if path.startswith(stores) or info["type"] != "file" or hidden:
            continue
        if only_known and not known_format(relative):
            unknown.append(relative)
        else:
            files[_name(filesystem, path)] = identity_of(info)
    if unknown:
        many = "1 file" if len(unknown) == 1 else f"{len(unknown):,} files"
        told = f"{many} whose ending says no format, such as {min(unknown)}: name what is to be read, or give --input-format"
        if not files:
            raise InputError(location, f"it holds nothing but {told}")
        _log.warning("%s: left out %s", location, told)
    return files
