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
import torch
import torch.nn.functional as F
from torch import Tensor

from model.errors import WeightsError
from model.files.locate import replacing
from model.options import DIRECTIONS, BiLMOptions, check_regular


def _cell(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer - 1}/LSTMCell"


def layout(options: BiLMOptions, *, has_projection: bool) -> dict[str, tuple[int, ...]]:
    """Published names and shapes; ``has_projection``: whether CNN_proj stands in the file, which it need not where n = p."""
    tensors = {
        name: torch.empty(shape, device="meta") for name, shape in options.tensor_shapes().items()
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in published(tensors, options).items()}
    # bilm-tf makes no projection where the filters are as many as it would be wide.
    if options.n_filters == options.projection_dim and not has_projection:
        del shapes["CNN_proj/W_proj"], shapes["CNN_proj/b_proj"]
    return shapes


def canonical(arrays: Mapping[str, Tensor], options: BiLMOptions) -> dict[str, Tensor]:
    """Published tensors under canonical names, turned to torch's orientation."""
    p = options.projection_dim
    tensors = {"char_embed": F.pad(arrays["char_embed"], (0, 0, 1, 0))}  # [262, chars]
    for i in range(len(options.filters)):
        tensors[f"conv{i}.weight"] = arrays[f"CNN/W_cnn_{i}"][0].permute(2, 1, 0)  # [f, chars, w]
        tensors[f"conv{i}.bias"] = arrays[f"CNN/b_cnn_{i}"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            tensors[f"highway{k}.{part}.weight"] = arrays[f"CNN_high_{k}/W_{part}"].t()
            tensors[f"highway{k}.{part}.bias"] = arrays[f"CNN_high_{k}/b_{part}"]
    has_projection = "CNN_proj/W_proj" in arrays
    tensors["proj.weight"] = arrays["CNN_proj/W_proj"].t() if has_projection else torch.eye(p)
    tensors["proj.bias"] = arrays["CNN_proj/b_proj"] if has_projection else torch.zeros(p)
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = _swap_gates(arrays[f"{cell}/W_0"].t())  # [4d, 2p]
            tensors[f"{name}.weight_ih"], tensors[f"{name}.weight_hh"] = (
                weight[:, :p],
                weight[:, p:],
            )
            tensors[f"{name}.bias"] = _swap_gates(arrays[f"{cell}/B"])
            tensors[f"{name}.weight_proj"] = arrays[f"{cell}/W_P_0"].t()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def published(tensors: Mapping[str, Tensor], options: BiLMOptions) -> dict[str, Tensor]:
    arrays = {"char_embed": tensors["char_embed"][1:]}
    for i in range(len(options.filters)):
        arrays[f"CNN/W_cnn_{i}"] = tensors[f"conv{i}.weight"].permute(2, 1, 0)[
            None
        ]  # [1, w, chars, f]
        arrays[f"CNN/b_cnn_{i}"] = tensors[f"conv{i}.bias"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            arrays[f"CNN_high_{k}/W_{part}"] = tensors[f"highway{k}.{part}.weight"].t()
            arrays[f"CNN_high_{k}/b_{part}"] = tensors[f"highway{k}.{part}.bias"]
    arrays["CNN_proj/W_proj"], arrays["CNN_proj/b_proj"] = (
        tensors["proj.weight"].t(),
        tensors["proj.bias"],
    )
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = torch.cat(
                [tensors[f"{name}.weight_ih"], tensors[f"{name}.weight_hh"]], dim=1
            )  # [4d, 2p]
            arrays[f"{cell}/W_0"] = _swap_gates(weight).t()
            arrays[f"{cell}/B"] = _swap_gates(tensors[f"{name}.bias"])
            arrays[f"{cell}/W_P_0"] = tensors[f"{name}.weight_proj"].t()
    return arrays


def _swap_gates(tensor: Tensor) -> Tensor:
    """Both ways between TensorFlow's gates (input, new, forget, output) and torch's (input, forget, cell, output), axis 0."""
    first, second, third, fourth = tensor.chunk(4)
    return torch.cat([first, third, second, fourth])


def read(path: Path, options: BiLMOptions) -> dict[str, Tensor]:
    """Canonical tensors of a published file.

    WeightsError: not HDF5, or a dataset is missing, of another shape, or not of floating point.
    """
    check_regular(path, WeightsError)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise WeightsError(
            f"{path} can't be opened as HDF5 ({error}); published weights are .hdf5 files"
        ) from error
    with file:
        try:
            has_projection = file.get("CNN_proj", getlink=True) is not None
        except (KeyError, OSError, RuntimeError) as error:  # h5py on damaged groups
            raise WeightsError(
                f"{path} can't be read ({error}); the weights file is damaged"
            ) from error
        arrays = {
            name: _read_dataset(file, path, name, shape)
            for name, shape in layout(options, has_projection=has_projection).items()
        }
    return canonical(arrays, options)


def write(path: Path, options: BiLMOptions, tensors: Mapping[str, Tensor]) -> None:
    """Write canonical tensors as a published file, whole or not at all; reading it back gives the same bits."""
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, tensor in published(tensors, options).items():
            file.create_dataset(name, data=tensor.numpy(), dtype=np.float32)


def _read_dataset(file: h5py.File, path: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        dataset = _own_dataset(file, path, name)
        # The shape is checked before anything is read: a file can't make us allocate more than the options say.
        if dataset.shape != shape:
            raise WeightsError(
                f"{path}: dataset {name!r} has shape {dataset.shape}, the options say {shape}; "
                "are these options.json and weights of the same model?"
            )
        if dataset.dtype.kind != "f":
            raise WeightsError(f"{path}: dataset {name!r} is {dataset.dtype}, not floating point")
        return torch.from_numpy(np.asarray(dataset[()], dtype=np.float32))
    except (KeyError, OSError, RuntimeError) as error:  # h5py on what is damaged
        raise WeightsError(
            f"{path}: dataset {name!r} can't be read ({error}); the weights file is damaged"
        ) from error


def _own_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset ``name``, whose bytes stand in this very file: links out of it are never followed."""
    entry: h5py.Group | h5py.Dataset = file
    parts = name.split("/")
    for depth, part in enumerate(parts, 1):
        group = entry
        link = group.get(part, getlink=True)
        entry = None if isinstance(link, h5py.ExternalLink) else group.get(part)
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise WeightsError(
                f"{path}: {name!r} is a link to {link.path!r}; weights must be in the file itself"
            )
        if not isinstance(entry, h5py.Dataset if depth == len(parts) else h5py.Group):
            raise WeightsError(f"{path} lacks the dataset {name!r} that the options call for")
    if entry.external or entry.is_virtual:
        raise WeightsError(
            f"{path}: the bytes of {name!r} are in other files; weights must be in the file itself"
        )
    return entry
