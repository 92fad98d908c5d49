"""Stage A, before reading: a large stream that can't be read from its middle → blobs of whole records for many workers.

One pass decompresses (or decodes) the stream and cuts it where a record begins; a blob that is in the store already, from a
pass that was interrupted, is not written again. The list of the input's tasks, before and after, stands in the scratch area: as
a part of the job's graph it would meet runners' limits on its size.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from transforms.inputs.boundaries import last_boundary, unit_of
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import Chunks
from transforms.inputs.records import (
    Blob,
    Damage,
    DamagedInputError,
    FileIdentity,
    InputError,
    ReadSettings,
    ReadTask,
    Split,
    Stream,
    split_as,
)
from transforms.readers.csv import csv_blobs
from transforms.readers.jsonl import HEAD_BYTES, is_array, json_blobs
from transforms.runtime.results import note_bad_files
from transforms.runtime.work import BLOBS, TASK_LIST, UNPACKED
from transforms.text.sentences import SAMPLE_BYTES, line_ends_of

BLOB_BYTES = 8 << 20
MOST_BYTES = 16 * BLOB_BYTES  # without a record's end in so many bytes, a blob is cut where it is


def write_tasks(root: Root, tasks: Iterable[ReadTask]) -> None:
    """Leave the tasks of the job in the scratch area."""
    root.put(TASK_LIST, b"".join(msgspec.json.encode(task) + b"\n" for task in tasks))


def listed_tasks(root: Root) -> list[ReadTask]:
    """The tasks of the job as they were listed, in input order."""
    return msgspec.json.Decoder(ReadTask).decode_lines(root.get(TASK_LIST))


def all_tasks(root: Root) -> Iterator[ReadTask]:
    """The tasks of the job in input order, those of blobs in place of what was unpacked into them.

    RuntimeError for a stream that is not unpacked.
    """
    for task in listed_tasks(root):
        if not isinstance(task.splits[0], Stream):
            yield task
            continue
        blobs = unpacked(root, task)
        if blobs is None:
            raise RuntimeError(f"{task.splits[0].url} is not unpacked: run the same command again")
        yield from blobs


def unpack(
    task: ReadTask, root: Root, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> list[ReadTask]:
    """The task itself, or those of its blobs; none of a stream that can't be read, of which word is left."""
    stream = task.splits[0]
    if not isinstance(stream, Stream):
        return [task]
    done = unpacked(root, task)
    if done is not None:
        return done
    try:
        return _unpack(ByteSource(stream, storage_options, encoding=settings.encoding), root, task, settings)
    except InputError as error:
        note_bad_files(root, f"stream-{task.name}", error)
        return []


def unpack_local(path: str, identity: FileIdentity, task: ReadTask, root: Root, settings: ReadSettings) -> None:
    """Unpack ``task`` from a copy of its bytes on this machine."""
    if unpacked(root, task) is None:
        copy = msgspec.structs.replace(task.splits[0], url=path, identity=identity)
        _unpack(ByteSource(copy, encoding=settings.encoding), root, task, settings)


def unpacked(root: Root, task: ReadTask) -> list[ReadTask] | None:
    """The tasks of the blobs of ``task``; None unless all of it is unpacked."""
    try:
        whole, *blobs = msgspec.convert(root.get_json(_marker(task)), list[ReadTask])
    except (StoreError, OSError, ValueError):
        return None
    return blobs if whole == task else None


def _marker(task: ReadTask) -> str:
    return f"{UNPACKED}/{task.index:05d}.json"


def _unpack(source: ByteSource, root: Root, task: ReadTask, settings: ReadSettings) -> list[ReadTask]:
    stream = task.splits[0]
    damage: list[str] = []
    input_format, ends, blobs = _blobs(Chunks(_until_damage(source.text(), settings, damage)), stream.format, settings)
    splits: list[Split] = []
    for number, data in enumerate(blobs):
        path = f"{BLOBS}/{task.index:05d}-{number:05d}"
        sha256 = hashlib.sha256(data).hexdigest()
        # A blob of an earlier version of the file may have this one's size.
        if root.size(path) != len(data) or root.sha256(path) != sha256:
            root.put(path, data)
        identity = FileIdentity(len(data), f"sha256={sha256}")
        splits.append(split_as(Blob, stream, path=path, format=input_format, line_ends=ends, identity=identity))
    if damage:
        splits.append(split_as(Damage, stream, reason=damage[0]))
    tasks = [ReadTask(task.index, (split,), number) for number, split in enumerate(splits)]
    root.put_json(_marker(task), msgspec.to_builtins([task, *tasks]))
    return tasks


def _until_damage(text: Iterator[bytes], settings: ReadSettings, damage: list[str]) -> Iterator[bytes]:
    """``text``; where a damaged file is to be rejected, up to its damage, which is then told in ``damage``."""
    try:
        yield from text
    except DamagedInputError as error:
        if settings.on_bad_file != "reject":
            raise
        damage.append(error.reason)


def _blobs(chunks: Chunks, input_format: str, settings: ReadSettings) -> tuple[str, str, Iterator[bytes]]:
    """The format of a stream's blobs, what its beginning says about the line ends of running text, and runs of whole records."""
    if input_format in ("csv", "tsv"):
        return input_format, "auto", csv_blobs(chunks, input_format, settings, BLOB_BYTES)
    if input_format == "json":
        if is_array(chunks.peek(HEAD_BYTES)):
            return input_format, "auto", json_blobs(chunks, settings, BLOB_BYTES)
        input_format = "jsonl"
    ends = "auto"
    if input_format == "text":
        ends = line_ends_of(chunks.peek(SAMPLE_BYTES)) if settings.line_ends == "auto" else settings.line_ends
    return input_format, ends, _unit_blobs(chunks, unit_of(input_format, ends))


def _unit_blobs(chunks: Iterable[bytes], unit: str) -> Iterator[bytes]:
    """Text cut where a unit begins."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if len(held) >= BLOB_BYTES:
            cut = last_boundary(held, unit) or (len(held) if len(held) >= MOST_BYTES else 0)
            if cut:
                yield bytes(held[:cut])
                del held[:cut]
    if held:
        yield bytes(held)
