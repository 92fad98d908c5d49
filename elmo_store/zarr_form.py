"""The Zarr form of a store: a Zarr v3 group that any Zarr library and ``xarray.open_zarr`` read; and ``sentence_start``.

May import zarr (when something is created), numcodecs, NumPy, layout, manifest, storage, recent, zarr_shard, errors.

Every object is encoded in memory and then put whole: one put an object, whose bytes (and hash) are known before they travel,
and which depend on nothing but the rows and the versions of the libraries. Metadata and the small arrays are encoded by zarr
itself, shards by `zarr_shard`. Reading fetches the exact bytes of the rows that are asked for, all at once.

The array ``sentence_start``, which finds the rows of a sentence, is in every store, also in one that has no Zarr form.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store import layout, zarr_shard
from elmo_store.errors import ShardCorruptError, ShardMissingError, StoreError
from elmo_store.manifest import Manifest
from elmo_store.recent import Recent
from elmo_store.storage import Range, Root, ShortReadError
from elmo_store.zarr_shard import DamagedError, Data, ShardIndex

if TYPE_CHECKING:
    import zarr
    from zarr.abc.codec import BytesBytesCodec

Int64 = npt.NDArray[np.int64]
Objects = dict[str, Any]  # what an in-memory zarr store keeps: name → buffer
ATTRIBUTES = {"format": "elmo-store", "format_version": layout.FORMAT_VERSION}
# Chunks that hold nothing but zeros are written too: a chunk that is absent is a chunk that was lost.
_CONFIG: Any = {"write_empty_chunks": True}
INDICES_AT_HAND = 1024  # of shards: 10 KB each for 16,384 rows of 5 states
TOKEN_CHUNKS_AT_HAND = 8
DECODE_THREADS = 4


def arrays(manifest: Manifest) -> tuple[str, ...]:
    """Names of the group's arrays."""
    return ("states", "token", "state", "sentence_start") if "zarr" in manifest.forms else ("sentence_start",)


def create(root: Root, manifest: Manifest) -> None:
    """Put the group's metadata and the coordinate ``state``; no rows. Again is harmless: the same bytes under the same names."""
    for rel, data in metadata(manifest).items():
        root.put(rel, data)


def metadata(manifest: Manifest) -> dict[str, bytes]:
    """Objects of the group that hold no rows, by path in the store: the arrays' metadata and the coordinate ``state``."""
    import zarr
    from zarr.storage import MemoryStore

    objects: Objects = {}
    group = zarr.create_group(MemoryStore(objects), attributes=dict(ATTRIBUTES))
    rows, sentences = manifest.sizes.rows, manifest.sizes.sentences
    _create_sentence_start(group, manifest, sentences + 1)
    if "zarr" in manifest.forms:
        _create_states(group, manifest, rows)
        _create_token(group, manifest.shard_rows, rows)
        state = group.create_array(
            "state", shape=(len(manifest.states),), chunks=(len(manifest.states),), dtype="str", compressors=None, filters=None,
            fill_value="", dimension_names=("state",), config=_CONFIG,
        )  # fmt: skip
        state[:] = np.array(manifest.states, dtype=object)
    return {f"{layout.ZARR}/{key}": _object(objects, key) for key in sorted(objects)}


def consolidate(root: Root, manifest: Manifest) -> None:
    """Gather the arrays' metadata in the group's own, so that opening the group is one read. Once, at the end."""
    group = root.get_json(f"{layout.ZARR}/zarr.json")
    gathered = {name: root.get_json(f"{layout.ZARR}/{name}/zarr.json") for name in arrays(manifest)}
    # As zarr.consolidate_metadata writes it; a reader that doesn't know the member reads the arrays' own files.
    group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": gathered}
    root.put_json(f"{layout.ZARR}/zarr.json", group)


def encode_shard(manifest: Manifest, shard: int, states: npt.NDArray[Any]) -> tuple[str, Data]:
    """The object of shard ``shard`` of the array ``states``: its path in the store and its bytes.

    ``states``: [rows of the shard, n_states, channels] in the manifest's dtype. The last shard's rows may be fewer than
    ``shard_rows``; inner chunks that lie wholly beyond them are left out.
    """
    data = zarr_shard.encode(
        states,
        shard_rows=manifest.shard_rows,
        chunk_rows=manifest.chunk_rows,
        compression=manifest.compression,
        checksum=manifest.checksum,
    )
    return layout.zarr_states_shard(shard), data


def encode_tokens(manifest: Manifest, shard: int, tokens: Sequence[str]) -> tuple[str, bytes]:
    """The chunk of shard ``shard`` of the array ``token``: its path in the store and its bytes. One token a row of the shard.

    The codecs ``vlen-utf8`` and ``zstd`` of the array's metadata, called by themselves: zarr makes a group and an array anew for
    each chunk, which for small shards was nine tenths of writing them. tests/store compare the bytes with zarr's.
    """
    rows = np.full(manifest.shard_rows, "", dtype=object)
    rows[: len(tokens)] = tokens
    return layout.zarr_token_chunk(shard), bytes(Zstd(level=1).encode(VLenUTF8().encode(rows)))


def decode_tokens(data: bytes, shard_rows: int) -> list[str]:
    """The tokens of a chunk of the array ``token``. DamagedError if it is none."""
    try:
        tokens = VLenUTF8().decode(Zstd().decode(data)).tolist()
    except (RuntimeError, ValueError) as error:
        raise DamagedError(f"a chunk of tokens can't be decoded ({error})") from error
    if len(tokens) != shard_rows:
        raise DamagedError(f"a chunk holds {len(tokens)} tokens, not {shard_rows}")
    return [str(token) for token in tokens]


def encode_sentence_chunk(manifest: Manifest, chunk: int, entries: Int64) -> tuple[str, bytes]:
    """Chunk ``chunk`` of ``sentence_start``, filled up with zeros: its path in the store and its bytes."""
    import zarr
    from zarr.storage import MemoryStore

    objects: Objects = {}
    array = _create_sentence_start(zarr.create_group(MemoryStore(objects)), manifest, manifest.sentence_chunk)
    array[: len(entries)] = entries
    return layout.zarr_sentence_chunk(chunk), _object(objects, "sentence_start/c/0")


def decode_sentence_chunk(data: bytes, entries: int) -> Int64:
    """The ``entries`` entries of a chunk of ``sentence_start``. DamagedError if it is none."""
    try:
        values = Zstd().decode(data)
    except (RuntimeError, ValueError) as error:
        raise DamagedError(f"a chunk of sentence_start can't be decompressed ({error})") from error
    if len(values) != 8 * entries:
        raise DamagedError(f"a chunk of sentence_start has {len(values)} bytes, not {8 * entries}")
    return np.frombuffer(values, "<i8").astype(np.int64)


def read_sentence_chunks(root: Root, manifest: Manifest, chunks: Sequence[int]) -> list[Int64]:
    """Chunks of ``sentence_start``, all asked for at once; each [sentence_chunk]. ShardMissingError, ShardCorruptError."""
    rels = [layout.zarr_sentence_chunk(chunk) for chunk in chunks]
    with _errors_name(root):
        found = root.get_many(rels)
    decoded = []
    for rel, data in zip(rels, found, strict=True):
        with _errors_name(root, rel):
            decoded.append(decode_sentence_chunk(data, manifest.sentence_chunk))
    return decoded


class ZarrRows:
    """Reads rows of the Zarr form. Safe for threads; not for use across a fork (`Store` makes a new one there)."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._indices: Recent[int, _Shard] = Recent(INDICES_AT_HAND)
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._stored_as_is = manifest.compression == "none" and manifest.checksum == "none"
        self._tokens: Recent[int, list[str]] = Recent(TOKEN_CHUNKS_AT_HAND)

    def read(self, states: Sequence[int], spans: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
        """Rows of the states with these indices: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(states), channels], a view of an array that holds one state after the other.
        """
        m = self._manifest
        total = sum(stop - first for first, stop in spans)
        out = np.empty((len(states), total, m.channels), self._dtype)
        pieces = list(layout.shard_pieces(spans, m.shard_rows))
        found = self._indices.get_all([piece[0] for piece in pieces], self._read_indices)
        with _errors_name(self._root):
            if self._stored_as_is:
                self._read_exactly(states, pieces, found, out)
            else:
                self._read_chunks(states, pieces, found, out)
        return out.transpose(1, 0, 2)

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        pieces = list(layout.shard_pieces([(first, stop)], self._manifest.shard_rows))
        found = self._tokens.get_all((shard for shard, _, _, _ in pieces), self._read_tokens)
        return [token for tokens, (_, lo, hi, _) in zip(found, pieces, strict=True) for token in tokens[lo:hi]]

    def _read_indices(self, shards: list[int]) -> list["_Shard"]:
        m = self._manifest
        n_chunks, n_states = m.shard_rows // m.chunk_rows, len(m.states)
        rels = [layout.zarr_states_shard(shard) for shard in shards]
        with _errors_name(self._root):
            tails = self._root.get_tails(dict.fromkeys(rels, zarr_shard.index_bytes(n_chunks, n_states)))
        indices = []
        for shard, rel in zip(shards, rels, strict=True):
            first, stop = m.shard_range(shard)
            with _errors_name(self._root, rel):
                used = -(-(stop - first) // m.chunk_rows)
                chunk_bytes = m.chunk_rows * m.channels * self._dtype.itemsize
                # No codec of ours makes a chunk twice as long.
                index = ShardIndex.parse(tails[rel], n_chunks, n_states, used, most_bytes=2 * chunk_bytes + 4096)
                starts = index.state_starts(used, chunk_bytes) if self._stored_as_is else None
                indices.append(_Shard(rel, index, starts))
        return indices

    def _read_tokens(self, shards: list[int]) -> list[list[str]]:
        rels = [layout.zarr_token_chunk(shard) for shard in shards]
        with _errors_name(self._root):
            chunks = self._root.get_many(rels)
        decoded = []
        for rel, data in zip(rels, chunks, strict=True):
            with _errors_name(self._root, rel):
                decoded.append(decode_tokens(data, self._manifest.shard_rows))
        return decoded

    def _read_exactly(self, states: Sequence[int], pieces: Sequence["_Piece"], found: Sequence["_Shard"], out: Any) -> None:
        """Where bytes are stored as they are: the rows' own bytes, straight into ``out`` [states, rows, channels]."""
        if not out.size:
            return
        row_bytes = self._manifest.channels * self._dtype.itemsize
        target = memoryview(out.reshape(-1).view(np.uint8))
        state_bytes = out.shape[1] * row_bytes
        ranges = []
        for (_, lo, hi, start), one in zip(pieces, found, strict=True):
            at, n_bytes = start * row_bytes, (hi - lo) * row_bytes
            for state in states:
                if one.starts is not None:
                    ranges.append(Range(one.rel, one.starts[state] + lo * row_bytes, target[at : at + n_bytes]))
                else:
                    ranges += self._scattered(one, state, lo, hi, target[at : at + n_bytes])
                at += state_bytes
        self._root.read_ranges(ranges)

    def _scattered(self, shard: "_Shard", state: int, lo: int, hi: int, target: memoryview) -> Iterator[Range]:
        """Ranges of rows ``lo … hi`` of a state whose inner chunks lie in an order of another writer's."""
        m = self._manifest
        row_bytes = m.channels * self._dtype.itemsize
        chunks = slice(lo // m.chunk_rows, -(-hi // m.chunk_rows))
        if (shard.chunks.lengths[chunks, state] != m.chunk_rows * row_bytes).any():
            raise DamagedErrorAt(shard.rel, f"an inner chunk of {m.states[state]} has not {m.chunk_rows * row_bytes} bytes")
        offsets = shard.chunks.offsets[chunks, state].tolist()
        for offset, a, b in _stored_runs(offsets, chunks.start, lo, hi, m.chunk_rows, row_bytes):
            yield Range(shard.rel, offset, target[(a - lo) * row_bytes : (b - lo) * row_bytes])

    def _read_chunks(self, states: Sequence[int], pieces: Sequence["_Piece"], found: Sequence["_Shard"], out: Any) -> None:
        """Where inner chunks are compressed or have checksums: whole ones, decoded by several threads."""
        m = self._manifest
        wanted: dict[tuple[int, int, int], ShardIndex] = {}
        for (shard, lo, hi, _), known in zip(pieces, found, strict=True):
            for chunk in range(lo // m.chunk_rows, -(-hi // m.chunk_rows)):
                wanted.update(((shard, chunk, state), known.chunks) for state in states)
        stored = {key: memoryview(bytearray(int(index.lengths[key[1], key[2]]))) for key, index in wanted.items()}
        self._root.read_ranges(
            [
                Range(layout.zarr_states_shard(shard), int(index.offsets[chunk, state]), stored[shard, chunk, state])
                for (shard, chunk, state), index in wanted.items()
            ]
        )

        def decode(key: tuple[int, int, int]) -> npt.NDArray[Any]:
            values = np.empty((m.chunk_rows, m.channels), out.dtype)
            with _errors_name(self._root, layout.zarr_states_shard(key[0])):
                zarr_shard.decode_chunk(stored[key], values, compression=m.compression, checksum=m.checksum)
            return values

        if len(stored) > DECODE_THREADS:
            with ThreadPoolExecutor(DECODE_THREADS) as pool:
                decoded = dict(zip(stored, pool.map(decode, stored), strict=True))
        else:
            decoded = {key: decode(key) for key in stored}
        for shard, lo, hi, start in pieces:
            for chunk in range(lo // m.chunk_rows, -(-hi // m.chunk_rows)):
                a, b = max(lo, chunk * m.chunk_rows), min(hi, (chunk + 1) * m.chunk_rows)
                for place, state in enumerate(states):
                    rows = decoded[shard, chunk, state][a - chunk * m.chunk_rows : b - chunk * m.chunk_rows]
                    out[place, start + a - lo : start + b - lo] = rows


class _Shard(NamedTuple):
    """What is known of a shard object: its path, its index, and where states begin if each lies in one piece, uncompressed."""

    rel: str
    chunks: ShardIndex
    starts: list[int] | None


_Piece = tuple[int, int, int, int]  # shard, its rows lo … hi (counted within it), their place in the result


def _stored_runs(
    offsets: Sequence[int], first_chunk: int, lo: int, hi: int, chunk_rows: int, row_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """(byte offset, first row, stop row) of runs of rows ``lo … hi`` that lie one after the other in the object.

    ``offsets``: of the inner chunks that hold the rows, from chunk ``first_chunk`` on.
    """
    chunk = 0
    while chunk < len(offsets):
        last = chunk
        while last + 1 < len(offsets) and offsets[last + 1] == offsets[last] + chunk_rows * row_bytes:
            last += 1
        first_row = (first_chunk + chunk) * chunk_rows
        a, b = max(lo, first_row), min(hi, (first_chunk + last + 1) * chunk_rows)
        yield offsets[chunk] + (a - first_row) * row_bytes, a, b
        chunk = last + 1


class DamagedErrorAt(DamagedError):
    """Damage in the object ``rel``."""

    def __init__(self, rel: str, problem: str) -> None:
        super().__init__(problem)
        self.rel = rel


@contextmanager
def _errors_name(root: Root, rel: str = "") -> Iterator[None]:
    """Turn a missing object into ShardMissingError and damage into ShardCorruptError; all other errors pass as they are."""
    try:
        yield
    except FileNotFoundError as error:
        where = root.url(rel) if rel else error.filename or error
        raise ShardMissingError(f"{where} is missing: run the job again, or restore the object") from error
    except (ShortReadError, DamagedError) as error:
        where = root.url(rel or error.rel)  # type: ignore[union-attr]
        raise ShardCorruptError(
            f"{where} is damaged ({error}): remove its marker and run the job again, or restore it"
        ) from error


def _create_states(group: "zarr.Group", manifest: Manifest, rows: int) -> "zarr.Array[Any]":
    n_states = len(manifest.states)
    return group.create_array(
        "states",
        shape=(rows, n_states, manifest.channels),
        shards=(manifest.shard_rows, n_states, manifest.channels),
        chunks=(manifest.chunk_rows, 1, manifest.channels),
        dtype=manifest.dtype,
        compressors=_compressors(manifest.compression, manifest.checksum, np.dtype(manifest.dtype).itemsize),
        filters=None,
        fill_value=0,
        dimension_names=("row", "state", "channel"),
        config=_CONFIG,
    )


def _create_token(group: "zarr.Group", shard_rows: int, rows: int) -> "zarr.Array[Any]":
    from zarr.codecs import ZstdCodec

    return group.create_array(
        "token", shape=(rows,), chunks=(shard_rows,), dtype="str", compressors=ZstdCodec(level=1), filters=None,
        fill_value="", dimension_names=("row",), config=_CONFIG,
    )  # fmt: skip


def _create_sentence_start(group: "zarr.Group", manifest: Manifest, entries: int) -> "zarr.Array[Any]":
    from zarr.codecs import ZstdCodec

    return group.create_array(
        "sentence_start", shape=(entries,), chunks=(manifest.sentence_chunk,), dtype="int64",
        compressors=ZstdCodec(level=1), filters=None, fill_value=0, dimension_names=("sentence_edge",), config=_CONFIG,
    )  # fmt: skip


@cache
def _compressors(name: str, checksum: str, itemsize: int) -> "tuple[BytesBytesCodec, ...]":
    """What follows ``bytes`` in the inner chunks' codecs."""
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    codecs: list[BytesBytesCodec] = []
    if name == "zstd":
        codecs.append(ZstdCodec(level=1))
    elif name == "blosc":
        codecs.append(BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=itemsize, blocksize=1 << 20))
    if checksum == "crc32c":
        codecs.append(Crc32cCodec())
    return tuple(codecs)


def _object(objects: Objects, key: str) -> bytes:
    """The bytes that zarr wrote under ``key``."""
    if key not in objects:
        raise StoreError(f"this version of zarr did not write {key}: it is not supported")
    return objects[key].to_bytes()
