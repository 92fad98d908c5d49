"""The Zarr form of a store: a Zarr v3 group that any Zarr library and ``xarray.open_zarr`` read; and ``sentence_start``.

May import zarr (when something is created), numcodecs, NumPy, layout, manifest, storage, recent, run_reader, runs, scan,
zarr_shard, errors.

Every object is encoded in memory and then put whole: one put an object, whose bytes (and hash) are known before they travel,
and which depend on nothing but the rows and the versions of the libraries. Metadata and the small arrays are encoded by zarr
itself, shards by `zarr_shard`. Reading fetches the exact bytes of the rows that are asked for, all at once.

The array ``sentence_start``, which finds the rows of a sentence, is in every store, also in one that has no Zarr form.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store import layout, zarr_shard
from elmo_store.errors import ShardCorruptError, ShardMissingError, StoreError
from elmo_store.manifest import Manifest
from elmo_store.ranges import Range, ShortReadError
from elmo_store.recent import Recent
from elmo_store.run_reader import RunReader
from elmo_store.runs import Pieces, Runs, cut
from elmo_store.scan import Empty
from elmo_store.storage import Root
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


def index_fault(root: Root, manifest: Manifest, shard: int) -> str | None:
    """What is wrong with the index of a shard, which Zarr libraries go by; None if all is well. ShardMissingError."""
    m, rel = manifest, layout.zarr_states_shard(shard)
    first, stop = m.shard_range(shard)
    n_chunks, n_states, used = m.shard_rows // m.chunk_rows, len(m.states), -(-(stop - first) // m.chunk_rows)
    with _errors_name(root, rel):
        tail = root.get_tail(rel, zarr_shard.index_bytes(n_chunks, n_states))
    chunk_bytes = m.chunk_rows * m.channels * np.dtype(m.dtype).itemsize
    try:
        index = ShardIndex.parse(tail, n_chunks, n_states, used, most_bytes=_most_bytes(chunk_bytes))
    except DamagedError as error:
        return f"{root.url(rel)}: {error}"
    if m.compression != "none" or m.checksum != "none":
        return None
    places = np.arange(n_states * used).reshape(n_states, used).T * chunk_bytes
    if (index.lengths[:used] != chunk_bytes).any() or (index.offsets[:used] != places).any():
        return f"{root.url(rel)}: its index does not name the inner chunks one state after the other, from byte 0 on"
    return None


class ZarrRows:
    """Reads rows of the Zarr form. Safe for threads; not for use across a fork (`Store` makes a new one there)."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._runs = RunReader(root)
        self._indices: Recent[int, ShardIndex] = Recent(INDICES_AT_HAND)
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._row_bytes = manifest.channels * self._dtype.itemsize
        self._stored_as_is = manifest.compression == "none" and manifest.checksum == "none"
        self._tokens: Recent[int, list[str]] = Recent(TOKEN_CHUNKS_AT_HAND)
        self._last_shard = manifest.counts.shards - 1 if manifest.counts else -1
        self._sizes: dict[bool, tuple[int, int]] = {}  # `_shard_bytes` of the last shard, and of every other

    def read(self, states: Sequence[int], spans: Int64, empty: Empty = np.empty) -> npt.NDArray[Any]:
        """Rows of the states with these indices: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(states), channels], a view of an array that holds one state after the other.
        """
        m = self._manifest
        pieces = cut(spans, m.shard_rows)
        out = empty((len(states), int(pieces.rows.sum()), m.channels), self._dtype)
        with _errors_name(self._root):
            if self._stored_as_is:
                self._read_exactly(states, pieces, out)
            else:
                self._read_chunks(states, pieces, out)
        return out.transpose(1, 0, 2)

    def read_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> npt.NDArray[Any]:
        """`read` of one span: the quickest way to a sentence."""
        m = self._manifest
        shard, lo = divmod(first, m.shard_rows)
        if not self._stored_as_is or not first < stop <= (shard + 1) * m.shard_rows:
            return self.read(states, np.array([[first, stop]], np.int64), empty)
        out = empty((len(states), stop - first, m.channels), self._dtype)
        state_bytes, size = self._shard_bytes(shard)
        try:
            self._runs.read_run(layout.zarr_states_shard(shard), size, lo * self._row_bytes, state_bytes, states, out)
        except OSError:
            with _errors_name(self._root):
                raise
        return out.transpose(1, 0, 2)

    def _shard_bytes(self, shard: int) -> tuple[int, int]:
        """Bytes of a state in a shard whose chunks are stored as they are, and of the whole object."""
        known = self._sizes.get(shard == self._last_shard)
        if known is None:
            known = self._sizes[shard == self._last_shard] = self._bytes_of(shard)
        return known

    def _bytes_of(self, shard: int) -> tuple[int, int]:
        m = self._manifest
        first, stop = m.shard_range(shard)
        rows = stop - first
        state_bytes = -(-rows // m.chunk_rows) * m.chunk_rows * self._row_bytes
        n_states = len(m.states)
        return state_bytes, n_states * state_bytes + zarr_shard.index_bytes(m.shard_rows // m.chunk_rows, n_states)

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        pieces = cut(np.array([[first, stop]], np.int64), self._manifest.shard_rows)
        found = self._tokens.get_all(pieces.of.tolist(), self._read_tokens)
        edges = zip(found, pieces.first.tolist(), pieces.stop.tolist(), strict=True)
        return [token for tokens, lo, hi in edges for token in tokens[lo:hi]]

    def _read_indices(self, shards: list[int]) -> list[ShardIndex]:
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
                indices.append(ShardIndex.parse(tails[rel], n_chunks, n_states, used, most_bytes=_most_bytes(chunk_bytes)))
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

    def _read_exactly(self, states: Sequence[int], pieces: Pieces, out: npt.NDArray[Any]) -> None:
        """Where bytes are stored as they are: the rows' own bytes, straight into ``out`` [states, rows, channels].

        The format says where they lie, so no index is read.
        """
        shards, of = np.unique(pieces.of, return_inverse=True)
        known = np.array([self._shard_bytes(shard) for shard in shards.tolist()], np.int64).reshape(-1, 2)
        starts = known[of, :1] * np.array(states, np.int64) + (pieces.first * self._row_bytes)[:, None]
        rels = [layout.zarr_states_shard(shard) for shard in shards.tolist()]
        n_bytes, places = pieces.rows * self._row_bytes, pieces.place * self._row_bytes
        self._runs.read_runs(Runs(rels, np.ascontiguousarray(known[:, 1]), of, starts, n_bytes, places), out)

    def _read_chunks(self, states: Sequence[int], pieces: Pieces, out: npt.NDArray[Any]) -> None:
        """Where inner chunks are compressed or have checksums: whole ones, decoded by several threads."""
        m = self._manifest
        shards = pieces.of.tolist()
        found = self._indices.get_all(shards, self._read_indices)
        edges = list(zip(shards, pieces.first.tolist(), pieces.stop.tolist(), pieces.place.tolist(), strict=True))
        wanted: dict[tuple[int, int, int], ShardIndex] = {}
        for (shard, lo, hi, _), index in zip(edges, found, strict=True):
            for chunk in range(lo // m.chunk_rows, -(-hi // m.chunk_rows)):
                wanted.update(((shard, chunk, state), index) for state in states)
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
        for shard, lo, hi, start in edges:
            for chunk in range(lo // m.chunk_rows, -(-hi // m.chunk_rows)):
                a, b = max(lo, chunk * m.chunk_rows), min(hi, (chunk + 1) * m.chunk_rows)
                for place, state in enumerate(states):
                    rows = decoded[shard, chunk, state][a - chunk * m.chunk_rows : b - chunk * m.chunk_rows]
                    out[place, start + a - lo : start + b - lo] = rows


def _most_bytes(chunk_bytes: int) -> int:
    """Of an encoded inner chunk: no codec of ours makes a chunk twice as long."""
    return 2 * chunk_bytes + 4096


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
