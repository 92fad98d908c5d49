"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

May import pyarrow, NumPy, layout, manifest, storage, recent, parquet_files, errors. Written so that reading one state, or a
few rows, fetches little else: row groups of 256 rows, checksums on pages.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store import layout
from elmo_store.errors import ShardCorruptError
from elmo_store.manifest import Manifest
from elmo_store.parquet_files import GroupsOf, read_footers, read_tables
from elmo_store.recent import Recent
from elmo_store.storage import Root

FOOTERS_AT_HAND = 256


def schema(manifest: Manifest) -> pa.Schema:
    """Columns of a file: row, token, sentence, index_in_sentence, then every state in the manifest's order."""
    number = pa.float16() if manifest.dtype == "float16" else pa.float32()
    vector = pa.list_(pa.field("element", number, nullable=False), manifest.channels)
    return pa.schema(
        [
            pa.field("row", pa.int64(), nullable=False),
            pa.field("token", pa.string(), nullable=False),
            pa.field("sentence", pa.int64(), nullable=False),
            pa.field("index_in_sentence", pa.int32(), nullable=False),
            *(pa.field(name, vector, nullable=False) for name in manifest.states),
        ]
    )


def encode_shard(
    manifest: Manifest,
    shard: int,
    states: npt.NDArray[Any],
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
    vectors = [_vectors(states[:, i], wanted.field(name).type) for i, name in enumerate(manifest.states)]
    columns = [
        pa.array(np.arange(first, first + len(states), dtype=np.int64)),
        pa.array(tokens, pa.string()),
        pa.array(sentence, pa.int64()),
        pa.array(index_in_sentence, pa.int32()),
        *vectors,
    ]
    table = pa.Table.from_arrays(columns, schema=wanted)
    vector_codec = "none" if manifest.compression == "none" else "zstd"
    leaves = [f"{name}.list.element" for name in manifest.states]
    codecs = {**dict.fromkeys(layout.ROW_COLUMNS, "zstd"), **dict.fromkeys(leaves, vector_codec)}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=layout.ROW_GROUP_ROWS,
        compression=codecs,
        use_dictionary=["token"],
        write_statistics=["row", "sentence"],
        write_page_checksum=True,
    )
    return layout.states_part(shard), sink.getvalue().to_pybytes()


def _vectors(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """[n, channels] as n fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), type=kind)


class ParquetRows:
    """Reads rows of the Parquet form. Safe for threads; not for use across a fork (`Store` makes a new one there)."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._footers: Recent[int, pq.FileMetaData] = Recent(FOOTERS_AT_HAND)

    def read(self, states: Sequence[int], spans: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
        """Rows of the states with these indices: those of the first span ``first … stop``, then of the next, ….

        Returns [Σ (stop - first), len(states), channels].
        """
        names = [self._manifest.states[i] for i in states]
        out = np.empty((sum(stop - first for first, stop in spans), len(states), self._manifest.channels), self._manifest.dtype)
        for rows, place, column in self._columns(names, spans):
            values = column.flatten().to_numpy(zero_copy_only=False)
            out[rows, place] = values.reshape(-1, self._manifest.channels)
        return out

    def tokens(self, first: int, stop: int) -> list[str]:
        """The tokens of rows ``first … stop``."""
        return [token for _, _, column in self._columns(["token"], [(first, stop)]) for token in column.to_pylist()]

    def _columns(self, names: Sequence[str], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, int, Any]]:
        """(rows of the result, place of the column in ``names``, its values there), span by span."""
        pieces = list(self._pieces(spans))
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

    def _pieces(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
        """(shard, its rows lo … hi, their place in the result) of row spans of the store."""
        return layout.shard_pieces(spans, self._manifest.shard_rows)

    def _read_footers(self, shards: list[int]) -> list[pq.FileMetaData]:
        footers = read_footers(self._root, [layout.states_part(shard) for shard in shards])
        for shard, footer in zip(shards, footers, strict=True):
            first, stop = self._manifest.shard_range(shard)
            self._check(footer, self._root.url(layout.states_part(shard)), stop - first)
        return footers

    def _check(self, footer: pq.FileMetaData, where: str, rows: int) -> None:
        """The columns that the format names must be there; others may be."""
        if footer.num_rows != rows:
            raise ShardCorruptError(f"{where} has {footer.num_rows} rows, the manifest says {rows}")
        found = footer.schema.to_arrow_schema()
        missing = [
            field.name
            for field in schema(self._manifest)
            if found.get_field_index(field.name) < 0 or not found.field(field.name).equals(field)
        ]
        if missing:
            raise ShardCorruptError(f"{where} lacks the columns {missing} as the manifest has them: not of this store")
