"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

Written so that reading one state, or a few rows, fetches little else: row groups of 256 rows, checksums on pages.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.forms.runs import Blocks, Places, PlainRows, RowReader, Spans, cut
from elmo_store.storage.data import Data
from elmo_store.storage.parquet_files import GroupsOf, read_footers, read_tables
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
FOOTERS_AT_HAND = 256
_PLAIN = frozenset(("PLAIN", "RLE"))  # RLE: of the lists' levels


class _Footer(NamedTuple):
    """A file's footer, and the first row of each row group (and at last, the number of rows)."""

    metadata: pq.FileMetaData
    firsts: list[int]


def schema(manifest: Manifest) -> pa.Schema:
    """Columns of a file: row, token, sentence, index_in_sentence, every state in the manifest's order, in int8 also its scale."""
    number = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}[manifest.dtype]
    vector = pa.list_(pa.field("element", number, nullable=False), manifest.channels)
    columns = dict(zip(layout.ROW_COLUMNS, (pa.int64(), pa.string(), pa.int64(), pa.int32()), strict=True))
    columns |= dict.fromkeys(manifest.states, vector) | dict.fromkeys(_scale_columns(manifest), pa.float32())
    return layout.schema(columns)


def _scale_columns(manifest: Manifest) -> list[str]:
    return [layout.scale_column(name) for name in manifest.states] if manifest.is_int8 else []


def encode_shard(
    manifest: Manifest, shard: int, states: Array | Int8Rows, *row_columns: Sequence[str] | Array
) -> tuple[str, Data]:
    """The file of shard ``shard``: its path in the store and its bytes.

    ``states`` [n, n_states, channels] in the manifest's dtype; ``row_columns``: n tokens, sentences, and places in them.
    """
    first, _ = manifest.shard_range(shard)
    wanted = schema(manifest)
    values = states.values if isinstance(states, Int8Rows) else states
    columns: dict[str, Any] = dict(zip(layout.ROW_COLUMNS, (np.arange(first, first + len(states)), *row_columns), strict=True))
    for i, name in enumerate(manifest.states):
        numbers = pa.array(np.ascontiguousarray(values[:, i]).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(numbers, type=wanted.field(name).type)
        if isinstance(states, Int8Rows):
            columns[layout.scale_column(name)] = np.ascontiguousarray(states.scale[:, i])
    vector_codec = "none" if manifest.compression == "none" else "zstd"
    leaves = [f"{name}.list.element" for name in manifest.states]
    codecs = dict.fromkeys(layout.ROW_COLUMNS, "zstd") | dict.fromkeys([*leaves, *_scale_columns(manifest)], vector_codec)
    # Parquet's smallest number has 4 bytes; numbers of a dictionary of at most 255 entries have one.
    dictionaries = ["token", *(leaves if manifest.is_int8 else ())]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=wanted),
        sink,
        row_group_size=layout.ROW_GROUP_ROWS,
        data_page_size=1 << 30,  # one page a state of a row group, so that its rows are one range of bytes
        compression=codecs,
        use_dictionary=dictionaries,
        write_statistics=["row", "sentence"],
        write_page_checksum=True,
    )
    return layout.states_part(shard), (memoryview(sink.getvalue()),)


class ParquetRows(RowReader):
    """Reads rows of the Parquet form.

    Values that are stored as they are, one page a state of a row group, are read by their bytes, unless the store asks for
    checksums; others, int8 among them, by pyarrow, which compares the pages' CRC-32.
    """

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(root, manifest)
        self._plain = PlainRows(root, manifest.shard_rows, manifest.channels, manifest.dtype, self._find_blocks)
        self._footers: Recent[int, _Footer] = Recent(FOOTERS_AT_HAND)

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `RowReader.read_into`."""
        return not self._manifest.is_int8 and self._plain.read_into(states, spans, places, out)

    def _numbers(self, states: Sequence[int], spans: Spans, empty: Empty) -> Array:
        rows = self._plain.read(states, spans, empty)
        return self._vectors(states, spans, empty)[0] if rows is None else rows

    def _int8(self, states: Sequence[int], spans: Spans, empty: Empty) -> Int8Rows:
        return Int8Rows(*self._vectors(states, spans, empty))

    def _vectors(self, states: Sequence[int], spans: Spans, empty: Empty) -> tuple[Array, Array]:
        """Vectors [rows, states, channels] by pyarrow, and in an int8 store their scales [rows, states]."""
        m = self._manifest
        names = [m.states[i] for i in states]
        scales = [layout.scale_column(name) for name in names] if m.is_int8 else []
        bounds = np.asarray(spans, np.int64).reshape(-1, 2)
        n_rows = int((bounds[:, 1] - bounds[:, 0]).sum())
        values = empty((len(names), n_rows, m.channels), m.dtype)
        scale = np.empty((n_rows, len(scales)), np.float32)
        for table, rows in self._tables([*names, *scales], bounds):
            for i, name in enumerate(names):
                vectors = _numbers_of(table.column(name)).reshape(-1, m.channels)
                for first, stop, place in rows:
                    values[i, place : place + stop - first] = vectors[first:stop]
            for i, name in enumerate(scales):
                numbers = table.column(name).to_numpy()
                for first, stop, place in rows:
                    scale[place : place + stop - first, i] = numbers[first:stop]
        return values.transpose(1, 0, 2), scale

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        tables = self._tables(["token"], np.array([[first, stop]], np.int64))
        return [token for table, ((low, high, _),) in tables for token in table["token"].slice(low, high - low).to_pylist()]

    def numbers(self, names: Sequence[str], first: int, stop: int) -> dict[str, Array]:
        """The columns of whole numbers of these names, of rows ``first … stop``."""
        tables = [(table, low, high) for table, ((low, high, _),) in self._tables(names, np.array([[first, stop]], np.int64))]
        return {name: np.concatenate([table[name].to_numpy()[low:high] for table, low, high in tables]) for name in names}

    def _find_blocks(self, shards: list[int]) -> list[Blocks | None]:
        footers = self._footers.get_all(shards, self._read_footers)
        return [self._blocks_of(shard, footer.metadata) for shard, footer in zip(shards, footers, strict=True)]

    def _blocks_of(self, shard: int, footer: pq.FileMetaData) -> Blocks | None:
        """Where a file's values lie. None if compressed, not plain, to be checked, or row groups are of several sizes."""
        m = self._manifest
        if m.checksum != "none":  # whole pages are read, and their CRC-32 compared
            return None
        row_bytes = m.channels * np.dtype(m.dtype).itemsize
        leaves = {footer.schema.column(i).path: i for i in range(len(footer.schema))}
        columns = [leaves[f"{name}.list.element"] for name in m.states]
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        n_rows = [group.num_rows for group in groups]
        starts = [[0] * len(columns) for _ in groups]
        for i, group in enumerate(groups):
            for k, number in enumerate(columns):
                column = group.column(number)
                if column.compression != "UNCOMPRESSED" or not _PLAIN.issuperset(column.encodings):
                    return None
                # The page's header and the lists' levels come first: the values are its last bytes.
                starts[i][k] = column.data_page_offset + column.total_compressed_size - n_rows[i] * row_bytes
                if starts[i][k] < 0:
                    return None
        uniform = all(n == n_rows[0] for n in n_rows[:-1]) and 0 < n_rows[-1] <= n_rows[0]
        return Blocks(layout.states_part(shard), -1, n_rows[0], starts) if uniform else None

    def _tables(self, names: Sequence[str], spans: Int64) -> list[tuple[pa.Table, list[tuple[int, int, int]]]]:
        """Of each shard that holds rows: a table of these columns, and (first, stop) there of each piece, with its place."""
        cuts = cut(spans, self._manifest.shard_rows)
        pieces: dict[int, list[tuple[int, int, int]]] = {}
        for shard, *piece in zip(*(column.tolist() for column in (cuts.of, cuts.first, cuts.stop, cuts.place)), strict=True):
            pieces.setdefault(shard, []).append(tuple(piece))
        requests, rows = [], []
        for (shard, own), footer in zip(pieces.items(), self._footers.get_all(pieces, self._read_footers), strict=True):
            firsts = footer.firsts
            held = [bisect_right(firsts, first) - 1 for first, _, _ in own]  # the row group of each piece's first row
            ends = [bisect_left(firsts, stop) for _, stop, _ in own]
            groups = sorted({group for edges in zip(held, ends, strict=True) for group in range(*edges)})
            lengths = [firsts[group + 1] - firsts[group] for group in groups]
            moved = {group: before - firsts[group] for group, before in zip(groups, accumulate(lengths, initial=0), strict=False)}
            requests.append(GroupsOf(layout.states_part(shard), footer.metadata, tuple(groups), tuple(names)))
            rows.append([(a + moved[g], b + moved[g], place) for (a, b, place), g in zip(own, held, strict=True)])
        return list(zip(read_tables(self._root, requests), rows, strict=True))

    def _read_footers(self, shards: list[int]) -> list[_Footer]:
        footers = []
        for shard, metadata in zip(
            shards, read_footers(self._root, [layout.states_part(shard) for shard in shards]), strict=True
        ):
            first, stop = self._manifest.shard_range(shard)
            self._check(metadata, self._root.url(layout.states_part(shard)), stop - first)
            n_rows = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
            footers.append(_Footer(metadata, list(accumulate(n_rows, initial=0))))
        return footers

    def _check(self, footer: pq.FileMetaData, where: str, rows: int) -> None:
        """The columns that the format names must be there; others may be."""
        lengths = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        if footer.num_rows != rows or sum(lengths) != rows or min(lengths, default=0) < 0:
            raise ShardCorruptError(f"{where} has {footer.num_rows} rows, {sum(lengths)} in row groups; the manifest says {rows}")
        actual = footer.schema.to_arrow_schema()
        missing = [
            field.name
            for field in schema(self._manifest)
            if actual.get_field_index(field.name) < 0 or not actual.field(field.name).equals(field)
        ]
        if missing:
            raise ShardCorruptError(f"{where} lacks the columns {missing} as the manifest has them: not of this store")


def _numbers_of(lists: pa.ChunkedArray) -> Array:
    """The numbers of fixed-size lists without nulls, one list after the other."""
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in lists.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
