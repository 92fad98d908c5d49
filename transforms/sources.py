"""From what the user named (files, folders, globs on any fsspec URL) to the pieces that workers read.

May import transforms.records, transforms.decompress, fsspec and pyarrow (row groups of Parquet). Nothing is read here but
listings, the first bytes of files large enough to be split, and the footers of Parquet files: a location that can't be
read fails before any work.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from transforms.decompress import checked_compression, identity_of, without_suffix
from transforms.records import FORMATS, MIB, FileIdentity, InputError, Piece, ReadSettings

RANGE_BYTES = 64 * MIB
BY_SUFFIX = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".conllu": "conllu", ".conll": "conllu",
    ".parquet": "parquet", ".pq": "parquet",
    ".txt": "text", ".text": "text",
    ".tok": "lines", ".lines": "lines", ".tokens": "lines", ".snt": "lines",
}  # fmt: skip
_SPLITTABLE = ("lines", "jsonl")
_GLOB = "*?["
_IO_THREADS = 16
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
    A file named by itself or by a glob is always taken. ``exclude``: folders whose files are left out, such as the store
    that is being written. InputError for a missing input, an empty folder or glob, a location that can't be read.
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
    filesystem, path = url_to_fs(place, **dict(storage_options or {}))
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
    if "::" in place:
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
    for path, info in filesystem.find(folder, detail=True).items():
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


def plan_pieces(
    inputs: Sequence[str],
    input_format: str = "auto",
    settings: ReadSettings | None = None,
    *,
    range_bytes: int = RANGE_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
) -> list[Piece]:
    """The pieces of all inputs, in input order (files by full name, ranges by place).

    ``input_format``: ``auto`` goes by each file's ending, .txt and unknown ones being text. Uncompressed lines and jsonl
    files larger than ``range_bytes`` are cut into ranges of so many bytes, Parquet files into runs of row groups of about
    so many; any other file is one piece. InputError for anything that can't be read, or a Parquet file without the wanted
    fields.
    """
    if input_format not in ("auto", *FORMATS):
        raise ValueError(f"input format {input_format!r} is none of auto, {', '.join(FORMATS)}")
    if range_bytes < 1:
        raise ValueError(f"range_bytes={range_bytes} leaves ranges empty: give 1 or more")
    settings = settings or ReadSettings()
    auto = input_format == "auto"
    files = find_files(inputs, only_known=auto, storage_options=storage_options, exclude=exclude)

    def cut(file: InputFile) -> list[Piece]:
        kind = (known_format(file.url) or "text") if auto else input_format
        ranges = _ranges(file, kind, settings, range_bytes, storage_options)
        return [Piece(0, file.url, kind, file.identity, start, stop, guessed=auto) for start, stop in ranges]

    with ThreadPoolExecutor(_IO_THREADS) as pool:
        pieces = [piece for found in pool.map(cut, files) for piece in found]
    if auto:
        _log_guesses(pieces)
    return [Piece(i, p.url, p.format, p.identity, p.start, p.stop, p.guessed) for i, p in enumerate(pieces)]


def _log_guesses(pieces: Iterable[Piece]) -> None:
    """Say what ``auto`` made of the names: a wrong guess must be seen before it costs a day."""
    examples: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.start == 0:
            examples.setdefault(piece.format, []).append(piece.url)
    for kind, urls in sorted(examples.items()):
        _log.info("reading %d file(s) as %s by their names, such as %s (--input-format says otherwise)", len(urls), kind, urls[0])


def _ranges(
    file: InputFile, kind: str, settings: ReadSettings, range_bytes: int, storage_options: Mapping[str, Any] | None
) -> list[tuple[int, int | None]]:
    if kind == "parquet":
        return _row_groups(file, settings, range_bytes, storage_options)
    size = file.identity.size
    if kind not in _SPLITTABLE or file.whole or size <= range_bytes or _is_compressed(file, storage_options):
        return [(0, None)]
    return [(start, min(start + range_bytes, size)) for start in range(0, size, range_bytes)]


def _is_compressed(file: InputFile, storage_options: Mapping[str, Any] | None) -> bool:
    try:
        with fsspec.open(file.url, "rb", **dict(storage_options or {})) as opened:
            return bool(checked_compression(file.url, opened.read(10)))
    except InputError:
        raise
    except Exception as error:
        raise InputError(file.url, f"can't be opened: {type(error).__name__}: {error}") from error


def _row_groups(
    file: InputFile, settings: ReadSettings, range_bytes: int, storage_options: Mapping[str, Any] | None
) -> list[tuple[int, int | None]]:
    """Runs of row groups of about ``range_bytes`` each, counted as stored."""
    if file.identity.size == 0:
        return [(0, None)]
    filesystem, path = url_to_fs(file.url, **dict(storage_options or {}))
    try:
        with filesystem.open(path, "rb") as opened:
            found = pq.ParquetFile(opened)
            check_fields(file.url, found.schema_arrow, settings)
            metadata = found.metadata
            sizes = [_stored_bytes(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    except InputError:
        raise
    except Exception as error:
        raise InputError(file.url, f"can't be read as Parquet: {type(error).__name__}: {error}") from error
    ranges: list[tuple[int, int | None]] = []
    start = total = 0
    for i, size in enumerate(sizes):
        total += size
        if total >= range_bytes:
            ranges.append((start, i + 1))
            start, total = i + 1, 0
    if start < len(sizes) or not ranges:
        ranges.append((start, len(sizes)))
    return ranges


def _stored_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


def check_fields(url: str, schema: pa.Schema, settings: ReadSettings) -> None:
    """InputError unless ``schema`` has the text field (string or list of strings) and the id field (string or integer)."""
    wanted = [("--text-field", settings.text_field)] + ([("--id-field", settings.id_field)] if settings.id_field else [])
    for option, name in wanted:
        if schema.get_field_index(name) < 0:
            raise InputError(url, f"it has no field {name!r}, but {', '.join(map(repr, schema.names))}: name one with {option}")
    kind = schema.field(settings.text_field).type
    inner = kind.value_type if _is_list(kind) else kind
    if not _is_string(inner):
        raise InputError(
            url, f"its field {settings.text_field!r} is {kind}, not a string or a list of strings: name another with --text-field"
        )
    if settings.id_field:
        kind = schema.field(settings.id_field).type
        if not (_is_string(kind) or pa.types.is_integer(kind)):
            raise InputError(
                url, f"its field {settings.id_field!r} is {kind}, not a string or an integer: name another with --id-field"
            )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)):
        return True
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
