"""A folder that Hugging Face's ``datasets.load_from_disk`` opens: Arrow streams with a row a sentence. Without that library.

Columns: ``sentence``, ``id``, ``tokens``, and one for each of the K vectors, named as they are (layer_0 …): a list of the
sentence's tokens, each a list of ``width`` numbers. Any Arrow reader takes them.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elmo_store.errors import StoreError
from elmo_store.exports.work import Block, WholeFile, Work
from elmo_store.storage.root import encoded_json

NAME = "data-{:05d}-of-{:05d}.arrow"
INFO, STATE = "dataset_info.json", "state.json"


def files(work: Work) -> list[str]:
    """Names of the files; the two that make a dataset of them come last. StoreError for vectors called as another column."""
    if clash := {"id", "tokens"}.intersection(work.vectors.names):
        raise StoreError(f"the weight set {min(clash)!r} would have the name of another column: export another, or mix anew")
    return [*work.file_ranges(NAME), INFO, STATE]


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the files of these names."""
    schema, ranges = _schema(work), work.file_ranges(NAME)
    for name in (name for name in names if name in ranges):
        with whole_file(name) as path, pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for block in work.blocks(*ranges[name]):
                stream.write_batch(_batch(block, schema))
                work.on_progress(int(block.offsets[-1]))
    info = {"description": "Written by elmo-store export", "features": _features(work)}
    for name, value in ((INFO, info), (STATE, _state(work))):
        if name in names:
            with whole_file(name) as path:
                Path(path).write_bytes(encoded_json(value))


def _schema(work: Work) -> pa.Schema:
    number = {"float16": pa.float16(), "float32": pa.float32()}[work.settings.dtype]
    vector = pa.list_(pa.list_(number, work.vectors.width))
    columns = [("sentence", pa.int64()), ("id", pa.string()), ("tokens", pa.list_(pa.string()))]
    return pa.schema([*columns, *((name, vector) for name in work.vectors.names)])


def _batch(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.array(block.offsets.astype(np.int32))
    columns = [
        pa.array(range(block.first, block.first + len(block.records)), pa.int64()),
        pa.array([record.id for record in block.records], pa.string()),
        pa.array([record.tokens for record in block.records], pa.list_(pa.string())),
    ]
    width = block.values.shape[2]
    for values in block.values:  # [rows, width], taken as it lies
        columns.append(pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _features(work: Work) -> dict[str, Any]:
    """The columns' types as `datasets` says them; its older versions know Sequence alone, newer ones both names."""

    def of(dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "_type": "Value"}

    vector = {
        "feature": {"feature": of(work.settings.dtype), "length": work.vectors.width, "_type": "Sequence"},
        "_type": "Sequence",
    }
    fixed = {"sentence": of("int64"), "id": of("string"), "tokens": {"feature": of("string"), "_type": "Sequence"}}
    return {**fixed, **dict.fromkeys(work.vectors.names, vector)}


def _state(work: Work) -> dict[str, Any]:
    what = json.dumps([work.store_sha256, work.settings.to_json()], sort_keys=True)
    return {
        "_data_files": [{"filename": name} for name in work.file_ranges(NAME)],
        "_fingerprint": hashlib.sha256(what.encode()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
