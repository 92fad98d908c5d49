"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

Written so that reading one state, or a few rows, fetches little else: row groups of 256 rows, checksums on pages.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.storage.data import Data


def schema(manifest: Manifest) -> pa.Schema:
    """Columns of a file: row, token, sentence, index_in_sentence, every state in the manifest's order, in int8 also its scale."""
    number = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}[manifest.dtype]
    vector = pa.list_(pa.field("element", number, nullable=False), manifest.channels)
    columns = dict(
        zip(layout.ROW_COLUMNS, (pa.int64(), pa.string(), pa.int64(), pa.int32()), strict=True)
    )
    columns |= dict.fromkeys(manifest.states, vector) | dict.fromkeys(
        _scale_columns(manifest), pa.float32()
    )
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
    columns: dict[str, Any] = dict(
        zip(layout.ROW_COLUMNS, (np.arange(first, first + len(states)), *row_columns), strict=True)
    )
    for i, name in enumerate(manifest.states):
        numbers = pa.array(np.ascontiguousarray(values[:, i]).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(numbers, type=wanted.field(name).type)
        if isinstance(states, Int8Rows):
            columns[layout.scale_column(name)] = np.ascontiguousarray(states.scale[:, i])
    vector_codec = "none" if manifest.compression == "none" else "zstd"
    leaves = [f"{name}.list.element" for name in manifest.states]
    codecs = dict.fromkeys(layout.ROW_COLUMNS, "zstd") | dict.fromkeys(
        [*leaves, *_scale_columns(manifest)], vector_codec
    )
    # Parquet's smallest number has 4 bytes; numbers of a dictionary of at most 255 entries have one.
    dictionaries = ["token", *(leaves if manifest.is_int8 else ())]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=wanted),
        sink,
        row_group_size=layout.ROW_GROUP_ROWS,
        data_page_size=1
        << 30,  # one page a state of a row group, so that its rows are one range of bytes
        compression=codecs,
        use_dictionary=dictionaries,
        write_statistics=["row", "sentence"],
        write_page_checksum=True,
    )
    return layout.states_part(shard), (memoryview(sink.getvalue()),)
