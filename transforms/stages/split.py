"""Stage A, before reading: files → the splits and tasks that workers read.

Large files are read in ranges, small ones in runs. The launcher looks at the first bytes of files large enough to be cut and of
up to `LOOKED_AT` tables (of Parquet files at the footers): what it reads alone does not grow with the number of small files.
Nothing here depends on how many workers there are, so neither do the parts.

A file that can't be read from its middle is one task, whatever its size. The list of the input's tasks is in the scratch area: as
a part of the job's graph it would meet runners' limits.
"""

import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from typing import Any

import msgspec
from msgspec.structs import replace

from elmo_store.storage.json_values import decode_lines
from elmo_store.storage.location import Location
from elmo_store.storage.root import Root
from transforms.inputs.archives import check_no_archive, has_archive_name
from transforms.inputs.boundaries import UNITS
from transforms.inputs.byte_source import UTF8
from transforms.inputs.decompress import checked_compression, decompressed
from transforms.inputs.files import (
    filesystem_of,
    find_files,
    input_errors,
    is_read_whole,
    known_format,
)
from transforms.inputs.records import (
    MIB,
    PLAIN_FORMATS,
    DamagedInputError,
    InputError,
    ReadSettings,
    ReadTask,
    Split,
    together,
)
from transforms.readers.conll import HEAD_BYTES, layout_of
from transforms.readers.csv import check_table, is_quoted
from transforms.readers.jsonl import is_array
from transforms.readers.parquet import row_group_bytes
from transforms.runtime.work import TASK_LIST
from transforms.text.looks import SAMPLE_BYTES, begins_json_object, is_sentence_a_line, line_ends_of

RANGE_BYTES = 8 * MIB  # a range is some 15 seconds of a core: few are enough to keep all cores busy
TASK_BYTES = 8 * MIB  # small files that are read as one task, together at most …
TASK_FILES = 256  # … and at most so many
LOOKED_AT = (
    256  # plain text files, and tables, of any size whose beginnings are looked at, a request each
)
TABLES = (
    "csv",
    "tsv",
    "parquet",
)  # formats whose files begin, or end, with the names of their fields
_IO_THREADS = 16
StorageOptions = Mapping[str, Any] | None


def plan_splits(
    inputs: Sequence[str],
    input_format: str = "auto",
    settings: ReadSettings | None = None,
    *,
    range_bytes: int = RANGE_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    exclude: Sequence[Location] = (),
) -> list[Split]:
    """The splits of all inputs, in input order (files by full name, ranges by where they begin).

    ``input_format``: ``auto`` goes by each file's ending, .txt and unknown ones being text; one that begins with tokenised
    sentences, one a line, is read so, and JSON lines that would be plain text are refused. Files larger than ``range_bytes``
    are cut into ranges of so many bytes (plain lines, JSON lines, running text, CoNLL) or runs of row groups of about so many
    (Parquet). Any other is read whole: compressed, in another encoding than UTF-8, CSV, a JSON array.
    InputError for anything that can't be read, or a file without the wanted fields.
    """
    settings, auto = settings or ReadSettings(), input_format == "auto"
    listed = find_files(inputs, only_known=auto, storage_options=storage_options, exclude=exclude)
    kinds = [(known_format(url) or "text") if auto else input_format for url in listed]
    files = [
        Split(i, url, kinds[i], identity, auto) for i, (url, identity) in enumerate(listed.items())
    ]
    first_parquet = kinds.index("parquet") if "parquet" in kinds else -1
    large = {
        file.index
        for file in files
        if file.identity.size > range_bytes or file.index == first_parquet
    }
    plain = {file.index for file in files if auto and file.format in PLAIN_FORMATS}
    tables = {file.index for file in files if file.format in TABLES}
    archives = {file.index for file in files if has_archive_name(file.url)}

    errors: dict[int, InputError] = {}

    def pieces(number: int) -> list[Split]:
        cut_at = 0 if is_read_whole(files[number].url) else range_bytes
        try:
            found = list(_looked_at(files[number], settings, cut_at, storage_options))
            is_whole = files[number].format == "parquet" and number not in large
            return [files[number]] if is_whole else found
        except InputError as error:
            if isinstance(error, DamagedInputError) and (
                number not in large or settings.on_bad_file == "reject"
            ):
                return [files[number]]  # whose reader tells, or takes what comes before the damage
            errors[number] = error
            return []

    if len(tables) > LOOKED_AT:
        tables = {kinds.index(kind) for kind in TABLES if kind in kinds}
    looked_at = sorted(large | archives | tables | (plain if len(plain) <= LOOKED_AT else set()))
    with ThreadPoolExecutor(_IO_THREADS) as pool:
        found = dict(zip(looked_at, pool.map(pieces, looked_at), strict=True))
    if errors:
        raise together([errors[number] for number in sorted(errors)])
    # A small file costs microseconds here: the launcher does this alone, for as many as there are.
    splits: list[Split] = []
    for file in files:
        each = found.get(file.index, [file])
        splits += (replace(split, index=i) for i, split in enumerate(each, len(splits)))
    return splits


def _looked_at(
    file: Split, settings: ReadSettings, range_bytes: int, storage_options: StorageOptions
) -> Iterator[Split]:
    """The splits of a file as what it begins as, in ranges if it is larger than ``range_bytes`` (0: whole in any case)."""
    size = file.identity.size
    with input_errors(file.url):
        filesystem, path = filesystem_of(file.url, storage_options)
        with filesystem.open(path, "rb", block_size=SAMPLE_BYTES) as opened:
            if file.format == "parquet" and size:
                sizes = row_group_bytes(file.url, opened, settings)
                yield from (
                    replace(file, start=start, stop=stop)
                    for start, stop in _runs(sizes, range_bytes or sys.maxsize)
                )
                return
            head = opened.read(SAMPLE_BYTES)
    compression = checked_compression(file.url, head)
    in_utf8 = settings.encoding in UTF8
    text = _beginning(compression, head)
    check_no_archive(file.url, text)
    in_text = text if in_utf8 else text.decode(settings.encoding, "replace").encode()
    if file.guessed and file.format in PLAIN_FORMATS:
        file = _by_its_looks(file, in_text, settings)
    if file.format in ("conll", "conllu"):
        layout_of(file.url, in_text.removeprefix(BOM_UTF8)[:HEAD_BYTES], file.format, settings)
    if file.format in ("csv", "tsv"):
        if file.guessed and file.format == "tsv" and is_quoted(in_text):
            raise InputError(
                file.url,
                "its fields are in quotes as in CSV: read it with --input-format csv (or with "
                "--input-format tsv if the quotes belong to the text)",
            )
        check_table(file.url, file.format, in_text, settings)
    if file.format == "json" and not compression and in_utf8 and not is_array(head):
        file = replace(file, format="jsonl")
    if file.format == "text" and range_bytes and not compression and in_utf8 and b"\n" not in head:
        with input_errors(file.url):
            head = filesystem.cat_file(path, start=0, end=settings.max_line_bytes + 1)
        _check_line_ends(file.url, head, settings.max_line_bytes)
    # In CSV and JSON arrays, where a record begins is known only after reading all before it.
    if not 0 < range_bytes < size or compression or not in_utf8 or file.format not in UNITS:
        yield file
        return
    if file.format == "text":
        ends = settings.line_ends
        file = replace(file, line_ends=line_ends_of(text) if ends == "auto" else ends)
    for start in range(0, size, range_bytes):
        yield replace(file, start=start, stop=min(start + range_bytes, size))


def _check_line_ends(url: str, head: bytes, max_line_bytes: int) -> None:
    """Raise InputError if running text begins with a line that no reader takes: it would read the whole file in vain."""
    if len(head) > max_line_bytes and b"\n" not in head:
        raise InputError(
            url,
            f"its first line is longer than {max_line_bytes:,} bytes: running text needs line ends; put each paragraph or "
            "sentence on a line of its own, for example with fold --spaces",
        )


def _by_its_looks(file: Split, text: bytes, settings: ReadSettings) -> Split:
    """A file that is plain text by its name, as what ``text`` begins as: a tokenised sentence a line is ``lines``.

    InputError if it begins as JSON lines do.
    """
    lines = text.removeprefix(BOM_UTF8).split(b"\n")
    if begins_json_object(next((line for line in lines if line.strip()), b"")):
        raise InputError(
            file.url,
            f"it would be read as {file.format} by its name, but begins with a JSON object: read it with --input-format jsonl "
            f"(or with --input-format {file.format} if that is meant)",
        )
    is_plain = settings.tokenizer != "ptb" and settings.document in (
        "auto",
        "sentence",
    )  # the others are of running text
    if (
        file.format == "text"
        and is_plain
        and is_sentence_a_line([line.decode("utf-8", "replace") for line in lines])
    ):
        return replace(file, format="lines")
    return file


def read_tasks(splits: Iterable[Split]) -> Iterator[ReadTask]:
    """Splits in tasks, in order: ranges and large files alone, runs of small whole files together."""
    index = size = 0
    run: list[Split] = []
    for split in splits:
        small = not (split.is_range or split.piped) and split.identity.size <= TASK_BYTES
        split_bytes = split.identity.size if small else TASK_BYTES + 1  # which nothing fits beside
        if run and (
            run[-1].format != split.format
            or len(run) >= TASK_FILES
            or size + split_bytes > TASK_BYTES
        ):
            yield ReadTask(index, tuple(run))
            index, size, run = index + 1, 0, []
        run.append(split)
        size += split_bytes
    if run:
        yield ReadTask(index, tuple(run))


def _beginning(compression: str, head: bytes) -> bytes:
    """The text that a file begins with, about `SAMPLE_BYTES` at most, by the beginning of what is stored."""
    text = bytearray(b"" if compression else head)
    with suppress(
        EOFError, ValueError
    ):  # it ends in the middle, or is damaged: that is told when it is read
        for data in decompressed(compression, BytesIO(head)) if compression else ():
            text += data
            if len(text) >= SAMPLE_BYTES:
                break
    return bytes(text[:SAMPLE_BYTES])


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
