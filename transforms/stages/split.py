"""Stage A, before reading: files → the splits and tasks that workers read.

Large files are read in ranges, small ones in runs. The launcher looks at the first bytes of files large enough to be cut, the
footers of large Parquet files, and the fields of one file of each format that has fields: what it reads alone does not grow with
the number of small files. Nothing here depends on how many workers there are, so neither do the parts.

A file that can't be read from its middle is one task, whatever its size. The list of the input's tasks is in the scratch area: as
a part of the job's graph it would meet runners' limits.
"""

import logging
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import msgspec
from msgspec.structs import replace

from elmo_store.storage.json_values import decode_lines
from elmo_store.storage.root import Root
from transforms.inputs.boundaries import UNITS
from transforms.inputs.byte_source import UTF8
from transforms.inputs.decompress import checked_compression, decompressed
from transforms.inputs.files import InputFile, fetcher, filesystem_of, find_files, input_errors, known_format
from transforms.inputs.records import (
    FORMATS,
    MIB,
    PLAIN_FORMATS,
    ByteRange,
    DamagedInputError,
    InputError,
    ReadSettings,
    ReadTask,
    RowGroups,
    Split,
    WholeFile,
    split_as,
    together,
)
from transforms.readers.jsonl import is_array
from transforms.readers.lines import check_not_json
from transforms.readers.parquet import row_group_bytes
from transforms.runtime.work import TASK_LIST
from transforms.text.looks import SAMPLE_BYTES, is_sentence_a_line, line_ends_of

RANGE_BYTES = 8 * MIB  # a range is some 15 seconds of a core: few are enough to keep all cores busy
TASK_BYTES = 8 * MIB  # small files that are read as one task, together at most …
TASK_FILES = 256  # … and at most so many
LOOKED_AT = 256  # plain text files of any size whose beginnings are looked at, a request each
_IO_THREADS = 16
StorageOptions = Mapping[str, Any] | None
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

    ``input_format``: ``auto`` goes by each file's ending, .txt and unknown ones being text; one that begins with tokenised
    sentences, one a line, is read so, and JSON lines that would be plain text are refused. Files larger than ``range_bytes``
    are cut into ranges of so many bytes (plain lines, JSON lines, running text, CoNLL) or runs of row groups of about so many
    (Parquet). Any other is read whole: compressed, in another encoding than UTF-8, CSV, a JSON array.
    InputError for anything that can't be read, or a file without the wanted fields.
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
    if auto:
        files = _by_their_looks(files, large, listed, settings, storage_options)
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


def _by_their_looks(
    files: Sequence[WholeFile], large: Sequence[int], listed: Sequence[InputFile], settings: ReadSettings, options: StorageOptions
) -> list[WholeFile]:
    """``files``, each as what it begins as: large ones, and all where `LOOKED_AT` or fewer are plain text by their names."""
    plain = [file for file in files if file.format in PLAIN_FORMATS]
    if len(plain) > LOOKED_AT:
        plain = [file for file in plain if file.index in set(large)]

    def look(file: WholeFile) -> WholeFile | InputError:
        try:
            return looked_at(file, settings, options, in_order_only=listed[file.index].whole)
        except InputError as error:
            return error

    with ThreadPoolExecutor(_IO_THREADS) as pool:
        looked = list(pool.map(look, plain))
    if errors := [error for error in looked if isinstance(error, InputError)]:
        raise together(errors)
    changed = {file.index: file for file in looked if isinstance(file, WholeFile) and file != files[file.index]}
    if changed:
        tell_looks([file.url for file in changed.values()])
    return [changed.get(file.index, file) for file in files]


def looked_at(
    file: WholeFile, settings: ReadSettings, storage_options: StorageOptions = None, *, in_order_only: bool = False
) -> WholeFile:
    """A file that is plain text by its name, as what it begins as: text of a tokenised sentence a line is ``lines``.

    InputError if it begins as JSON lines do. What can't be read is left for the reader to tell.
    """
    try:
        head = _head(file, in_order_only, storage_options)
        text = _beginning(checked_compression(file.url, head), head)
        if settings.encoding not in UTF8:
            text = text.decode(settings.encoding, "replace").encode()
    except (InputError, UnicodeError):
        return file
    lines = text.removeprefix(BOM_UTF8).split(b"\n")
    check_not_json(file.url, file.format, next((line for line in lines if line.strip()), b""))
    is_plain = settings.tokenizer != "ptb" and settings.document in ("auto", "sentence")  # the others are of running text
    if file.format == "text" and is_plain and is_sentence_a_line([line.decode("utf-8", "replace") for line in lines]):
        return replace(file, format="lines")
    return file


def tell_looks(urls: Sequence[str]) -> None:
    """Say which files are read as ``lines`` by their looks: it costs a day to find out later."""
    message = (
        "%d file(s) begin with tokenised sentences, one a line, such as %s: read as lines (--input-format text says otherwise)"
    )
    _log.warning(message, len(urls), urls[0])


def read_tasks(splits: Iterable[Split]) -> Iterator[ReadTask]:
    """Splits in tasks, in order: ranges and large files alone, runs of small whole files together."""
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
    """Say what ``auto`` made of the files: a wrong guess must be seen before it costs a day."""
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
    # In CSV and JSON arrays, where a record begins is known only after reading all before it.
    if in_order_only or compression or settings.encoding not in UTF8 or file.format not in UNITS:
        yield file
        return
    if file.format == "text":
        ends = settings.line_ends
        file = replace(file, line_ends=line_ends_of(_beginning(compression, head)) if ends == "auto" else ends)
    for start in range(0, size, range_bytes):
        yield split_as(ByteRange, file, start=start, stop=min(start + range_bytes, size))


def _beginning(compression: str, head: bytes) -> bytes:
    """The text that a file begins with, about `SAMPLE_BYTES` at most, by the beginning of what is stored."""
    text = bytearray(b"" if compression else head)
    with suppress(EOFError, ValueError):  # it ends in the middle, or is damaged: that is told when it is read
        for data in decompressed(compression, BytesIO(head)) if compression else ():
            text += data
            if len(text) >= SAMPLE_BYTES:
                break
    return bytes(text[:SAMPLE_BYTES])


def _head(file: WholeFile, in_order_only: bool, storage_options: Mapping[str, Any] | None) -> bytes:
    """The beginning of a file."""
    if not in_order_only:
        fetch = fetcher(file.url, *filesystem_of(file.url, storage_options))
        return fetch(0, min(SAMPLE_BYTES, file.identity.size))
    with _opened(file.url, storage_options) as opened:
        head: bytes = opened.read(SAMPLE_BYTES)
        return head


@contextmanager
def _opened(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    with input_errors(url):
        filesystem, path = filesystem_of(url, storage_options)
        with filesystem.open(path, "rb") as opened:
            yield opened


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


def write_tasks(root: Root, tasks: Iterable[ReadTask]) -> None:
    """Leave the tasks of the job in the scratch area."""
    root.put(TASK_LIST, b"".join(msgspec.json.encode(task) + b"\n" for task in tasks))


def listed_tasks(root: Root) -> list[ReadTask]:
    """The tasks of the job as they were listed, in input order."""
    return decode_lines(root.get(TASK_LIST), ReadTask)
