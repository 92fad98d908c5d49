"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

Written so that reading one state, or a few rows, fetches little else: row groups of 256 rows, checksums on pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Empty, Int8Rows
from elmo_store.forms.runs import Blocks, PlainRows, RowReader, Spans, cut
from elmo_store.storage.parquet_files import GroupsOf, read_footers, read_tables
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
FOOTERS_AT_HAND = 256
_PLAIN = frozenset(("PLAIN", "RLE"))  # RLE: of the lists' levels


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
) -> tuple[str, bytes]:
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
    return layout.states_part(shard), sink.getvalue().to_pybytes()


class ParquetRows(RowReader):
    """Reads rows of the Parquet form.

    Values that are stored as they are, one page a state of a row group, are read by their bytes, unless the store asks for
    checksums; others, int8 among them, by pyarrow, which compares the pages' CRC-32.
    """

    def __init__(self, root: Root, manifest: Manifest) -> None:
        super().__init__(root, manifest)
        self._plain = PlainRows(root, manifest.shard_rows, manifest.channels, manifest.dtype, self._find_blocks)
        self._footers: Recent[int, pq.FileMetaData] = Recent(FOOTERS_AT_HAND)

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
        for rows, i, column in self._columns([*names, *scales], bounds):
            if i < len(names):
                values[i, rows] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, m.channels)
            else:
                scale[rows, i - len(names)] = column.to_numpy()
        return values.transpose(1, 0, 2), scale

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        columns = self._columns(["token"], np.array([[first, stop]], np.int64))
        return [token for _, _, column in columns for token in column.to_pylist()]

    def numbers(self, names: Sequence[str], first: int, stop: int) -> dict[str, Array]:
        """The columns of whole numbers of these names, of rows ``first … stop``."""
        chunks: dict[str, list[Array]] = {name: [] for name in names}
        for _, i, column in self._columns(names, np.array([[first, stop]], np.int64)):
            chunks[names[i]].append(column.to_numpy())
        return {name: np.concatenate(columns) for name, columns in chunks.items()}

    def _find_blocks(self, shards: list[int]) -> list[Blocks | None]:
        footers = self._footers.get_all(shards, self._read_footers)
        return [self._blocks_of(shard, footer) for shard, footer in zip(shards, footers, strict=True)]

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

    def _columns(self, names: Sequence[str], spans: Int64) -> Iterator[tuple[slice, int, Any]]:
        """(rows of the result, place of the column in ``names``, its values there), span by span."""
        cuts = cut(spans, self._manifest.shard_rows)
        pieces = list(zip(*(column.tolist() for column in (cuts.of, cuts.first, cuts.stop, cuts.place)), strict=True))
        shards = list(dict.fromkeys(shard for shard, _, _, _ in pieces))
        footers = dict(zip(shards, self._footers.get_all(shards, self._read_footers), strict=True))
        groups = {shard: _groups(footer) for shard, footer in footers.items()}
        wanted = {shard: np.zeros(len(n_rows), bool) for shard, (_, n_rows) in groups.items()}  # row groups to read
        for shard, low, high, _ in pieces:
            first, last = np.searchsorted(groups[shard][0], (low, high - 1), "right") - 1
            wanted[shard][first : last + 1] = True
        requests = [
            GroupsOf(layout.states_part(shard), footers[shard], tuple(np.flatnonzero(wanted[shard]).tolist()), tuple(names))
            for shard in shards
        ]
        tables = dict(zip(shards, read_tables(self._root, requests), strict=True))
        skipped = {shard: np.cumsum(np.where(wanted[shard], 0, n_rows)) for shard, (_, n_rows) in groups.items()}
        for shard, low, high, place in pieces:
            group = int(np.searchsorted(groups[shard][0], low, "right")) - 1
            rows = tables[shard].slice(low - int(skipped[shard][group]), high - low)
            for i, name in enumerate(names):
                start = place
                for chunk in rows.column(name).chunks:
                    yield slice(start, start + len(chunk)), i, chunk
                    start += len(chunk)

    def _read_footers(self, shards: list[int]) -> list[pq.FileMetaData]:
        footers = read_footers(self._root, [layout.states_part(shard) for shard in shards])
        for shard, footer in zip(shards, footers, strict=True):
            first, stop = self._manifest.shard_range(shard)
            self._check(footer, self._root.url(layout.states_part(shard)), stop - first)
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


def _groups(footer: pq.FileMetaData) -> tuple[Int64, Int64]:
    """The first row of each row group, and how many rows it has."""
    n_rows = np.array([footer.row_group(group).num_rows for group in range(footer.num_row_groups)], np.int64)
    return np.cumsum(n_rows) - n_rows, n_rows
