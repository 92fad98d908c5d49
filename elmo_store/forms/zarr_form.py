"""The Zarr form of a store: a Zarr v3 group that any Zarr library and ``xarray.open_zarr`` read; and ``sentence_start``.

Every object is encoded in memory and then put whole: one put an object, whose bytes (and hash) are known before they travel,
and which depend on nothing but the rows and the versions of the libraries. Metadata and the small arrays are encoded by zarr
itself, shards by `zarr_shard`. `elmo_store.reading.row_readers` reads rows.

The array ``sentence_start``, which finds the rows of a sentence, is in every store, also in one that has no Zarr form.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.forms import zarr_shard
from elmo_store.storage.data import Data
from elmo_store.storage.root import Root

if TYPE_CHECKING:
    import zarr
    from zarr.abc.codec import BytesBytesCodec

TOKENS_AT_ONCE = 2048
Int64 = npt.NDArray[np.int64]
ATTRIBUTES = {"format": "elmo-store", "format_version": layout.FORMAT_VERSION}


def arrays(manifest: Manifest) -> tuple[str, ...]:
    """Names of the group's arrays."""
    if "zarr" not in manifest.forms:
        return ("sentence_start",)
    return ("states", *(("scale",) if manifest.is_int8 else ()), "token", "state", "sentence_start")


def create(root: Root, manifest: Manifest) -> None:
    """Put the group's metadata and the coordinate ``state``; no rows. Again is harmless: the same bytes under the same names."""
    for rel, data in metadata(manifest).items():
        root.put(rel, data)


def metadata(manifest: Manifest) -> dict[str, bytes]:
    """Objects of the group that hold no rows, by path in the store: the arrays' metadata and the coordinate ``state``."""
    import zarr
    from zarr.codecs import ZstdCodec
    from zarr.storage import MemoryStore

    m = manifest
    objects: dict[str, Any] = {}  # what zarr keeps in memory: name → buffer
    group = zarr.create_group(MemoryStore(objects), attributes=dict(ATTRIBUTES))
    _create(
        group, "sentence_start", (m.sizes.sentences + 1,), (m.sentence_chunk,), "int64", dimension_names=("sentence_edge",),
        compressors=ZstdCodec(level=1),
    )  # fmt: skip
    if "zarr" in m.forms:
        rows, n_states, channels = m.sizes.rows, len(m.states), m.channels
        _create(
            group, "states", (rows, n_states, channels), (m.chunk_rows, 1, channels), m.dtype,
            dimension_names=("row", "state", "channel"), shards=(m.shard_rows, n_states, channels),
            compressors=_compressors(m, np.dtype(m.dtype).itemsize), attributes={"multiply_by": "scale"} if m.is_int8 else {},
        )  # fmt: skip
        if m.is_int8:
            _create(
                group, "scale", (rows, n_states), (m.chunk_rows, n_states), "float32", dimension_names=("row", "state"),
                shards=(m.shard_rows, n_states), compressors=_compressors(m, 4),
            )  # fmt: skip
        _create(
            group,
            "token",
            (rows,),
            (m.shard_rows,),
            "str",
            dimension_names=("row",),
            compressors=ZstdCodec(level=1),
        )
        state = _create(
            group,
            "state",
            (n_states,),
            (n_states,),
            "str",
            dimension_names=("state",),
            compressors=None,
        )
        state[:] = np.array(m.states, dtype=object)
    return {f"{layout.ZARR}/{key}": objects[key].to_bytes() for key in sorted(objects)}


def _create(
    group: "zarr.Group",
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    **options: Any,
) -> "zarr.Array[Any]":
    """An array of a group. Chunks that hold nothing but zeros are written too: one that is absent is one that was lost."""
    return group.create_array(
        name, shape=shape, chunks=chunks, dtype=dtype, filters=None, fill_value="" if dtype == "str" else 0,
        config={"write_empty_chunks": True}, **options,
    )  # fmt: skip


def _compressors(manifest: Manifest, itemsize: int) -> "list[BytesBytesCodec]":
    """What follows ``bytes`` in the inner chunks' codecs."""
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    codecs: list[BytesBytesCodec] = []
    if manifest.compression == "zstd":
        codecs.append(ZstdCodec(level=1))
    elif manifest.compression == "blosc":
        codecs.append(
            BloscCodec(
                cname="zstd", clevel=1, shuffle="shuffle", typesize=itemsize, blocksize=1 << 20
            )
        )
    if manifest.checksum == "crc32c":
        codecs.append(Crc32cCodec())
    return codecs


def consolidate(root: Root, manifest: Manifest) -> None:
    """Gather the arrays' metadata in the group's own, so that opening the group is one read. Once, at the end."""
    group = root.get_json(f"{layout.ZARR}/zarr.json")
    gathered = {name: root.get_json(f"{layout.ZARR}/{name}/zarr.json") for name in arrays(manifest)}
    # As zarr.consolidate_metadata writes it; a reader that doesn't know the member reads the arrays' own files.
    group["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": gathered,
    }
    root.put_json(f"{layout.ZARR}/zarr.json", group)


def encode_shard(
    manifest: Manifest, shard: int, states: Array | Int8Rows
) -> list[tuple[str, Data]]:
    """The objects of shard ``shard`` of the array ``states``, and of ``scale`` in an int8 store: path in the store and bytes.

    ``states``: [rows of the shard, n_states, channels] in the manifest's dtype. The last shard's rows may be fewer than
    ``shard_rows``; inner chunks that lie wholly beyond them are left out.
    """
    values = states.values if isinstance(states, Int8Rows) else states
    parts = [(layout.zarr_states_shard(shard), values)]
    if isinstance(states, Int8Rows):  # an inner chunk of `scale` holds all scales of its rows
        parts.append((layout.zarr_scale_shard(shard), states.scale[:, None]))
    settings: dict[str, Any] = {"compression": manifest.compression, "checksum": manifest.checksum}
    settings |= {"shard_rows": manifest.shard_rows, "chunk_rows": manifest.chunk_rows}
    return [(rel, zarr_shard.encode(rows, **settings)) for rel, rows in parts]


def encode_tokens(manifest: Manifest, shard: int, tokens: Sequence[str]) -> tuple[str, bytes]:
    """The chunk of shard ``shard`` of the array ``token``: its path in the store and its bytes. One token a row of the shard.

    The codecs of the array's metadata are called by themselves: zarr would make a group and an array anew for each chunk, nine
    tenths of writing a small shard. tests/store compare the bytes with zarr's.
    """
    rows = np.full(manifest.shard_rows, "", dtype=object)
    rows[: len(tokens)] = tokens
    # Some at a time, as the codec keeps the interpreter's lock: their number in 4 bytes, then each with its own length.
    some = (
        VLenUTF8().encode(rows[first : first + TOKENS_AT_ONCE])
        for first in range(0, len(rows), TOKENS_AT_ONCE)
    )
    data = len(rows).to_bytes(4, "little") + b"".join(memoryview(part)[4:] for part in some)
    return layout.zarr_token_chunk(shard), bytes(Zstd(level=1).encode(data))


def encode_sentence_chunk(manifest: Manifest, chunk: int, entries: Int64) -> tuple[str, bytes]:
    """Chunk ``chunk`` of ``sentence_start``, filled up with zeros: its path in the store and its bytes."""
    whole = np.zeros(manifest.sentence_chunk, "<i8")
    whole[: len(entries)] = entries
    return layout.zarr_sentence_chunk(chunk), bytes(Zstd(level=1).encode(whole))
