"""Files → the splits and tasks that workers read: large ones in ranges, small ones in runs.

Read are the first bytes of files large enough to be cut, the footers of large Parquet files, and the fields of one file of each
format that has fields: a wrong name is told before any work, and what the launcher reads alone does not grow with the number of
small files. Nothing here depends on how many workers there are, so neither do the parts.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from transforms.inputs.boundaries import BGZIP, SEEKABLE, UNITS, Fetch, cuts, frame_starts, is_bgzip
from transforms.inputs.byte_source import UTF8
from transforms.inputs.decompress import checked_compression, decompressed
from transforms.inputs.files import fetcher, filesystem_of, find_files, known_format
from transforms.inputs.records import (
    FORMATS,
    MIB,
    BlockRange,
    ByteRange,
    DamagedInputError,
    InputError,
    ReadSettings,
    ReadTask,
    RowGroups,
    Split,
    Stream,
    WholeFile,
    split_as,
    together,
)
from transforms.readers.jsonl import is_array
from transforms.readers.parquet import row_group_bytes
from transforms.text.sentences import SAMPLE_BYTES, line_ends_of

RANGE_BYTES = 8 * MIB  # a range is some 15 seconds of a core: few are enough to keep all cores busy
TASK_BYTES = 8 * MIB  # small files that are read as one task, together at most …
TASK_FILES = 256  # … and at most so many
_IO_THREADS = 16
_log = logging.getLogger(__name__)


def plan_splits(
    inputs: Sequence[str],
    input_format: str = "auto",
    settings: ReadSettings | None = None,
    *,
    range_bytes: int = RANGE_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
) -> list[Split]:
    """The splits of all inputs, in input order (files by full name, ranges by where they begin).

    ``input_format``: ``auto`` goes by each file's ending, .txt and unknown ones being text. Files larger than ``range_bytes``
    are cut into ranges of so many bytes (plain lines, JSON lines, running text, CoNLL; bgzip and seekable zstd of these at their
    blocks) or runs of row groups of about so many (Parquet). Any other large one is a stream, to be unpacked: compressed, in
    another encoding than UTF-8, CSV, a JSON array. InputError for anything that can't be read, or a file without the wanted
    fields.
    """
    if input_format not in ("auto", *FORMATS):
        raise ValueError(f"input format {input_format!r} is none of auto, {', '.join(FORMATS)}")
    if range_bytes < 1:
        raise ValueError(f"range_bytes={range_bytes} leaves ranges empty: give 1 or more")
    settings = settings or ReadSettings()
    auto = input_format == "auto"
    listed = find_files(inputs, only_known=auto, storage_options=storage_options, exclude=exclude)
    kinds = [(known_format(file.url) or "text") if auto else input_format for file in listed]
    files = [WholeFile(i, file.url, kinds[i], file.identity, auto) for i, file in enumerate(listed)]
    first_parquet = kinds.index("parquet") if "parquet" in kinds else -1
    large = [file.index for file in files if file.identity.size > range_bytes or file.index == first_parquet]
    errors: dict[int, InputError] = {}

    def cut(number: int) -> list[Split]:
        try:
            return list(_cut(files[number], listed[number].whole, settings, range_bytes, storage_options))
        except InputError as error:
            if isinstance(error, DamagedInputError) and settings.on_bad_file == "reject":
                return [files[number]]  # whose reader takes what comes before the damage
            errors[number] = error
            return []

    with ThreadPoolExecutor(_IO_THREADS) as pool:
        cut_files = dict(zip(large, pool.map(cut, large), strict=True))
    if errors:
        raise together([errors[number] for number in sorted(errors)])
    # A small file costs microseconds here: the launcher does this alone, for as many as there are.
    splits: list[Split] = []
    for file in files:
        splits += (replace(split, index=i) for i, split in enumerate(cut_files.get(file.index, [file]), len(splits)))
    if auto:
        _log_guesses(splits)
    return splits


def read_tasks(splits: Iterable[Split]) -> Iterator[ReadTask]:
    """Splits in tasks, in order: ranges, blobs and large files alone, runs of small whole files together."""
    index = size = 0
    run: list[Split] = []
    for split in splits:
        small = isinstance(split, WholeFile) and split.identity.size <= TASK_BYTES
        split_bytes = split.identity.size if small else TASK_BYTES + 1  # which nothing fits beside
        if run and (run[-1].format != split.format or len(run) >= TASK_FILES or size + split_bytes > TASK_BYTES):
            yield ReadTask(index, tuple(run))
            index, size, run = index + 1, 0, []
        run.append(split)
        size += split_bytes
    if run:
        yield ReadTask(index, tuple(run))


def _log_guesses(splits: Iterable[Split]) -> None:
    """Say what ``auto`` made of the names: a wrong guess must be seen before it costs a day."""
    urls: dict[str, list[str]] = {}
    for url, kind in {split.url: split.format for split in splits}.items():
        urls.setdefault(kind, []).append(url)
    message = "reading %d file(s) as %s by their names, such as %s (--input-format says otherwise)"
    for kind, named in sorted(urls.items()):
        _log.info(message, len(named), kind, named[0])


def _cut(
    file: WholeFile, in_order_only: bool, settings: ReadSettings, range_bytes: int, storage_options: Mapping[str, Any] | None
) -> Iterator[Split]:
    """The splits of a large file; ``in_order_only``: it can't be read from its middle."""
    size = file.identity.size
    if file.format == "parquet":
        if size == 0:
            yield file
            return
        with _opened(file.url, storage_options) as opened:
            sizes = row_group_bytes(file.url, opened, settings)
        for start, stop in _runs(sizes, range_bytes):
            yield split_as(RowGroups, file, start=start, stop=stop)
        return
    head = _head(file, in_order_only, storage_options)
    compression = checked_compression(file.url, head)
    if file.format == "json" and not compression and settings.encoding in UTF8 and not is_array(head):
        file = replace(file, format="jsonl")
    # In CSV and JSON arrays, where a record begins is known to who read all before it.
    if in_order_only or settings.encoding not in UTF8 or file.format not in UNITS:
        yield split_as(Stream, file)
        return
    fetch = _fetcher(file, storage_options)
    blocks = ""
    if compression == "gzip" and is_bgzip(head):
        blocks = BGZIP
    elif compression == "zstd" and frame_starts(fetch, size):
        blocks = SEEKABLE
    if compression and not blocks:
        yield split_as(Stream, file)
        return
    if file.format == "text":
        ends = settings.line_ends
        file = replace(file, line_ends=_line_ends(compression, head) if ends == "auto" else ends)
    if blocks:  # a compressed byte is about four of text
        for start, stop in pairwise(cuts(blocks, fetch, size, -(-range_bytes // 4))):
            yield split_as(BlockRange, file, start=start, stop=stop, blocks=blocks)
    else:
        for start in range(0, size, range_bytes):
            yield split_as(ByteRange, file, start=start, stop=min(start + range_bytes, size))


def _line_ends(compression: str, head: bytes) -> str:
    """What the beginning of a file says about its line ends."""
    text = bytearray(b"" if compression else head)
    with suppress(EOFError, ValueError):  # it ends in the middle, or is damaged: that is told when it is read
        for data in decompressed(compression, BytesIO(head)) if compression else ():
            text += data
            if len(text) >= SAMPLE_BYTES:
                break
    return line_ends_of(text)


def _fetcher(file: WholeFile, storage_options: Mapping[str, Any] | None) -> Fetch:
    return fetcher(file.url, *filesystem_of(file.url, storage_options))


def _head(file: WholeFile, in_order_only: bool, storage_options: Mapping[str, Any] | None) -> bytes:
    """The beginning of a file."""
    if not in_order_only:
        return _fetcher(file, storage_options)(0, min(SAMPLE_BYTES, file.identity.size))
    with _opened(file.url, storage_options) as opened:
        head: bytes = opened.read(10)
        return head


@contextmanager
def _opened(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    try:
        filesystem, path = filesystem_of(url, storage_options)
        with filesystem.open(path, "rb") as opened:
            yield opened
    except InputError:
        raise
    except Exception as error:  # every filesystem has errors of its own
        raise InputError(url, f"can't be opened: {type(error).__name__}: {error}") from error


def _runs(sizes: Sequence[int], range_bytes: int) -> list[tuple[int, int]]:
    """Runs of row groups of ``sizes`` bytes, of about ``range_bytes`` each; there is always one."""
    runs: list[tuple[int, int]] = []
    start = total = 0
    for stop, size in enumerate(sizes, 1):
        total += size
        if total >= range_bytes:
            runs.append((start, stop))
            start, total = stop, 0
    if start < len(sizes) or not runs:
        runs.append((start, len(sizes)))
    return runs
