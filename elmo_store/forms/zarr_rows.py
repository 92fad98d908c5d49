"""Reading rows of the Zarr form: the exact bytes of the rows that are asked for, all at once.

`ShardedRows` reads one sharded array, ``states`` or ``scale``; `ZarrRows` is what a store asks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.forms import zarr_shard
from elmo_store.forms.runs import Blocks, Int64, Places, PlainRows, RowReader, Spans, cut
from elmo_store.forms.zarr_shard import DamagedError, ShardIndex
from elmo_store.storage import parquet_files
from elmo_store.storage.data import Range, ShortReadError
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

errors_name = partial(parquet_files.errors_name, damage=(ShortReadError, DamagedError))
T = TypeVar("T")
SHARDS_AT_HAND = 1024  # indices of 10 KB each for 16,384 rows of 5 states
TOKEN_CHUNKS_AT_HAND = 8
DECODE_THREADS = 4
MOST_TOKEN_BYTES, MOST_TOKEN_RATIO = 1 << 28, 250  # that a chunk of tokens decompresses to: the larger of the two


class ShardedRows:
    """Reads rows of one sharded array of the Zarr form. Safe for threads; not for use across a fork.

    An inner chunk holds ``chunk_rows`` rows of one of ``n_parts`` parts of the array's width: one state of ``states``, all
    scales of ``scale``.

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
        self._chunk_bytes = manifest.chunk_rows * width * self._dtype.itemsize
        self._n_chunks = manifest.shard_rows // manifest.chunk_rows  # inner chunks of a shard below each other
        self._index_bytes = zarr_shard.index_bytes(self._n_chunks, n_parts)
        self._stored_as_is = manifest.compression == "none" and manifest.checksum == "none"
        self._plain = PlainRows(root, manifest.shard_rows, width, dtype, self._find_blocks)
        self._indices: Recent[int, ShardIndex] = Recent(SHARDS_AT_HAND)

    def read(self, parts: Sequence[int], spans: Spans, empty: Empty = np.empty) -> Array:
        """Rows of these parts, those of one span after the other's.

        Returns [Σ (stop - first), len(parts), width], a view of an array that holds one part after the other.
        """
        rows = self._plain.read(parts, spans, empty) if self._stored_as_is else None
        return self._read_chunks(parts, spans, empty) if rows is None else rows

    def read_into(self, parts: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """`PlainRows.read_into`; False where inner chunks are not stored as they are."""
        return self._stored_as_is and self._plain.read_into(parts, spans, places, out)

    def index_fault(self, shard: int) -> str | None:
        """What is wrong with the index of a shard, which Zarr libraries go by; None if all is well. ShardMissingError."""
        rel, used = self._object_of(shard), self._used(shard)
        with errors_name(self._root, rel):
            tail = self._root.get_tails({rel: self._index_bytes})[rel]
        try:
            index = self._parse(tail, shard)
        except DamagedError as error:
            return f"{self._root.url(rel)}: {error}"
        if not self._stored_as_is:
            return None
        offsets = np.arange(self._n_parts * used).reshape(self._n_parts, used).T * self._chunk_bytes
        if (index.lengths[:used] != self._chunk_bytes).any() or (index.offsets[:used] != offsets).any():
            return f"{self._root.url(rel)}: its index does not name the inner chunks one part after the other, from byte 0 on"
        return None

    def _used(self, shard: int) -> int:
        """Inner chunks of a shard below each other that hold rows."""
        first, stop = self._manifest.shard_range(shard)
        return -(-(stop - first) // self._manifest.chunk_rows)

    def _find_blocks(self, shards: list[int]) -> list[Blocks | None]:
        """Where rows lie that are stored as they are: the format says it, so no index is read."""
        blocks: list[Blocks | None] = []
        for shard in shards:
            part_bytes = self._used(shard) * self._chunk_bytes
            starts = [part * part_bytes for part in range(self._n_parts)]
            size = self._n_parts * part_bytes + self._index_bytes
            blocks.append(Blocks(self._object_of(shard), size, self._manifest.shard_rows, [starts]))
        return blocks

    def _parse(self, tail: bytes, shard: int) -> ShardIndex:
        most = 2 * self._chunk_bytes + 4096  # no codec of ours makes a chunk twice as long
        return ShardIndex.parse(tail, self._n_chunks, self._n_parts, self._used(shard), most_bytes=most)

    def _read_indices(self, shards: list[int]) -> list[ShardIndex]:
        rels = [self._object_of(shard) for shard in shards]
        with errors_name(self._root):
            tails = self._root.get_tails(dict.fromkeys(rels, self._index_bytes))
        indices = []
        for shard, rel in zip(shards, rels, strict=True):
            with errors_name(self._root, rel):
                indices.append(self._parse(tails[rel], shard))
        return indices

    def _read_chunks(self, parts: Sequence[int], spans: Spans, empty: Empty) -> Array:
        """Where inner chunks are compressed or have checksums: whole ones, decoded by several threads."""
        m = self._manifest
        pieces = cut(np.asarray(spans, np.int64).reshape(-1, 2), m.shard_rows)
        out = empty((len(parts), int(pieces.rows.sum()), self._width), self._dtype)
        shards = pieces.of.tolist()
        edges = list(zip(shards, pieces.first.tolist(), pieces.stop.tolist(), pieces.place.tolist(), strict=True))
        indices = dict(zip(shards, self._indices.get_all(shards, self._read_indices), strict=True))
        stored: dict[tuple[int, int, int], memoryview] = {}
        ranges = []
        for shard, low, high, _ in edges:
            index = indices[shard]
            for chunk in range(low // m.chunk_rows, -(-high // m.chunk_rows)):
                for part in parts:
                    if (shard, chunk, part) not in stored:
                        buffer = stored[shard, chunk, part] = memoryview(bytearray(int(index.lengths[chunk, part])))
                        ranges.append(Range(self._object_of(shard), int(index.offsets[chunk, part]), buffer))
        with errors_name(self._root):
            self._root.read_ranges(ranges)

        def decode(key: tuple[int, int, int]) -> Array:
            values = np.empty((m.chunk_rows, self._width), out.dtype)
            with errors_name(self._root, self._object_of(key[0])):
                zarr_shard.decode_chunk(stored[key], values, compression=m.compression, checksum=m.checksum)
            return values

        if len(stored) > DECODE_THREADS:
            with ThreadPoolExecutor(DECODE_THREADS) as pool:
                chunks = dict(zip(stored, pool.map(decode, stored), strict=True))
        else:
            chunks = {key: decode(key) for key in stored}
        for shard, low, high, start in edges:
            for chunk in range(low // m.chunk_rows, -(-high // m.chunk_rows)):
                first = chunk * m.chunk_rows
                a, b = max(low, first), min(high, first + m.chunk_rows)
                for i, part in enumerate(parts):
                    out[i, start + a - low : start + b - low] = chunks[shard, chunk, part][a - first : b - first]
        return out.transpose(1, 0, 2)


class ZarrRows(RowReader):
    """Reads rows of the Zarr form."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(root, manifest)
        n_states = len(manifest.states)
        self._states = ShardedRows(root, manifest, layout.zarr_states_shard, n_states, manifest.channels, manifest.dtype)
        self._scale = ShardedRows(root, manifest, layout.zarr_scale_shard, 1, n_states, np.float32)  # of an int8 store
        self._beside = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="scale")
        self._tokens: Recent[int, list[str]] = Recent(TOKEN_CHUNKS_AT_HAND)

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `RowReader.read_into`."""
        return not self._manifest.is_int8 and self._states.read_into(states, spans, places, out)

    def _numbers(self, states: Sequence[int], spans: Spans, empty: Empty) -> Array:
        return self._states.read(states, spans, empty)

    def _int8(self, states: Sequence[int], spans: Spans, empty: Empty) -> Int8Rows:
        """Both arrays; of a store that is far away at the same time, so that scales cost no request in a row."""
        if self._root.is_local:
            scale, values = self._scale.read([0], spans, empty), self._numbers(states, spans, empty)
        else:
            later = self._beside.submit(self._scale.read, [0], spans, empty)
            values, scale = self._numbers(states, spans, empty), later.result()
        return Int8Rows(values, scale[:, 0, list(states)])

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        pieces = cut(np.array([[first, stop]], np.int64), self._manifest.shard_rows)
        chunks = self._tokens.get_all(pieces.of.tolist(), self._read_tokens)
        edges = zip(chunks, pieces.first.tolist(), pieces.stop.tolist(), strict=True)
        return [token for tokens, low, high in edges for token in tokens[low:high]]

    def index_fault(self, shard: int) -> str | None:
        """What is wrong with the index of a shard's objects; None if all is well. ShardMissingError."""
        fault = self._states.index_fault(shard)
        return self._scale.index_fault(shard) if fault is None and self._manifest.is_int8 else fault

    def _read_tokens(self, shards: list[int]) -> list[list[str]]:
        rels = [layout.zarr_token_chunk(shard) for shard in shards]
        return decoded(self._root, rels, lambda data: decode_tokens(data, self._manifest.shard_rows))


def decoded(root: Root, rels: list[str], decode: Callable[[bytes], T]) -> list[T]:
    """What ``decode`` makes of each of these objects, all asked for at once. ShardMissingError, ShardCorruptError."""
    with errors_name(root):
        chunks = root.get_many(rels)
    values = []
    for rel, data in zip(rels, chunks, strict=True):
        with errors_name(root, rel):
            values.append(decode(data))
    return values


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
