"""Files → the pieces and tasks that workers read: large ones in ranges, small ones in runs.

Read are the first bytes of files large enough to be cut, the footers of large Parquet files, and the fields of one file of each
format that has fields: a wrong name is told before any work, and what the launcher reads alone does not grow with the number of
small files. Nothing here depends on how many workers there are, so neither do the parts.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from transforms.inputs.blocks import BGZIP, SEEKABLE, cuts, frame_starts, is_bgzip
from transforms.inputs.boundaries import UNITS, Fetch
from transforms.inputs.byte_source import UTF8
from transforms.inputs.decompress import checked_compression, decompressed
from transforms.inputs.files import InputFile, find_files, known_format
from transforms.inputs.filesystem import filesystem_of
from transforms.inputs.records import FORMATS, MIB, DamagedInputError, InputError, Piece, ReadSettings, ReadTask, together
from transforms.readers.jsonl import is_array
from transforms.readers.schema import check_fields
from transforms.text.line_ends import SAMPLE_BYTES, line_ends

RANGE_BYTES = 8 * MIB  # a range is some 15 seconds of a core: few are enough to keep all cores busy
TASK_BYTES = 8 * MIB  # small files that are read as one task, together at most …
TASK_FILES = 256  # … and at most so many
_IO_THREADS = 16
_log = logging.getLogger(__name__)


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

    ``input_format``: ``auto`` goes by each file's ending, .txt and unknown ones being text. Files larger than ``range_bytes``
    are cut into ranges of so many bytes (plain lines, JSON lines, running text, CoNLL; bgzip and seekable zstd of these at their
    blocks) or runs of row groups of about so many (Parquet). Any other large one is marked to be unpacked: compressed, in another
    encoding than UTF-8, CSV, a JSON array. InputError for anything
    that can't be read, or a file without the wanted fields.
    """
    if input_format not in ("auto", *FORMATS):
        raise ValueError(f"input format {input_format!r} is none of auto, {', '.join(FORMATS)}")
    if range_bytes < 1:
        raise ValueError(f"range_bytes={range_bytes} leaves ranges empty: give 1 or more")
    settings = settings or ReadSettings()
    auto = input_format == "auto"
    files = find_files(inputs, only_known=auto, storage_options=storage_options, exclude=exclude)
    kinds = [(known_format(file.url) or "text") if auto else input_format for file in files]
    looked_at = {kinds.index("parquet")} if "parquet" in kinds else set()

    large = [i for i, file in enumerate(files) if file.identity.size > range_bytes or i in looked_at]

    def cut(number: int) -> list[Piece] | InputError | None:
        try:
            return list(_cut(files[number], kinds[number], settings, range_bytes, storage_options, auto))
        except DamagedInputError as error:
            return None if settings.on_bad_file == "reject" else error
        except InputError as error:
            return error

    with ThreadPoolExecutor(_IO_THREADS) as pool:
        found = dict(zip(large, pool.map(cut, large), strict=True))
    if errors := [one for one in found.values() if isinstance(one, InputError)]:
        raise together(errors)
    # A small file costs microseconds here: the launcher does this alone, for as many as there are.
    pieces: list[Piece] = []
    for number, (file, kind) in enumerate(zip(files, kinds, strict=True)):
        ranges = found.get(number)
        if isinstance(ranges, list):
            pieces += (replace(piece, index=i) for i, piece in enumerate(ranges, len(pieces)))
        else:
            pieces.append(Piece(len(pieces), file.url, kind, file.identity, guessed=auto))
    if auto:
        _log_guesses(pieces)
    return pieces


def read_tasks(pieces: Iterable[Piece]) -> Iterator[ReadTask]:
    """Pieces in tasks, in order: ranges, blobs and large files alone, runs of small whole files together."""
    index = size = 0
    run: list[Piece] = []
    for piece in pieces:
        alone = piece.stop is not None or piece.unpack or bool(piece.blob) or piece.identity.size > TASK_BYTES
        other = bool(run) and (
            run[-1].format != piece.format or len(run) >= TASK_FILES or size + piece.identity.size > TASK_BYTES
        )
        if run and (alone or other):
            yield ReadTask(index, tuple(run))
            index, size, run = index + 1, 0, []
        if alone:
            yield ReadTask(index, (piece,))
            index += 1
        else:
            run.append(piece)
            size += piece.identity.size
    if run:
        yield ReadTask(index, tuple(run))


def _log_guesses(pieces: Iterable[Piece]) -> None:
    """Say what ``auto`` made of the names: a wrong guess must be seen before it costs a day."""
    examples: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.start == 0:
            examples.setdefault(piece.format, []).append(piece.url)
    for kind, urls in sorted(examples.items()):
        _log.info("reading %d file(s) as %s by their names, such as %s (--input-format says otherwise)", len(urls), kind, urls[0])


def _cut(
    file: InputFile,
    kind: str,
    settings: ReadSettings,
    range_bytes: int,
    storage_options: Mapping[str, Any] | None,
    guessed: bool,
) -> Iterator[Piece]:
    """The pieces of a large file."""
    size = file.identity.size
    if kind == "parquet":
        for first, last in _row_groups(file, settings, range_bytes, storage_options):
            yield Piece(0, file.url, kind, file.identity, first, last, guessed)
        return
    head = _head(file, storage_options)
    compression = checked_compression(file.url, head)
    if kind == "json" and not compression and settings.encoding in UTF8 and not is_array(head):
        kind = "jsonl"
    fetch = None if file.whole or settings.encoding not in UTF8 else _fetcher(file, storage_options)
    blocks = _blocks_of(compression, head, fetch, size)
    # In CSV and JSON arrays, where a record begins is known to who read all before it.
    if fetch is None or kind not in UNITS or (compression and not blocks):
        yield Piece(0, file.url, kind, file.identity, guessed=guessed, unpack=True)
        return
    ends = settings.line_ends if kind == "text" else ""
    if ends == "auto":
        ends = line_ends(_beginning(compression, head).decode("utf-8", "replace").splitlines()[:-1])
    # A compressed byte is about four of text.
    places = cuts(blocks, fetch, size, -(-range_bytes // 4)) if blocks else [*range(0, size, range_bytes), size]
    for start, stop in pairwise(places):
        yield Piece(0, file.url, kind, file.identity, start, stop, guessed, ends, blocks=blocks)


def _blocks_of(compression: str, head: bytes, fetch: Fetch | None, size: int) -> str:
    """The kind of a compressed file that can be entered at its blocks, otherwise ""."""
    if fetch is None:
        return ""
    if compression == "gzip" and is_bgzip(head):
        return BGZIP
    return SEEKABLE if compression == "zstd" and frame_starts(fetch, size) else ""


def _beginning(compression: str, head: bytes) -> bytes:
    """The text that ``head`` holds, at most `SAMPLE_BYTES` of it."""
    if not compression:
        return head
    text = bytearray()
    with suppress(EOFError, ValueError):  # it ends in the middle, or is damaged: that is told when it is read
        for data in decompressed(compression, BytesIO(head)):
            text += data
            if len(text) >= SAMPLE_BYTES:
                break
    return bytes(text[:SAMPLE_BYTES])


def _fetcher(file: InputFile, storage_options: Mapping[str, Any] | None) -> Fetch:
    filesystem, path = filesystem_of(file.url, storage_options)

    def fetch(first: int, last: int) -> bytes:
        try:
            data: bytes = filesystem.cat_file(path, start=first, end=last)
            return data
        except Exception as error:
            raise InputError(file.url, f"can't be read at byte {first}: {type(error).__name__}: {error}") from error

    return fetch


def _head(file: InputFile, storage_options: Mapping[str, Any] | None) -> bytes:
    """The beginning of a file."""
    try:
        if file.whole:
            filesystem, path = filesystem_of(file.url, storage_options)
            with filesystem.open(path, "rb") as opened:
                head: bytes = opened.read(10)
            return head
        return _fetcher(file, storage_options)(0, min(SAMPLE_BYTES, file.identity.size))
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
    filesystem, path = filesystem_of(file.url, storage_options)
    try:
        with filesystem.open(path, "rb") as opened:
            found = pq.ParquetFile(opened)
            check_fields(file.url, found.schema_arrow, settings)
            metadata = found.metadata
            sizes = [_stored_bytes(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    except InputError:
        raise
    except pa.ArrowException as error:
        raise DamagedInputError(file.url, f"can't be read as Parquet: {type(error).__name__}: {error}") from error
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
