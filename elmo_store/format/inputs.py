"""inputs.parquet: the files that a store was made from."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.format import layout
from elmo_store.storage.parquet_files import read_table
from elmo_store.storage.root import Root


def encode_inputs(files: Sequence[Mapping[str, Any]]) -> bytes:
    """The table of the input's files, in input order; each has the columns of `layout.INPUTS_SCHEMA`."""
    table = pa.table({name: [file[name] for file in files] for name in layout.INPUTS_SCHEMA.names}, schema=layout.INPUTS_SCHEMA)
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def read_inputs(root: Root) -> list[dict[str, Any]]:
    """The input's files, in input order. ShardMissingError, ShardCorruptError."""
    files: list[dict[str, Any]] = read_table(root, layout.INPUTS, layout.INPUTS_SCHEMA).to_pylist()
    return files
