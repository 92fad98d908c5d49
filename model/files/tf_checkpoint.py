"""A TensorFlow checkpoint (format V2, a "tensor bundle"), as bilm-tf's training leaves it, read without TensorFlow.

``PREFIX.index`` is a LevelDB table from each tensor's name to a small protocol buffer: type, shape, and where its bytes are
in ``PREFIX.data-NNNNN-of-NNNNN``. Source: tensorflow/core/util/tensor_bundle, and
`dump_weights` of bilm-tf for the names. Nothing in these files is code, and every length is checked before it is used. The one
package that reads them alone brings 25,000 lines and has not been kept up since 2023.
"""

import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from model.errors import WeightsError
from model.files.hdf5 import canonical, layout
from model.options import BiLMOptions, check_regular

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_FLOAT = 1  # DT_FLOAT


@dataclass(frozen=True)
class _Entry:
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    n_bytes: int
    crc: int
    sliced: bool


def latest(folder: Path) -> Path:
    """The ``.index`` of a folder's checkpoint of the highest step. WeightsError: there is none."""
    matches = (
        (re.search(r"-([0-9]{1,18})\.index$", path.name), path) for path in folder.glob("*.index")
    )
    steps = {int(match[1]): path for match, path in matches if match}
    if not steps:
        raise WeightsError(
            f"{folder} holds no checkpoint: its index is a file such as model.ckpt-N.index"
        )
    return steps[max(steps)]


def read(index: Path, options: BiLMOptions) -> dict[str, torch.Tensor]:
    """Canonical tensors of the biLM in a checkpoint; its softmax, optimiser and counters are left.

    WeightsError: damaged, or a tensor is missing, of another shape, or not float32.
    """
    check_regular(index, WeightsError)
    try:
        entries = dict(_entries(index.read_bytes()))
    except (IndexError, ValueError, DecodeError) as error:
        raise WeightsError(
            f"{index} can't be read as the index of a TensorFlow checkpoint ({error})"
        ) from error
    header = entries.pop("", None)
    named = {dataset_name(name): (name, entry) for name, entry in entries.items()}
    if header is None or "char_embed" not in named:
        raise WeightsError(
            f"{index} holds no lm/char_embed: it is not a checkpoint of a biLM that bilm-tf made"
        )
    has_projection = "CNN_proj/W_proj" in named
    arrays = {
        name: _tensor(index, named, name, shape)
        for name, shape in layout(options, has_projection=has_projection).items()
    }
    return canonical(arrays, options)


def dataset_name(variable: str) -> str:
    """What bilm-tf's `dump_weights` calls a variable in weights.hdf5."""
    name = (
        variable.removeprefix("lm/")
        .replace("/rnn/", "/RNN/")
        .replace("/multi_rnn_cell/", "/MultiRNNCell/")
    )
    name = name.replace("/cell_", "/Cell").replace("/lstm_cell/", "/LSTMCell/")
    if "/RNN/" in name:
        if "/MultiRNNCell/" not in name:  # a biLM of one layer has no stack of cells
            name = name.replace("/LSTMCell/", "/MultiRNNCell/Cell0/LSTMCell/")
        name = (
            name.replace("projection/kernel", "W_P_0")
            .replace("/kernel", "/W_0")
            .replace("/bias", "/B")
        )
    return name


def _tensor(
    index: Path, named: Mapping[str, tuple[str, _Entry]], dataset: str, shape: tuple[int, ...]
) -> torch.Tensor:
    if dataset not in named:
        raise WeightsError(
            f"{index} lacks the variable that bilm-tf dumps as {dataset!r}, which the options call for"
        )
    name, entry = named[dataset]
    if entry.shape != shape:
        raise WeightsError(
            f"{index}: variable {name!r} has shape {entry.shape}, the options say {shape}; are they of the same model?"
        )
    if entry.dtype != _FLOAT or entry.sliced or entry.n_bytes != 4 * int(np.prod(shape)):
        raise WeightsError(
            f"{index}: variable {name!r} is not one whole float32 tensor (type {entry.dtype}, {entry.n_bytes} bytes)"
        )
    paths = sorted(index.parent.glob(f"{glob.escape(index.stem)}.data-{entry.shard:05d}-of-*"))
    if len(paths) != 1:
        raise WeightsError(
            f"{index}: {len(paths)} files {index.stem}.data-{entry.shard:05d}-of-… are beside it, not 1"
        )
    check_regular(paths[0], WeightsError)
    with paths[0].open("rb") as file:
        file.seek(min(entry.offset, paths[0].stat().st_size))
        data = file.read(entry.n_bytes)
    if len(data) != entry.n_bytes or _masked(data) != entry.crc:
        raise WeightsError(
            f"{paths[0]}: the bytes of {name!r} are cut or damaged: copy the checkpoint again"
        )
    return torch.from_numpy(np.frombuffer(data, "<f4").reshape(shape).astype(np.float32))


def _entries(table: bytes) -> Iterator[tuple[str, _Entry]]:
    """Each name of a LevelDB table and its entry. ValueError, IndexError, DecodeError for what is none."""
    if len(table) < _FOOTER_BYTES or table[-8:] != _MAGIC:
        raise ValueError("it does not end as one")
    footer = table[-_FOOTER_BYTES:]
    _, position = _varint(footer, 0)
    _, position = _varint(footer, position)  # the meta index, which is empty
    offset, position = _varint(footer, position)
    size, _ = _varint(footer, position)
    for _, handle in _block(table, offset, size):
        offset, position = _varint(handle, 0)
        size, _ = _varint(handle, position)
        for key, value in _block(table, offset, size):
            yield key.decode(), _entry(value)


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block; keys share their beginnings."""
    if offset + size + _TRAILER_BYTES > len(table):
        raise ValueError("a block lies beyond its end")
    kind, crc = table[offset + size], table[offset + size + 1 : offset + size + _TRAILER_BYTES]
    if _masked(table[offset : offset + size + 1]) != int.from_bytes(crc, "little"):
        raise ValueError("a block is damaged")
    if kind != 0:
        raise ValueError(
            f"a block is compressed (type {kind}), which TensorFlow does not do to checkpoints"
        )
    block = table[offset : offset + size]
    end = size - 4 * (int.from_bytes(block[-4:], "little") + 1)
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        own, position = _varint(block, position)
        length, position = _varint(block, position)
        if shared > len(key) or position + own + length > end:
            raise ValueError("a block's entries don't fit into it")
        key = key[:shared] + block[position : position + own]
        yield key, block[position + own : position + own + length]
        position += own + length


def _entry(message: bytes) -> _Entry:
    """A BundleEntryProto; of the header, whose fields are others, nothing is used."""
    fields = _fields(message)
    numbers = {number: value for number, value in fields if isinstance(value, int)}
    messages = {number: value for number, value in fields if isinstance(value, bytes)}
    dims = [
        dict(_fields(dim))
        for number, dim in _fields(messages.get(2, b""))
        if number == 2 and isinstance(dim, bytes)
    ]
    shape = tuple(int(dim.get(1, 0)) for dim in dims)
    dtype, shard, offset, n_bytes, crc = (numbers.get(number, 0) for number in (1, 3, 4, 5, 6))
    return _Entry(dtype, shape, shard, offset, n_bytes, crc, sliced=7 in messages)


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """Number and value (int or bytes) of each field of a protocol buffer. DecodeError for what is none."""
    parsed = Empty.FromString(message)
    return [(field.field_number, field.data) for field in UnknownFieldSet(parsed)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
