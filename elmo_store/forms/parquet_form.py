"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

Written so that reading one state, or a few rows, fetches little else: row groups of 256 rows, checksums on pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.int8 import Array, Empty, Int8Rows
from elmo_store.format.manifest import Manifest
from elmo_store.forms.runs import RunReader, Runs, cut
from elmo_store.storage.parquet_files import GroupsOf, errors_name, read_footers, read_tables
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
FOOTERS_AT_HAND = 256
PLACES_AT_HAND = 4096  # of files: 3 KB each for 64 row groups of 5 states
_PLAIN = frozenset(("PLAIN", "RLE"))  # RLE: of the lists' levels


def schema(manifest: Manifest) -> pa.Schema:
    """Columns of a file: row, token, sentence, index_in_sentence, every state in the manifest's order, in int8 also its scale."""
    number = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}[manifest.dtype]
    vector = pa.list_(pa.field("element", number, nullable=False), manifest.channels)
    return pa.schema(
        [
            pa.field("row", pa.int64(), nullable=False),
            pa.field("token", pa.string(), nullable=False),
            pa.field("sentence", pa.int64(), nullable=False),
            pa.field("index_in_sentence", pa.int32(), nullable=False),
            *(pa.field(name, vector, nullable=False) for name in manifest.states),
            *(pa.field(name, pa.float32(), nullable=False) for name in _scale_columns(manifest)),
        ]
    )


def _scale_columns(manifest: Manifest) -> list[str]:
    return [layout.scale_column(name) for name in manifest.states] if manifest.is_int8 else []


def encode_shard(
    manifest: Manifest,
    shard: int,
    states: Array | Int8Rows,
    tokens: Sequence[str],
    sentence: npt.NDArray[np.int64],
    index_in_sentence: npt.NDArray[np.int32],
) -> tuple[str, bytes]:
    """The file of shard ``shard``: its path in the store and its bytes.

    ``states`` [n, n_states, channels] in the manifest's dtype; the others have one entry a row: its token, its
    sentence's number in the store, and its place in the sentence from 0 (with boundaries BOS is 0, EOS the last).
    """
    first, _ = manifest.shard_range(shard)
    wanted = schema(manifest)
    values, scale = states if isinstance(states, Int8Rows) else (states, np.zeros((len(states), 0), np.float32))
    vectors = [_vectors(values[:, i], wanted.field(name).type) for i, name in enumerate(manifest.states)]
    columns = [
        pa.array(np.arange(first, first + len(states), dtype=np.int64)),
        pa.array(tokens, pa.string()),
        pa.array(sentence, pa.int64()),
        pa.array(index_in_sentence, pa.int32()),
        *vectors,
        *(pa.array(np.ascontiguousarray(column)) for column in scale.T),
    ]
    table = pa.Table.from_arrays(columns, schema=wanted)
    vector_codec = "none" if manifest.compression == "none" else "zstd"
    leaves = [f"{name}.list.element" for name in manifest.states]
    codecs = dict.fromkeys(layout.ROW_COLUMNS, "zstd") | dict.fromkeys([*leaves, *_scale_columns(manifest)], vector_codec)
    # Parquet's smallest number has 4 bytes; numbers of a dictionary of at most 255 entries have one.
    dictionaries = ["token", *(leaves if manifest.is_int8 else ())]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=layout.ROW_GROUP_ROWS,
        data_page_size=1 << 30,  # one page a state of a row group, so that its rows are one range of bytes
        compression=codecs,
        use_dictionary=dictionaries,
        write_statistics=["row", "sentence"],
        write_page_checksum=True,
    )
    return layout.states_part(shard), sink.getvalue().to_pybytes()


def _vectors(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """[n, channels] as n fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), type=kind)


@dataclass(frozen=True)
class _Places:
    """Where the rows of a file lie: rows of a row group (of the last, at most), and the first byte of each state's values.

    ``starts`` is int64 [row groups, states]. Only of a file whose values are stored as they are.
    """

    group_rows: int
    starts: Int64


class ParquetRows:
    """Reads rows of the Parquet form. Safe for threads; not for use across a fork (`Store` makes a new one there).

    Values that are stored as they are, one page a state of a row group, are read by their bytes, unless the store asks for
    checksums; others, int8 among them, by pyarrow, which compares the pages' CRC-32.
    """

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._runs = RunReader(root)
        self._footers: Recent[int, pq.FileMetaData] = Recent(FOOTERS_AT_HAND)
        self._places: Recent[int, _Places | None] = Recent(PLACES_AT_HAND)

    def read(self, states: Sequence[int], spans: Int64, empty: Empty = np.empty) -> npt.NDArray[Any]:
        """Rows of the states with these indices, as numbers: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(states), channels].
        """
        if self._manifest.is_int8:
            return self.read_raw(states, spans, empty).floats(empty)
        pieces = cut(spans, self._manifest.shard_rows)
        shards, of = np.unique(pieces.of, return_inverse=True)
        places = self._places.get_all(shards.tolist(), self._find_places)
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return self._read_by_pyarrow(states, spans)
        out = empty((len(states), int(pieces.rows.sum()), self._manifest.channels), self._manifest.dtype)
        row_bytes = self._manifest.channels * out.itemsize
        group_rows = np.array([place.group_rows for place in known], np.int64)
        first_group = np.cumsum([0, *(len(place.starts) for place in known)])  # of each shard, in the table of all
        groups = cut(np.stack([pieces.first, pieces.stop], axis=1), group_rows[of])
        table = (
            np.concatenate([place.starts for place in known]) if known else np.zeros((0, len(self._manifest.states)), np.int64)
        )
        of = of[groups.span]
        starts = table[first_group[of] + groups.of][:, np.array(states, np.int64)] + (groups.first * row_bytes)[:, None]
        runs = Runs(
            [layout.states_part(shard) for shard in shards.tolist()], np.full(len(shards), -1),
            of, starts, groups.rows * row_bytes, groups.place * row_bytes,
        )  # fmt: skip
        with errors_name(self._root, ""):
            self._runs.read_runs(runs, out)
        return out.transpose(1, 0, 2)

    def read_raw(self, states: Sequence[int], spans: Int64, empty: Empty = np.empty) -> Int8Rows:
        """`read` of an int8 store, as it stores them."""
        if not self._manifest.is_int8:
            raise ValueError(f"{self._root} holds {self._manifest.dtype}, not int8")
        names = [self._manifest.states[i] for i in states]
        n_rows = int((spans[:, 1] - spans[:, 0]).sum())
        values = empty((len(states), n_rows, self._manifest.channels), np.int8)
        scale = np.empty((n_rows, len(states)), np.float32)
        for rows, place, column in self._columns([*names, *map(layout.scale_column, names)], spans):
            if place < len(names):
                values[place, rows] = column.flatten().to_numpy().reshape(-1, self._manifest.channels)
            else:
                scale[rows, place - len(names)] = column.to_numpy()
        return Int8Rows(values.transpose(1, 0, 2), scale)

    def read_raw_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Int8Rows:
        """`read_raw` of one span."""
        return self.read_raw(states, np.array([[first, stop]], np.int64), empty)

    def read_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> npt.NDArray[Any]:
        """`read` of one span: the quickest way to a sentence."""
        if self._manifest.is_int8:
            return self.read_raw_span(states, first, stop, empty).floats(empty)
        shard, lo = divmod(first, self._manifest.shard_rows)
        if first < stop <= (shard + 1) * self._manifest.shard_rows:
            places = self._places.get(shard, lambda one: self._find_places([one])[0])
            if places is not None and lo // places.group_rows == (lo + stop - first - 1) // places.group_rows:
                group, row = divmod(lo, places.group_rows)
                out = empty((len(states), stop - first, self._manifest.channels), self._manifest.dtype)
                begin, row_bytes = places.starts[group].tolist(), self._manifest.channels * out.itemsize
                try:
                    offsets = [begin[state] for state in states]
                    self._runs.read_run(layout.states_part(shard), -1, row * row_bytes, 1, offsets, out)
                except OSError:
                    with errors_name(self._root, ""):
                        raise
                return out.transpose(1, 0, 2)
        return self.read(states, np.array([[first, stop]], np.int64), empty)

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        columns = self._columns(["token"], np.array([[first, stop]], np.int64))
        return [token for _, _, column in columns for token in column.to_pylist()]

    def numbers(self, names: Sequence[str], first: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of whole numbers of these names, of rows ``first … stop``."""
        found: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        for _, place, column in self._columns(names, np.array([[first, stop]], np.int64)):
            found[names[place]].append(column.to_numpy())
        return {name: np.concatenate(columns) for name, columns in found.items()}

    def _find_places(self, shards: list[int]) -> list[_Places | None]:
        return [self._places_of(footer) for footer in self._footers.get_all(shards, self._read_footers)]

    def _places_of(self, footer: pq.FileMetaData) -> _Places | None:
        """Where a file's values lie. None if compressed, not plain, to be checked, or row groups are of several sizes."""
        m = self._manifest
        if m.checksum != "none":  # whole pages are read, and their CRC-32 compared
            return None
        row_bytes = m.channels * np.dtype(m.dtype).itemsize
        leaves = {footer.schema.column(i).path: i for i in range(len(footer.schema))}
        columns = [leaves[f"{name}.list.element"] for name in m.states]
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        rows = [group.num_rows for group in groups]
        starts = np.empty((len(groups), len(columns)), np.int64)
        for i, group in enumerate(groups):
            for k, number in enumerate(columns):
                column = group.column(number)
                if column.compression != "UNCOMPRESSED" or not _PLAIN.issuperset(column.encodings):
                    return None
                # The page's header and the lists' levels come first: the values are its last bytes.
                starts[i, k] = column.data_page_offset + column.total_compressed_size - rows[i] * row_bytes
        uniform = all(n == rows[0] for n in rows[:-1]) and 0 < rows[-1] <= rows[0] and (starts >= 0).all()
        return _Places(rows[0], starts) if uniform else None

    def _read_by_pyarrow(self, states: Sequence[int], spans: Int64) -> npt.NDArray[Any]:
        names = [self._manifest.states[i] for i in states]
        n_rows = int((spans[:, 1] - spans[:, 0]).sum())
        out = np.empty((n_rows, len(states), self._manifest.channels), self._manifest.dtype)
        for rows, place, column in self._columns(names, spans):
            values = column.flatten().to_numpy(zero_copy_only=False)
            out[rows, place] = values.reshape(-1, self._manifest.channels)
        return out

    def _columns(self, names: Sequence[str], spans: Int64) -> Iterator[tuple[slice, int, Any]]:
        """(rows of the result, place of the column in ``names``, its values there), span by span."""
        cuts = cut(spans, self._manifest.shard_rows)
        pieces = list(zip(*(column.tolist() for column in (cuts.of, cuts.first, cuts.stop, cuts.place)), strict=True))
        shards = list(dict.fromkeys(shard for shard, _, _, _ in pieces))
        footers = dict(zip(shards, self._footers.get_all(shards, self._read_footers), strict=True))
        wanted: dict[int, dict[int, int]] = {shard: {} for shard in shards}  # shard → row group → its first row
        for shard, lo, hi, _ in pieces:
            start = 0
            for group in range(footers[shard].num_row_groups):
                stop = start + footers[shard].row_group(group).num_rows
                if start < hi and stop > lo:
                    wanted[shard][group] = start
                start = stop
        requests = [
            GroupsOf(layout.states_part(shard), footers[shard], tuple(sorted(wanted[shard])), tuple(names)) for shard in shards
        ]
        tables = dict(zip(shards, read_tables(self._root, requests), strict=True))
        for shard, lo, hi, place in pieces:
            offset = 0  # of the row group's first row in the table
            for group in sorted(wanted[shard]):
                start = wanted[shard][group]
                n_rows = footers[shard].row_group(group).num_rows
                a, b = max(lo, start), min(hi, start + n_rows)
                if a < b:
                    rows = tables[shard].slice(offset + a - start, b - a)
                    for column, name in enumerate(names):
                        first = place + a - lo
                        for chunk in rows.column(name).chunks:
                            yield slice(first, first + len(chunk)), column, chunk
                            first += len(chunk)
                offset += n_rows

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
        found = footer.schema.to_arrow_schema()
        missing = [
            field.name
            for field in schema(self._manifest)
            if found.get_field_index(field.name) < 0 or not found.field(field.name).equals(field)
        ]
        if missing:
            raise ShardCorruptError(f"{where} lacks the columns {missing} as the manifest has them: not of this store")
