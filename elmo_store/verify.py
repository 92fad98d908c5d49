"""Is a store what it says? Reads every object. May import pyarrow, NumPy, safetensors and this package's plain modules.

Shards are compared with the sizes and SHA-256 of their markers; sentences, rejects and the start state, which have no
marker, with the counts and the hash of the manifest.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from elmo_store import layout
from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.manifest import Manifest
from elmo_store.markers import object_fault, read_marker
from elmo_store.parquet_files import errors_name, open_parquet
from elmo_store.row_readers import open_zarr_array
from elmo_store.storage import Root

FAULTS_SHOWN = 10


@dataclass(frozen=True)
class VerifyReport:
    """What was read and found right."""

    shards: int
    objects: int
    bytes: int
    sentences: int


def verify(root: Root, manifest: Manifest) -> VerifyReport:
    """Check all of the store. ShardMissingError if an object is not there, otherwise ShardCorruptError, naming up to ten."""
    counts = manifest.sizes
    sizes = root.sizes()
    missing: list[str] = []
    wrong: list[str] = []
    n_objects = n_bytes = 0
    for shard in range(counts.shards):
        marker = read_marker(root, shard)
        if marker is None:
            missing.append(f"{root.url(layout.shard_marker(shard))} is missing")
            continue
        first, stop = manifest.shard_range(shard)
        if (marker.first_row, marker.first_row + marker.n_rows) != (first, stop):
            wrong.append(f"{root.url(layout.shard_marker(shard))} is not of rows {first} … {stop}")
        if {record.path for record in marker.objects} != set(_objects(manifest, shard)):
            wrong.append(f"{root.url(layout.shard_marker(shard))} names other objects than {_objects(manifest, shard)}")
        for record in marker.objects:
            fault = object_fault(root, record, "sha256", sizes.get(record.path))
            if fault:
                (missing if record.path not in sizes else wrong).append(fault)
            n_objects, n_bytes = n_objects + 1, n_bytes + record.bytes
    if "zarr" in manifest.forms:
        for name in ("states", "token"):
            open_zarr_array(root, manifest, name)
        wrong += _sentence_start_faults(root, manifest)
    wrong += _sentence_faults(root, manifest)
    wrong += _reject_faults(root, manifest)
    wrong += _start_state_faults(root, manifest)
    _report(root, missing, ShardMissingError)
    _report(root, wrong, ShardCorruptError)
    return VerifyReport(counts.shards, n_objects, n_bytes, counts.sentences)


def _report(root: Root, faults: list[str], error: type[ShardMissingError] | type[ShardCorruptError]) -> None:
    if faults:
        more = f"\n… and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise error(f"{root}: {len(faults)} fault{'s' if len(faults) > 1 else ''}\n" + "\n".join(faults[:FAULTS_SHOWN]) + more)


def _objects(manifest: Manifest, shard: int) -> list[str]:
    """The objects of a shard in every form of the store."""
    names = []
    if "zarr" in manifest.forms:
        names += [layout.zarr_states_shard(shard), layout.zarr_token_chunk(shard)]
    if "parquet" in manifest.forms:
        names.append(layout.states_part(shard))
    return names


def _sentence_start_faults(root: Root, manifest: Manifest) -> Iterator[str]:
    where = root.url(f"{layout.ZARR}/sentence_start")
    array = open_zarr_array(root, manifest, "sentence_start")
    last = 0
    for first in range(0, array.shape[0], layout.SENTENCE_CHUNK):
        try:
            starts = np.asarray(array[first : first + layout.SENTENCE_CHUNK])
        except (ValueError, RuntimeError) as error:
            yield f"{where} can't be read at entry {first} ({error})"
            return
        if (np.diff(starts, prepend=last) < 0).any():
            yield f"{where} is not in order after entry {first}"
        last = int(starts[-1])
    if last != manifest.sizes.rows:
        yield f"{where} ends at row {last}, the manifest says {manifest.sizes.rows}"


def _sentence_faults(root: Root, manifest: Manifest) -> Iterator[str]:
    sentence = tokens = row = 0
    for part in range(manifest.sizes.parts):
        rel = layout.sentences_part(part)
        with open_parquet(root, rel) as file, errors_name(root, rel):
            table = file.read(columns=["sentence", "first_row", "n_tokens", "tokens"])
            lengths = table["n_tokens"].to_numpy().astype(np.int64)
            listed = table["tokens"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
        rows = np.where(lengths > 0, lengths + 2, 0) if manifest.boundaries else lengths
        starts = row + np.cumsum(rows) - rows
        numbers = np.arange(sentence, sentence + len(lengths))
        if not np.array_equal(table["sentence"].to_numpy(), numbers):
            yield f"{root.url(rel)}: its sentences are not numbered from {sentence} without gaps"
        if not np.array_equal(table["first_row"].to_numpy(), starts):
            yield f"{root.url(rel)}: first_row does not follow from the token counts, from row {row} on"
        if not np.array_equal(listed, lengths):
            yield f"{root.url(rel)}: n_tokens is not the length of tokens everywhere"
        sentence, tokens, row = sentence + len(lengths), tokens + int(lengths.sum()), row + int(rows.sum())
    counts = manifest.sizes
    if (sentence, tokens, row) != (counts.sentences, counts.tokens, counts.rows):
        yield (
            f"{root.url(layout.SENTENCES)} holds {sentence} sentences, {tokens} tokens, {row} rows; the manifest says "
            f"{counts.sentences}, {counts.tokens}, {counts.rows}"
        )


def _reject_faults(root: Root, manifest: Manifest) -> Iterator[str]:
    found = 0
    for rel in root.list(layout.REJECTS):
        try:
            found += sum(isinstance(json.loads(line)["sentence"], int) for line in BytesIO(root.get(rel)))
        except (ValueError, KeyError, TypeError) as error:
            yield f"{root.url(rel)} can't be read ({error!r})"
    if found != manifest.sizes.rejected:
        yield f"{root.url(layout.REJECTS)} holds {found} records, the manifest says {manifest.sizes.rejected}"


def _start_state_faults(root: Root, manifest: Manifest) -> Iterator[str]:
    where = root.url(layout.START_STATE)
    try:
        data = root.get(layout.START_STATE)
        tensors = load(data)
        found = start_state_sha256(manifest.start_state.kind, tensors["h"], tensors["c"])
    except FileNotFoundError:
        yield f"{where} is missing"
    except (SafetensorError, KeyError) as error:
        yield f"{where} can't be read ({error!r})"
    else:
        if found != manifest.start_state.sha256:
            yield f"{where} has the hash {found}, the manifest says {manifest.start_state.sha256}"


def start_state_sha256(kind: str, h: "np.typing.NDArray[np.float32]", c: "np.typing.NDArray[np.float32]") -> str:
    """The hash of a start state's value, as docs/store-format.md defines it: kind, shapes, little-endian float32 bytes."""
    header = json.dumps({"kind": kind, "h": list(h.shape), "c": list(c.shape)}, sort_keys=True)
    digest = hashlib.sha256(header.encode())
    for tensor in (h, c):
        digest.update(np.ascontiguousarray(tensor, "<f4").tobytes())
    return digest.hexdigest()
