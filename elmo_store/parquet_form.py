"""The Parquet form of a store: one file a shard, one row a token, one fixed-size list a state.

Written so that reading one state, or a few rows, fetches little else: row groups of 2,048 rows, checksums on pages.
May import pyarrow, NumPy, layout, manifest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store import layout
from elmo_store.manifest import Manifest


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
