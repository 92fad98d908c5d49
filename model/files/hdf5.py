"""The published weights.hdf5: reading and writing; `model.files.published` has its layout. Imports h5py and torch."""

import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import torch

from model.errors import WeightsError
from model.files.published import Array, canonical, layout, published_arrays
from model.options import BiLMOptions


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(temporary, "w") as file:
            for name, array in published_arrays({n: t.numpy() for n, t in tensors.items()}, options).items():
                file.create_dataset(name, data=array, dtype=np.float32)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    found: h5py.Group | h5py.Dataset = file
    parts = name.split("/")
    for depth, part in enumerate(parts, 1):
        group = found
        try:
            link = group.get(part, getlink=True)
            found = None if isinstance(link, h5py.ExternalLink) else group.get(part)
        except (KeyError, OSError, RuntimeError) as error:  # h5py on damaged groups
            raise WeightsError(f"{path}: {name!r} can't be read ({error}); the weights file is damaged") from error
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise WeightsError(f"{path}: {name!r} is a link to {link.path!r}; weights must stand in the file itself")
        if not isinstance(found, h5py.Dataset if depth == len(parts) else h5py.Group):
            raise WeightsError(f"{path} lacks the dataset {name!r} that the options call for")
    if found.external or found.is_virtual:
        raise WeightsError(f"{path}: the bytes of {name!r} stand in other files; weights must stand in the file itself")
    return found
