"""The published weights.hdf5: its layout, the way between it and our canonical tensors, reading and writing.

Layout (float32; w = width of a filter, f = its count, n = all filters, p = projection, d = cell):

    char_embed                  (261, chars)    one row a byte or marker; the padding row 0 is left out
    CNN/W_cnn_i, CNN/b_cnn_i    (1, w, chars, f), (f,)
    CNN_high_k/W_transform, b_transform, W_carry, b_carry    (n, n), (n,): in, out
    CNN_proj/W_proj, b_proj     (n, p), (p,)
    RNN_r/RNN/MultiRNNCell/Cellj/LSTMCell/W_0, B, W_P_0      (2p, 4d), (4d,), (d, p); r = 0 forward, 1 backward

W_0's rows are those of the layer's input, then of h. Its columns are TensorFlow's gates: input, new, forget, output.
"""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import torch

from model.errors import WeightsError
from model.files.locate import replacing
from model.options import DIRECTIONS, BiLMOptions

Array = npt.NDArray[np.float32]


def _cell(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer - 1}/LSTMCell"


def layout(options: BiLMOptions, *, has_projection: bool) -> dict[str, tuple[int, ...]]:
    """Published names and shapes; ``has_projection``: whether CNN_proj stands in the file, which it need not where n = p."""
    n, p, d, chars = options.n_filters, options.projection_dim, options.dim, options.char_embedding_dim
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (options.n_characters - 1, chars)}
    for i, (width, count) in enumerate(options.filters):
        shapes[f"CNN/W_cnn_{i}"] = (1, width, chars, count)
        shapes[f"CNN/b_cnn_{i}"] = (count,)
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            shapes[f"CNN_high_{k}/W_{part}"] = (n, n)
            shapes[f"CNN_high_{k}/b_{part}"] = (n,)
    # bilm-tf makes no projection where the filters are as many as it would be wide.
    if n != p or has_projection:
        shapes["CNN_proj/W_proj"] = (n, p)
        shapes["CNN_proj/b_proj"] = (p,)
    for direction in range(len(DIRECTIONS)):
        for layer in range(1, options.n_layers + 1):
            cell = _cell(direction, layer)
            shapes[f"{cell}/W_0"] = (2 * p, 4 * d)
            shapes[f"{cell}/B"] = (4 * d,)
            shapes[f"{cell}/W_P_0"] = (d, p)
    return shapes


def canonical(published: Mapping[str, Array], options: BiLMOptions) -> dict[str, Array]:
    """Published arrays under canonical names, turned to torch's orientation."""
    p = options.projection_dim
    no_row = np.zeros((1, options.char_embedding_dim), np.float32)
    arrays = {"char_embed": np.concatenate([no_row, published["char_embed"]])}  # [262, chars]
    for i in range(len(options.filters)):
        arrays[f"conv{i}.weight"] = published[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)  # [f, chars, w]
        arrays[f"conv{i}.bias"] = published[f"CNN/b_cnn_{i}"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            arrays[f"highway{k}.{part}.weight"] = published[f"CNN_high_{k}/W_{part}"].T
            arrays[f"highway{k}.{part}.bias"] = published[f"CNN_high_{k}/b_{part}"]
    if "CNN_proj/W_proj" in published:
        arrays["proj.weight"] = published["CNN_proj/W_proj"].T
        arrays["proj.bias"] = published["CNN_proj/b_proj"]
    else:
        arrays["proj.weight"] = np.eye(p, dtype=np.float32)
        arrays["proj.bias"] = np.zeros(p, np.float32)
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = _swap_gates(published[f"{cell}/W_0"].T)  # [4d, 2p]
            arrays[f"{name}.weight_ih"] = weight[:, :p]
            arrays[f"{name}.weight_hh"] = weight[:, p:]
            arrays[f"{name}.bias"] = _swap_gates(published[f"{cell}/B"])
            arrays[f"{name}.weight_proj"] = published[f"{cell}/W_P_0"].T
    return arrays


def published_arrays(arrays: Mapping[str, Array], options: BiLMOptions) -> dict[str, Array]:
    """The way back of `canonical`."""
    published = {"char_embed": arrays["char_embed"][1:]}
    for i in range(len(options.filters)):
        published[f"CNN/W_cnn_{i}"] = arrays[f"conv{i}.weight"].transpose(2, 1, 0)[None]  # [1, w, chars, f]
        published[f"CNN/b_cnn_{i}"] = arrays[f"conv{i}.bias"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            published[f"CNN_high_{k}/W_{part}"] = arrays[f"highway{k}.{part}.weight"].T
            published[f"CNN_high_{k}/b_{part}"] = arrays[f"highway{k}.{part}.bias"]
    published["CNN_proj/W_proj"] = arrays["proj.weight"].T
    published["CNN_proj/b_proj"] = arrays["proj.bias"]
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = np.concatenate([arrays[f"{name}.weight_ih"], arrays[f"{name}.weight_hh"]], axis=1)  # [4d, 2p]
            published[f"{cell}/W_0"] = _swap_gates(weight).T
            published[f"{cell}/B"] = _swap_gates(arrays[f"{name}.bias"])
            published[f"{cell}/W_P_0"] = arrays[f"{name}.weight_proj"].T
    return published


def _swap_gates(array: Array) -> Array:
    """Both ways between TensorFlow's gates (input, new, forget, output) and torch's (input, forget, cell, output).

    The gates lie along axis 0.
    """
    first, second, third, fourth = np.split(array, 4)
    return np.concatenate([first, third, second, fourth])


def read(path: Path, options: BiLMOptions) -> dict[str, torch.Tensor]:
    """Canonical tensors of a published file.

    Raises:
        WeightsError: not HDF5, or a dataset is missing, of another shape, or not of floating point.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise WeightsError(f"{path} can't be opened as HDF5 ({error}); published weights are .hdf5 files") from error
    with file:
        arrays = {
            name: _read_dataset(file, path, name, shape)
            for name, shape in layout(options, has_projection=file.get("CNN_proj", getlink=True) is not None).items()
        }
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in canonical(arrays, options).items()}


def write(path: Path, options: BiLMOptions, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write canonical tensors as a published file, whole or not at all; reading it back gives the same bits."""
    arrays = published_arrays({name: tensor.numpy() for name, tensor in tensors.items()}, options)
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, dtype=np.float32)


def _read_dataset(file: h5py.File, path: Path, name: str, shape: tuple[int, ...]) -> Array:
    dataset = _own_dataset(file, path, name)
    # The shape is checked before anything is read: a file can't make us allocate more than the options say.
    if dataset.shape != shape:
        raise WeightsError(
            f"{path}: dataset {name!r} has shape {dataset.shape}, the options say {shape}; "
            "are these options.json and weights of the same model?"
        )
    if dataset.dtype.kind != "f":
        raise WeightsError(f"{path}: dataset {name!r} is {dataset.dtype}, not floating point")
    try:
        return np.asarray(dataset[()], dtype=np.float32)
    except OSError as error:
        raise WeightsError(f"{path}: dataset {name!r} can't be read ({error}); the weights file is damaged") from error


def _own_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset ``name``, whose bytes stand in this very file: links out of it are never followed."""
    entry: h5py.Group | h5py.Dataset = file
    parts = name.split("/")
    for depth, part in enumerate(parts, 1):
        group = entry
        try:
            link = group.get(part, getlink=True)
            entry = None if isinstance(link, h5py.ExternalLink) else group.get(part)
        except (KeyError, OSError, RuntimeError) as error:  # h5py on damaged groups
            raise WeightsError(f"{path}: {name!r} can't be read ({error}); the weights file is damaged") from error
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise WeightsError(f"{path}: {name!r} is a link to {link.path!r}; weights must stand in the file itself")
        if not isinstance(entry, h5py.Dataset if depth == len(parts) else h5py.Group):
            raise WeightsError(f"{path} lacks the dataset {name!r} that the options call for")
    if entry.external or entry.is_virtual:
        raise WeightsError(f"{path}: the bytes of {name!r} stand in other files; weights must stand in the file itself")
    return entry
