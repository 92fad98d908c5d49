"""Stage A, before reading: a large stream that can't be read from its middle → blobs of whole records for many workers.

One pass decompresses (or decodes) the stream and cuts it where a record begins; a blob that is in the store already, from a
pass that was interrupted, is not written again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from transforms.inputs.boundaries import last_boundary, unit_of
from transforms.inputs.byte_source import ByteSource, Chunks
from transforms.inputs.records import DamagedInputError, FileIdentity, InputError, ReadSettings, ReadTask
from transforms.readers.jsonl import is_array
from transforms.runtime.work import BLOBS, UNPACKED
from transforms.stages.problems import note_bad_files
from transforms.stages.record_blobs import csv_blobs, json_blobs
from transforms.text.line_ends import SAMPLE_BYTES, line_ends

BLOB_BYTES = 8 << 20
MOST_BYTES = 16 * BLOB_BYTES  # without a record's end in so many bytes, a blob is cut where it is


class UnpackStreams(beam.PTransform[PCollection[ReadTask], PCollection[ReadTask]]):
    """Tasks → tasks: a stream that is to be unpacked becomes its blobs, any other task is passed on."""

    def __init__(self, root: Root, read: ReadSettings, input_storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._arguments = (root, read, input_storage_options)

    def expand(self, tasks: PCollection[ReadTask]) -> PCollection[ReadTask]:
        """Wire `unpack`."""
        return (
            tasks
            | "Spread streams" >> beam.Reshuffle()
            | "Unpack" >> beam.FlatMap(unpack, *self._arguments).with_output_types(ReadTask)
        )


def unpack(
    task: ReadTask, root: Root, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> list[ReadTask]:
    """The task itself, or those of its blobs; none of a stream that can't be read, of which word is left."""
    piece = task.pieces[0]
    if not piece.unpack:
        return [task]
    done = unpacked(root, task)
    if done is not None:
        return done
    try:
        return _unpack(ByteSource(piece, storage_options, encoding=settings.encoding), root, task, settings)
    except InputError as error:
        note_bad_files(root, f"stream-{task.name}", error)
        return []


def unpack_local(path: str, identity: FileIdentity, task: ReadTask, root: Root, settings: ReadSettings) -> None:
    """Unpack ``task`` from a copy of its bytes on this machine."""
    if unpacked(root, task) is None:
        piece = replace(task.pieces[0], url=path, identity=identity)
        _unpack(ByteSource(piece, encoding=settings.encoding), root, task, settings)


def _unpack(source: ByteSource, root: Root, task: ReadTask, settings: ReadSettings) -> list[ReadTask]:
    damage: list[str] = []
    blobs = list(write_blobs(_until_damage(source.text(), settings, damage), root, task, settings))
    if damage:
        piece = replace(task.pieces[0], unpack=False, damage=damage[0])
        blobs.append(ReadTask(task.index, (piece,), len(blobs)))
    root.put_json(_marker(task), {"task": task.to_dict(), "blobs": [blob.to_dict() for blob in blobs]})
    return blobs


def _until_damage(text: Iterator[bytes], settings: ReadSettings, damage: list[str]) -> Iterator[bytes]:
    """``text``; where a damaged file is to be rejected, up to its damage, which is then told in ``damage``."""
    try:
        yield from text
    except DamagedInputError as error:
        if settings.on_bad_file != "reject":
            raise
        damage.append(error.reason)


def unpacked(root: Root, task: ReadTask) -> list[ReadTask] | None:
    """The tasks of the blobs of ``task``; None unless all of it is unpacked."""
    try:
        marker = root.get_json(_marker(task))
        return [ReadTask.from_dict(blob) for blob in marker["blobs"]] if marker["task"] == task.to_dict() else None
    except (StoreError, OSError, ValueError, KeyError, TypeError):
        return None


def _marker(task: ReadTask) -> str:
    return f"{UNPACKED}/{task.index:05d}.json"


def write_blobs(text: Iterable[bytes], root: Root, task: ReadTask, settings: ReadSettings) -> Iterator[ReadTask]:
    """Cut ``text`` (UTF-8) into blobs in the store."""
    piece = task.pieces[0]
    for number, (data, input_format, judged) in enumerate(_blobs(text, piece.format, settings)):
        path = f"{BLOBS}/{task.index:05d}-{number:05d}"
        sha256 = hashlib.sha256(data).hexdigest()
        if root.size(path) != len(data) or root.sha256(path) != sha256:  # of an earlier version of the file it may have that size
            root.put(path, data)
        identity = FileIdentity(len(data), f"sha256={sha256}")
        blob = replace(piece, identity=identity, format=input_format, line_ends=judged, blob=path, unpack=False)
        yield ReadTask(task.index, (blob,), number)


def _blobs(text: Iterable[bytes], input_format: str, settings: ReadSettings) -> Iterator[tuple[bytes, str, str]]:
    """Stretches of whole records, their format, and for running text what its beginning says about its line ends."""
    chunks = Chunks(iter(text))
    if input_format in ("csv", "tsv"):
        yield from ((data, input_format, "") for data in csv_blobs(chunks, input_format, settings, BLOB_BYTES))
    elif input_format == "json" and is_array(chunks.peek(4096)):
        yield from ((data, input_format, "") for data in json_blobs(chunks, settings, BLOB_BYTES))
    else:
        unit = "jsonl" if input_format == "json" else input_format
        ends = settings.line_ends if unit == "text" else ""
        yield from ((data, unit, judged) for data, judged in _stretches(chunks, unit, ends))


def _stretches(text: Iterable[bytes], input_format: str, ends: str) -> Iterator[tuple[bytes, str]]:
    """Stretches of whole records, cut where one begins."""
    held = bytearray()
    for chunk in text:
        held += chunk
        if ends == "auto" and len(held) >= SAMPLE_BYTES:
            ends = _judged(held)
        if len(held) < BLOB_BYTES or ends == "auto":
            continue
        cut = last_boundary(held, unit_of(input_format, ends)) or (len(held) if len(held) >= MOST_BYTES else 0)
        if cut:
            yield bytes(held[:cut]), ends
            del held[:cut]
    if held:
        yield bytes(held), _judged(held) if ends == "auto" else ends


def _judged(text: bytearray) -> str:
    return line_ends(bytes(text[:SAMPLE_BYTES]).decode("utf-8", "replace").splitlines()[:-1])
