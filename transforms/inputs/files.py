"""What the user named (files, folders, globs on any fsspec URL) → files, each with the version of it that was found.

Nothing is read here but listings.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from elmo_store.format.layout import MANIFEST
from transforms.inputs.byte_source import identity_of
from transforms.inputs.decompress import without_suffix
from transforms.inputs.filesystem import filesystem_of, is_chained
from transforms.inputs.records import FileIdentity, InputError

BY_SUFFIX = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json",
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".conllu": "conllu", ".conll": "conll", ".conll03": "conll", ".bio": "conll", ".iob": "conll", ".iob2": "conll",
    ".parquet": "parquet", ".pq": "parquet",
    ".txt": "text", ".text": "text",
    ".tok": "lines", ".lines": "lines", ".tokens": "lines", ".snt": "lines",
}  # fmt: skip
_GLOB = "*?["
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputFile:
    """A file of the input under its full name, and the version of it that was found."""

    url: str
    identity: FileIdentity
    whole: bool = False  # it can't be read from its middle (a web server without ranges)


def known_format(name: str) -> str:
    """The format that ``auto`` reads in the ending of ``name`` (before that of a compression); "" for an unknown one."""
    base = without_suffix(name.rpartition("/")[2]).lower()
    return next((kind for suffix, kind in BY_SUFFIX.items() if base.endswith(suffix)), "")


def find_files(
    inputs: Sequence[str],
    *,
    only_known: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
) -> list[InputFile]:
    """All files that ``inputs`` name, each once, sorted by full name.

    A folder stands for every file below it, but for names that begin with ``.`` or ``_`` (as in Hadoop); with
    ``only_known`` also but for endings that `known_format` does not know (a README beside the data), which the log names.
    What stands in a store below it is left out. A file named by itself or by a glob is always taken. ``exclude``: folders
    whose files are left out, such as the store that is being written. InputError for a missing input, an empty folder or
    glob, a location that can't be read.
    """
    if not inputs:
        raise InputError("(no input)", "name at least one file, folder, glob or URL")
    left_out = tuple(_full_name(place, storage_options).rstrip("/") + "/" for place in exclude)
    found: dict[str, InputFile] = {}
    for place in inputs:
        try:
            files = _expand(place, only_known, storage_options)
        except InputError:
            raise
        except FileNotFoundError as error:
            raise InputError(place, "there is no such file or folder: check the name") from error
        except PermissionError as error:
            raise InputError(place, f"access is denied ({error}): check the rights or the credentials") from error
        except ImportError as error:
            raise InputError(
                place, f"{error}: install the filesystem of that URL, for example pip install 'elmo-store[all]'"
            ) from error
        except Exception as error:  # object stores have errors of their own
            raise InputError(place, f"bad input location: {type(error).__name__}: {error}") from error
        files = [file for file in files if not (file.url + "/").startswith(left_out)]
        if not files:
            raise InputError(place, "no file to read is there: check the folder or the glob (hidden files are not counted)")
        found.update((file.url, file) for file in files)
    return [found[url] for url in sorted(found)]


def _full_name(place: str, storage_options: Mapping[str, Any] | None) -> str:
    return _name(*_locate(place, storage_options))


def _locate(place: str, storage_options: Mapping[str, Any] | None) -> tuple[fsspec.AbstractFileSystem, str]:
    """Filesystem and path of a location; a local path is absolute and without ``..``, so that a file has one name."""
    filesystem, path = filesystem_of(place, storage_options)
    return filesystem, os.path.abspath(path) if isinstance(filesystem, LocalFileSystem) else path


def _name(filesystem: fsspec.AbstractFileSystem, path: str) -> str:
    """The full name of ``path``: absolute path on the local disk, URL elsewhere."""
    name = path if isinstance(filesystem, LocalFileSystem) else filesystem.unstrip_protocol(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(name.encode(errors="backslashreplace").decode(), "the name is not UTF-8: rename the file") from error
    return str(name)


def _expand(place: str, only_known: bool, storage_options: Mapping[str, Any] | None) -> list[InputFile]:
    filesystem, path = _locate(place, storage_options)
    filesystem.invalidate_cache()
    if is_chained(place):
        info = filesystem.info(path)
        if info["type"] != "file":
            raise InputError(place, "a chained URL must name one file: no folder, no glob")
        return [InputFile(place, identity_of(info), whole=True)]
    try:
        info = filesystem.info(path)  # first as it stands: a name may hold [ or ? itself
    except FileNotFoundError:
        if not any(sign in path for sign in _GLOB):
            raise
        infos = [i for i in filesystem.glob(path, detail=True).values() if i["type"] == "file"]
        return [_file(filesystem, i["name"], i) for i in infos]
    if info["type"] == "file":
        return [_file(filesystem, path, info)]
    return _below(filesystem, path, place, only_known)


def _file(filesystem: fsspec.AbstractFileSystem, path: str, info: Mapping[str, Any]) -> InputFile:
    protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    whole = "http" in protocols and not info.get("partial")
    return InputFile(_name(filesystem, path), identity_of(info), whole)


def _below(filesystem: fsspec.AbstractFileSystem, folder: str, place: str, only_known: bool) -> list[InputFile]:
    head = folder.rstrip("/") + "/"
    files, unknown = [], []
    found = filesystem.find(folder, detail=True)
    stores = tuple(path.removesuffix(MANIFEST) for path in found if path.endswith(f"/{MANIFEST}"))
    if stores:
        _log.info("%s: left out what stands in %d stores below it, such as %s", place, len(stores), stores[0])
    for path, info in found.items():
        if path.startswith(stores):
            continue
        relative = path[len(head) :] if path.startswith(head) else path.rpartition("/")[2]
        if info["type"] != "file" or any(part.startswith((".", "_")) for part in relative.split("/")):
            continue
        if only_known and not known_format(relative):
            unknown.append(relative)
            continue
        files.append(_file(filesystem, path, info))
    if unknown:
        some = ", ".join(sorted(unknown)[:5]) + (", …" if len(unknown) > 5 else "")
        if not files:
            raise InputError(
                place,
                f"no file there has an ending that tells its format ({some}): say which with --input-format, or name the files",
            )
        # A README or a licence beside the data is no surprise; anything else is.
        level = logging.INFO if all(_is_about(name) for name in unknown) else logging.WARNING
        _log.log(
            level,
            "%s: left out %d files whose ending tells no format (%s): name them to have them read",
            place,
            len(unknown),
            some,
        )
    return files


def _is_about(name: str) -> bool:
    """Whether a file of unknown ending speaks about the data, by its name."""
    return name.rpartition("/")[2].upper().startswith(("README", "LICENSE", "LICENCE", "COPYING", "NOTICE"))
