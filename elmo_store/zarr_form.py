"""The Zarr form of a store: a Zarr v3 group that any Zarr library and ``xarray.open_zarr`` read.

May import zarr, NumPy, layout, manifest, storage, errors.

Every object is encoded in memory and then put whole: one put an object, whose bytes (and hash) are known before they travel,
and which depend on nothing but the rows and the versions of the libraries. Metadata and the small arrays are encoded by
zarr itself, shards by `zarr_shard`.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import MemoryStore

from elmo_store import layout, zarr_shard
from elmo_store.errors import StoreError
from elmo_store.manifest import Manifest
from elmo_store.storage import Root
from elmo_store.zarr_shard import Data

Int64 = npt.NDArray[np.int64]
Objects = dict[str, Any]  # what an in-memory zarr store keeps: name → buffer
ATTRIBUTES = {"format": "elmo-store", "format_version": layout.FORMAT_VERSION}
ARRAYS = ("states", "token", "state", "sentence_start")
# Chunks that hold nothing but zeros are written too: a chunk that is absent is a chunk that was lost.
_CONFIG: Any = {"write_empty_chunks": True}


def create(root: Root, manifest: Manifest) -> None:
    """Put the group's metadata and the coordinate ``state``; no rows. Again is harmless: the same bytes under the same names."""
    objects: Objects = {}
    group = zarr.create_group(MemoryStore(objects), attributes=dict(ATTRIBUTES))
    rows, sentences = manifest.sizes.rows, manifest.sizes.sentences
    _create_states(group, manifest, rows)
    _create_token(group, manifest.shard_rows, rows)
    _create_sentence_start(group, sentences + 1)
    state = group.create_array(
        "state", shape=(len(manifest.states),), chunks=(len(manifest.states),), dtype="str", compressors=None, filters=None,
        fill_value="", dimension_names=("state",), config=_CONFIG,
    )  # fmt: skip
    state[:] = np.array(manifest.states, dtype=object)
    for key in sorted(objects):
        root.put(f"{layout.ZARR}/{key}", _object(objects, key))


def consolidate(root: Root) -> None:
    """Gather the arrays' metadata in the group's own, so that opening the group is one read. Once, at the end."""
    group = root.get_json(f"{layout.ZARR}/zarr.json")
    arrays = {name: root.get_json(f"{layout.ZARR}/{name}/zarr.json") for name in ARRAYS}
    # As zarr.consolidate_metadata writes it; a reader that doesn't know the member reads the arrays' own files.
    group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": arrays}
    root.put_json(f"{layout.ZARR}/zarr.json", group)


def encode_shard(manifest: Manifest, shard: int, states: npt.NDArray[Any]) -> tuple[str, Data]:
    """The object of shard ``shard`` of the array ``states``: its path in the store and its bytes.

    ``states``: [rows of the shard, n_states, channels] in the manifest's dtype. The last shard's rows may be fewer than
    ``shard_rows``; inner chunks that lie wholly beyond them are left out.
    """
    data = zarr_shard.encode(
        states,
        shard_rows=manifest.shard_rows,
        chunk_rows=layout.chunk_rows(manifest.shard_rows),
        compression=manifest.compression,
    )
    return layout.zarr_states_shard(shard), data


def encode_tokens(manifest: Manifest, shard: int, tokens: Sequence[str]) -> tuple[str, bytes]:
    """The chunk of shard ``shard`` of the array ``token``: its path in the store and its bytes. One token a row of the shard."""
    objects: Objects = {}
    array = _create_token(zarr.create_group(MemoryStore(objects)), manifest.shard_rows, manifest.shard_rows)
    array[: len(tokens)] = np.array(tokens, dtype=object)
    return layout.zarr_token_chunk(shard), _object(objects, "token/c/0")


def write_sentence_start(root: Root, manifest: Manifest, chunks: Iterator[Int64]) -> None:
    """Put the array ``sentence_start``: the first row of every sentence, and after the last one the number of rows.

    ``chunks``: int64 arrays of any lengths, n_sentences + 1 entries together; only one chunk of the array is held at a time.
    StoreError if the entries are not as many, not in order, or don't run from 0 to the number of rows.
    """
    wanted, rows = manifest.sizes.sentences + 1, manifest.sizes.rows
    written = last = 0
    for entries in _regrouped(chunks, layout.SENTENCE_CHUNK):
        steps = np.diff(entries, prepend=np.int64(last))
        if (steps < 0).any() or (written == 0 and entries[0] != 0):
            raise StoreError(f"{root}: sentence_start is not in order near sentence {written}: the plan is broken")
        objects: Objects = {}
        array = _create_sentence_start(zarr.create_group(MemoryStore(objects)), layout.SENTENCE_CHUNK)
        array[: len(entries)] = entries
        number = written // layout.SENTENCE_CHUNK
        root.put(f"{layout.ZARR}/sentence_start/c/{number}", _object(objects, "sentence_start/c/0"))
        written, last = written + len(entries), int(entries[-1])
    if (written, last) != (wanted, rows):
        raise StoreError(f"{root}: sentence_start has {written} entries up to row {last}; {wanted} up to row {rows} were planned")


def _create_states(group: zarr.Group, manifest: Manifest, rows: int) -> zarr.Array[Any]:
    n_states = len(manifest.states)
    return group.create_array(
        "states",
        shape=(rows, n_states, manifest.channels),
        shards=(manifest.shard_rows, n_states, manifest.channels),
        chunks=(layout.chunk_rows(manifest.shard_rows), 1, manifest.channels),
        dtype=manifest.dtype,
        compressors=_compressor(manifest.compression, np.dtype(manifest.dtype).itemsize),
        filters=None,
        fill_value=0,
        dimension_names=("token", "state", "channel"),
        config=_CONFIG,
    )


def _create_token(group: zarr.Group, shard_rows: int, rows: int) -> zarr.Array[Any]:
    return group.create_array(
        "token", shape=(rows,), chunks=(shard_rows,), dtype="str", compressors=ZstdCodec(level=1), filters=None,
        fill_value="", dimension_names=("token",), config=_CONFIG,
    )  # fmt: skip


def _create_sentence_start(group: zarr.Group, entries: int) -> zarr.Array[Any]:
    return group.create_array(
        "sentence_start", shape=(entries,), chunks=(layout.SENTENCE_CHUNK,), dtype="int64",
        compressors=ZstdCodec(level=1), filters=None, fill_value=0, dimension_names=("sentence_edge",), config=_CONFIG,
    )  # fmt: skip


@cache
def _compressor(name: str, itemsize: int) -> BytesBytesCodec | None:
    if name == "none":
        return None
    if name == "zstd":
        return ZstdCodec(level=1)
    return BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=itemsize, blocksize=1 << 20)


def _object(objects: Objects, key: str) -> bytes:
    """The bytes that zarr wrote under ``key``."""
    if key not in objects:
        raise StoreError(f"zarr {zarr.__version__} did not write {key}: this version is not supported")
    return objects[key].to_bytes()


def _regrouped(chunks: Iterator[Int64], size: int) -> Iterator[Int64]:
    """The same entries in arrays of ``size``, the last one shorter; never an empty one."""
    held: list[Int64] = []
    n_held = 0
    for chunk in chunks:
        entries = np.asarray(chunk, dtype=np.int64)
        while len(entries):
            taken = entries[: size - n_held]
            held.append(taken)
            n_held += len(taken)
            entries = entries[len(taken) :]
            if n_held == size:
                yield np.concatenate(held)
                held, n_held = [], 0
    if n_held:
        yield np.concatenate(held)
