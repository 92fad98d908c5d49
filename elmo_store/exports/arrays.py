"""Files of arrays: npz, safetensors, Hugging Face's datasets, WebDataset. The same store gives the same bytes.

npz          one array [n, 2p] a sentence, in order: arr_0, arr_1, … as ``numpy.savez(path, *arrays)`` names them
safetensors  ``layers`` [rows, K, width] (``vectors`` [rows, width] where a token has one), ``sentence_start`` int64
             [sentences + 1], ``token_start`` int64 [rows + 1] and ``token_bytes`` uint8: token i is the bytes from
             ``token_start[i]`` on in UTF-8. Metadata: ``first_sentence``, ``sentences``, ``names`` (JSON, of the K)
datasets     Arrow streams with a row a sentence: ``sentence``, ``id``, ``tokens``, kept fields, and each of the K vectors by its
             name (layer_0 …): a list of the sentence's tokens, each a list of ``width`` numbers. Made without that library
webdataset   tar files, two members a sentence: NUMBER.json with number, id, tokens and kept fields, NUMBER.npy with its vectors
"""

import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from elmo_store.exports.work import Block, Work
from elmo_store.format.manifest import own_sha256
from elmo_store.format.numbers import Array
from elmo_store.forms.zarr_shard import bytes_of
from elmo_store.reading.runs import Int64
from elmo_store.storage.json_values import encoded_json

EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file's clock can show
TENSOR_TYPES = {"float16": "F16", "float32": "F32"}
_MOST_BYTES = 10**18  # a number of as many digits as any that a header will hold


def write_npz(work: Work, paths: Sequence[str], sentences: range) -> None:
    """One array [n, 2p] per sentence."""
    with zipfile.ZipFile(paths[0], "w", zipfile.ZIP_STORED) as archive:
        for block in work.blocks(sentences, text=False):
            for number, vectors in block:  # [1, n, 2p]
                info = zipfile.ZipInfo(f"arr_{number}.npy", EARLIEST)
                archive.writestr(info, _npy(vectors[0]))


def _npy(array: Array) -> bytes:
    """A .npy file."""
    sink = BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def write_tar(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Two members per sentence."""
    with open(paths[0], "wb") as file:
        for block in work.blocks(sentences, fields=True):
            fields = (
                block.fields.to_pylist()
                if block.fields is not None and block.fields.num_columns
                else [{}] * len(block.records)
            )
            for record, kept, (_, vectors) in zip(block.records, fields, block, strict=True):
                facts = {"sentence": record.index, "id": record.id, "tokens": record.tokens} | kept
                text = json.dumps(
                    facts, ensure_ascii=False, default=lambda day: day.isoformat()
                ).encode("utf-8", "surrogatepass")
                _put_member(file, f"{record.index:09d}.json", text)
                _put_member(
                    file,
                    f"{record.index:09d}.npy",
                    _npy(vectors[0] if work.vectors.single else vectors),
                )
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive


def _put_member(file: BinaryIO, name: str, content: bytes) -> None:
    """tarfile's own header, the content, and zeros up to whole blocks."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    file.write(content)
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))


def write_safetensors(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Four tensors; the header is as long as the greatest number of bytes of all tokens would make it."""
    spans = work.store.inner_spans(work.store.spans(sentences))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(spans[:, 1] - spans[:, 0])])
    n_rows = int(offsets[-1])
    tokens = work.store.table(sentences, ["tokens"])["tokens"].combine_chunks().flatten()
    text = [token.encode("utf-8", "surrogatepass") for token in tokens.to_pylist()]
    sizes = [8 * len(offsets), 8 * (n_rows + 1), n_rows * work.row_bytes, sum(map(len, text))]
    header_bytes = (
        -(-len(_tensors_header(work, sentences, offsets, [*sizes[:3], _MOST_BYTES])) // 8) * 8
    )
    with open(paths[0], "wb") as file:
        file.write(header_bytes.to_bytes(8, "little"))
        file.write(_tensors_header(work, sentences, offsets, sizes).ljust(header_bytes))
        file.write(offsets.astype("<i8").tobytes())
        file.write(np.cumsum([0, *map(len, text)]).astype("<i8").tobytes())
        for block in work.blocks(sentences, text=False):
            file.write(bytes_of(np.ascontiguousarray(block.values.transpose(1, 0, 2))))
        file.write(b"".join(text))


def _tensors_header(work: Work, sentences: range, offsets: Int64, sizes: Sequence[int]) -> bytes:
    n_rows, vectors = int(offsets[-1]), work.vectors
    shape = (
        [n_rows, vectors.width] if vectors.single else [n_rows, len(vectors.names), vectors.width]
    )
    tensors = {
        "sentence_start": ("I64", [len(offsets)]),
        "token_start": ("I64", [n_rows + 1]),
        "vectors" if vectors.single else "layers": (TENSOR_TYPES[work.settings.dtype], shape),
        "token_bytes": ("U8", [sizes[-1]]),
    }
    metadata = {
        "first_sentence": str(sentences.start),
        "sentences": str(len(sentences)),
        "names": json.dumps(vectors.names),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for (name, (dtype, of)), size in zip(tensors.items(), sizes, strict=True):
        header[name] = {"dtype": dtype, "shape": of, "data_offsets": [start, start + size]}
        start += size
    return json.dumps(header, separators=(",", ":")).encode()


def write_arrow(work: Work, paths: Sequence[str], sentences: range) -> None:
    """One row per sentence; or what `datasets` reads beside the rows: the columns' types, the files' names."""
    name = os.path.basename(paths[0])
    if name in work.settings.form.tables:
        Path(paths[0]).write_bytes(
            encoded_json(_dataset_state(work) if name == "state.json" else _dataset_info(work))
        )
        return
    vector = pa.list_(pa.list_(pa.from_numpy_dtype(work.settings.dtype), work.vectors.width))
    columns = [("sentence", pa.int64()), ("id", pa.string()), ("tokens", pa.list_(pa.string()))]
    columns += [(name, field.column.type) for name, field in work.store.fields.items()]
    schema = pa.schema([*columns, *((name, vector) for name in work.vectors.names)])
    with pa.OSFile(paths[0], "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        for block in work.blocks(sentences, fields=True):
            stream.write_batch(_record_batch(block, schema))


def _record_batch(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.array(block.offsets.astype(np.int32))
    columns = [
        pa.array(range(block.first, block.first + len(block.records)), pa.int64()),
        pa.array([record.id for record in block.records], pa.string()),
        pa.array([record.tokens for record in block.records], pa.list_(pa.string())),
    ]
    columns += (
        [column.combine_chunks() for column in block.fields.columns]
        if block.fields is not None
        else []
    )
    width = block.values.shape[2]
    for values in block.values:  # [rows, width], taken as it lies
        columns.append(
            pa.ListArray.from_arrays(
                offsets, pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _dataset_info(work: Work) -> dict[str, Any]:
    """The columns' types as `datasets` says them; its older versions know Sequence alone, newer ones both names."""

    def value(dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "_type": "Value"}

    row = {"feature": value(work.settings.dtype), "length": work.vectors.width, "_type": "Sequence"}
    columns = {
        "sentence": value("int64"),
        "id": value("string"),
        "tokens": {"feature": value("string"), "_type": "Sequence"},
    }
    fields = {name: _feature(field.column.type) for name, field in work.store.fields.items()}
    vectors = {name: {"feature": row, "_type": "Sequence"} for name in work.vectors.names}
    return {
        "description": "Written by elmo-store export",
        "features": {**columns, **fields, **vectors},
    }


def _feature(kind: pa.DataType) -> Any:
    """A field's type as `datasets` says it."""
    if pa.types.is_list(kind):
        return [_feature(kind.value_type)]  # a Sequence of objects would be an object of lists
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind}
    names = {"double": "float64", "date32[day]": "date32"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}


def _dataset_state(work: Work) -> dict[str, Any]:
    job = json.dumps(
        [own_sha256(work.store.manifest.to_json()), asdict(work.settings)], sort_keys=True
    )
    return {
        "_data_files": [{"filename": name} for name in work.files if name.endswith(".arrow")],
        "_fingerprint": hashlib.sha256(job.encode()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
