"""Reading rows of the Zarr form: the exact bytes of the rows that are asked for, all at once.

`ShardedRows` reads one sharded array, ``states`` or ``scale``; `ZarrRows` is what a store asks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]

from elmo_store.format import layout
from elmo_store.format.int8 import Array, Empty, Int8Rows
from elmo_store.format.manifest import Manifest
from elmo_store.forms import zarr_shard
from elmo_store.forms.runs import Pieces, RunReader, Runs, cut
from elmo_store.forms.zarr_shard import DamagedError, ShardIndex
from elmo_store.storage import parquet_files
from elmo_store.storage.ranges import Range, ShortReadError
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

errors_name = partial(parquet_files.errors_name, damage=(ShortReadError, DamagedError))
Int64 = npt.NDArray[np.int64]
INDICES_AT_HAND = 1024  # of shards: 10 KB each for 16,384 rows of 5 states
TOKEN_CHUNKS_AT_HAND = 8
DECODE_THREADS = 4
MOST_TOKEN_BYTES, MOST_TOKEN_RATIO = 1 << 28, 250  # that a chunk of tokens decompresses to: the larger of the two


class ShardedRows:
    """Reads rows of one sharded array of the Zarr form. Safe for threads; not for use across a fork.

    An inner chunk holds ``chunk_rows`` rows of one of ``n_parts`` parts of the array's width: one state of ``states``, or all
    scales of ``scale``, which has one part.

    Args:
        root, manifest: of the store.
        object_of: path in the store of a shard's object.
        n_parts: inner chunks side by side.
        width: numbers of a part of a row.
        dtype: of the numbers.
    """

    def __init__(
        self, root: Root, manifest: Manifest, object_of: Callable[[int], str], n_parts: int, width: int, dtype: npt.DTypeLike
    ) -> None:
        self._root, self._manifest, self._object_of = root, manifest, object_of
        self._n_parts, self._width, self._dtype = n_parts, width, np.dtype(dtype).newbyteorder("<")
        self._runs = RunReader(root)
        self._indices: Recent[int, ShardIndex] = Recent(INDICES_AT_HAND)
        self._row_bytes = width * self._dtype.itemsize
        self._chunk_bytes = manifest.chunk_rows * self._row_bytes
        self._stored_as_is = manifest.compression == "none" and manifest.checksum == "none"
        self._last_shard = manifest.counts.shards - 1 if manifest.counts else -1
        self._sizes: dict[bool, tuple[int, int]] = {}  # `_shard_bytes` of the last shard, and of every other

    @classmethod
    def of_states(cls, root: Root, manifest: Manifest) -> "ShardedRows":
        """The array ``states``."""
        return cls(root, manifest, layout.zarr_states_shard, len(manifest.states), manifest.channels, manifest.dtype)

    @classmethod
    def of_scale(cls, root: Root, manifest: Manifest) -> "ShardedRows":
        """The array ``scale`` of an int8 store."""
        return cls(root, manifest, layout.zarr_scale_shard, 1, len(manifest.states), np.float32)

    def read(self, parts: Sequence[int], spans: Int64, empty: Empty = np.empty) -> Array:
        """Rows of these parts: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(parts), width], a view of an array that holds one part after the other.
        """
        pieces = cut(spans, self._manifest.shard_rows)
        out = empty((len(parts), int(pieces.rows.sum()), self._width), self._dtype)
        with errors_name(self._root):
            if self._stored_as_is:
                self._read_exactly(parts, pieces, out)
            else:
                self._read_chunks(parts, pieces, out)
        return out.transpose(1, 0, 2)

    def read_span(self, parts: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Array:
        """`read` of one span: the quickest way to a sentence."""
        m = self._manifest
        shard, lo = divmod(first, m.shard_rows)
        if not self._stored_as_is or not first < stop <= (shard + 1) * m.shard_rows:
            return self.read(parts, np.array([[first, stop]], np.int64), empty)
        out = empty((len(parts), stop - first, self._width), self._dtype)
        part_bytes, size = self._shard_bytes(shard)
        try:
            self._runs.read_run(self._object_of(shard), size, lo * self._row_bytes, part_bytes, parts, out)
        except OSError:
            with errors_name(self._root):
                raise
        return out.transpose(1, 0, 2)

    def index_fault(self, shard: int) -> str | None:
        """What is wrong with the index of a shard, which Zarr libraries go by; None if all is well. ShardMissingError."""
        m, rel, used = self._manifest, self._object_of(shard), self._used(shard)
        with errors_name(self._root, rel):
            tail = self._root.get_tail(rel, zarr_shard.index_bytes(self._n_chunks, self._n_parts))
        try:
            index = self._parse(tail, shard)
        except DamagedError as error:
            return f"{self._root.url(rel)}: {error}"
        if m.compression != "none" or m.checksum != "none":
            return None
        places = np.arange(self._n_parts * used).reshape(self._n_parts, used).T * self._chunk_bytes
        if (index.lengths[:used] != self._chunk_bytes).any() or (index.offsets[:used] != places).any():
            return f"{self._root.url(rel)}: its index does not name the inner chunks one state after the other, from byte 0 on"
        return None

    @property
    def _n_chunks(self) -> int:
        """Inner chunks of a shard below each other."""
        return self._manifest.shard_rows // self._manifest.chunk_rows

    def _used(self, shard: int) -> int:
        """Of them, those that hold rows."""
        first, stop = self._manifest.shard_range(shard)
        return -(-(stop - first) // self._manifest.chunk_rows)

    def _parse(self, tail: bytes, shard: int) -> ShardIndex:
        most = 2 * self._chunk_bytes + 4096  # no codec of ours makes a chunk twice as long
        return ShardIndex.parse(tail, self._n_chunks, self._n_parts, self._used(shard), most_bytes=most)

    def _shard_bytes(self, shard: int) -> tuple[int, int]:
        """Bytes of a part in a shard whose chunks are stored as they are, and of the whole object."""
        known = self._sizes.get(shard == self._last_shard)
        if known is None:
            part_bytes = self._used(shard) * self._chunk_bytes
            size = self._n_parts * part_bytes + zarr_shard.index_bytes(self._n_chunks, self._n_parts)
            known = self._sizes[shard == self._last_shard] = part_bytes, size
        return known

    def _read_indices(self, shards: list[int]) -> list[ShardIndex]:
        rels = [self._object_of(shard) for shard in shards]
        with errors_name(self._root):
            tails = self._root.get_tails(dict.fromkeys(rels, zarr_shard.index_bytes(self._n_chunks, self._n_parts)))
        indices = []
        for shard, rel in zip(shards, rels, strict=True):
            with errors_name(self._root, rel):
                indices.append(self._parse(tails[rel], shard))
        return indices

    def _read_exactly(self, parts: Sequence[int], pieces: Pieces, out: Array) -> None:
        """Where bytes are stored as they are: the rows' own bytes, straight into ``out`` [parts, rows, width].

        The format says where they lie, so no index is read.
        """
        shards, of = np.unique(pieces.of, return_inverse=True)
        known = np.array([self._shard_bytes(shard) for shard in shards.tolist()], np.int64).reshape(-1, 2)
        starts = known[of, :1] * np.array(parts, np.int64) + (pieces.first * self._row_bytes)[:, None]
        rels = [self._object_of(shard) for shard in shards.tolist()]
        n_bytes, places = pieces.rows * self._row_bytes, pieces.place * self._row_bytes
        self._runs.read_runs(Runs(rels, np.ascontiguousarray(known[:, 1]), of, starts, n_bytes, places), out)

    def _read_chunks(self, parts: Sequence[int], pieces: Pieces, out: Array) -> None:
        """Where inner chunks are compressed or have checksums: whole ones, decoded by several threads."""
        m = self._manifest
        shards = pieces.of.tolist()
        found = self._indices.get_all(shards, self._read_indices)
        edges = list(zip(shards, pieces.first.tolist(), pieces.stop.tolist(), pieces.place.tolist(), strict=True))
        wanted: dict[tuple[int, int, int], ShardIndex] = {}
        for (shard, lo, hi, _), index in zip(edges, found, strict=True):
            for chunk in range(lo // m.chunk_rows, -(-hi // m.chunk_rows)):
                wanted.update(((shard, chunk, part), index) for part in parts)
        stored = {key: memoryview(bytearray(int(index.lengths[key[1], key[2]]))) for key, index in wanted.items()}
        self._root.read_ranges(
            [
                Range(self._object_of(shard), int(index.offsets[chunk, part]), stored[shard, chunk, part])
                for (shard, chunk, part), index in wanted.items()
            ]
        )

        def decode(key: tuple[int, int, int]) -> Array:
            values = np.empty((m.chunk_rows, self._width), out.dtype)
            with errors_name(self._root, self._object_of(key[0])):
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
                for place, part in enumerate(parts):
                    rows = decoded[shard, chunk, part][a - chunk * m.chunk_rows : b - chunk * m.chunk_rows]
                    out[place, start + a - lo : start + b - lo] = rows


class ZarrRows:
    """Reads rows of the Zarr form. Safe for threads; not for use across a fork (`Store` makes a new one there)."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._states = ShardedRows.of_states(root, manifest)
        self._scale = ShardedRows.of_scale(root, manifest) if manifest.is_int8 else None
        self._beside: ThreadPoolExecutor | None = None
        self._tokens: Recent[int, list[str]] = Recent(TOKEN_CHUNKS_AT_HAND)

    def read(self, states: Sequence[int], spans: Int64, empty: Empty = np.empty) -> Array:
        """Rows of the states with these indices, as numbers: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(states), channels], a view of an array that holds one state after the other.
        """
        if self._scale is None:
            return self._states.read(states, spans, empty)
        return self.read_raw(states, spans, empty).floats(empty)

    def read_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Array:
        """`read` of one span: the quickest way to a sentence."""
        if self._scale is None:
            return self._states.read_span(states, first, stop, empty)
        return self.read_raw_span(states, first, stop, empty).floats(empty)

    def read_raw(self, states: Sequence[int], spans: Int64, empty: Empty = np.empty) -> Int8Rows:
        """`read` of an int8 store, as it stores them."""
        scale = self._scale_array
        return self._pair(
            states, lambda: scale.read([0], spans, empty), lambda: self._states.read(states, spans, empty)
        )  # fmt: skip

    def read_raw_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Int8Rows:
        """`read_raw` of one span."""
        scale = self._scale_array
        return self._pair(
            states,
            lambda: scale.read_span([0], first, stop, empty),
            lambda: self._states.read_span(states, first, stop, empty),
        )

    @property
    def _scale_array(self) -> ShardedRows:
        if self._scale is None:
            raise ValueError(f"{self._root} holds {self._manifest.dtype}, not int8")
        return self._scale

    def _pair(self, states: Sequence[int], read_scale: Callable[[], Array], read_values: Callable[[], Array]) -> Int8Rows:
        """Both arrays; of a store that is far away at the same time, so that scales cost no request in a row."""
        if self._root.is_local:
            scale, values = read_scale(), read_values()  # [rows, 1, all states], [rows, states, channels]
        else:
            if self._beside is None:
                self._beside = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="scale")
            later = self._beside.submit(read_scale)
            values, scale = read_values(), later.result()
        return Int8Rows(values, scale[:, 0, list(states)])

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        pieces = cut(np.array([[first, stop]], np.int64), self._manifest.shard_rows)
        found = self._tokens.get_all(pieces.of.tolist(), self._read_tokens)
        edges = zip(found, pieces.first.tolist(), pieces.stop.tolist(), strict=True)
        return [token for tokens, lo, hi in edges for token in tokens[lo:hi]]

    def index_fault(self, shard: int) -> str | None:
        """What is wrong with the index of a shard's objects; None if all is well. ShardMissingError."""
        fault = self._states.index_fault(shard)
        return fault if fault is not None or self._scale is None else self._scale.index_fault(shard)

    def _read_tokens(self, shards: list[int]) -> list[list[str]]:
        rels = [layout.zarr_token_chunk(shard) for shard in shards]
        with errors_name(self._root):
            chunks = self._root.get_many(rels)
        decoded = []
        for rel, data in zip(rels, chunks, strict=True):
            with errors_name(self._root, rel):
                decoded.append(decode_tokens(data, self._manifest.shard_rows))
        return decoded


def decode_tokens(data: bytes, shard_rows: int) -> list[str]:
    """The tokens of a chunk of the array ``token``. DamagedError if it is none."""
    values = zarr_shard.unzstd(data, most_token_bytes(len(data)))
    count = int.from_bytes(values[:4], "little")  # memory is taken for so many
    if count != shard_rows:
        raise DamagedError(f"a chunk holds {count} tokens, not {shard_rows}")
    try:
        return [str(token) for token in VLenUTF8().decode(values)]
    except (RuntimeError, ValueError) as error:
        raise DamagedError(f"a chunk of tokens can't be decoded ({error})") from error


def most_token_bytes(stored_bytes: int) -> int:
    """Bytes that a chunk of tokens of ``stored_bytes`` may decompress to."""
    return max(MOST_TOKEN_BYTES, MOST_TOKEN_RATIO * stored_bytes)
