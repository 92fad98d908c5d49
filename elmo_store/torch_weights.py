"""Weights of mixes from torch state dicts; besides `elmo_store.torch` the one module that needs torch.

May import torch, mix_weights, manifest, errors.
"""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch

from elmo_store.errors import WeightSetError
from elmo_store.manifest import WeightSet
from elmo_store.mix_weights import parse_allennlp


def parse_torch(data: bytes, where: str) -> tuple[WeightSet, ...]:
    """The weight sets of a torch file's bytes: a state dict, or a dict that has one as ``state_dict``, by AllenNLP's names.

    Nothing in the file is executed (``weights_only=True``). WeightSetError, naming ``where``, for anything else.
    """
    try:
        value = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch documents none: damaged bytes lead its unpickler into errors of any kind
        raise WeightSetError(
            f"{where} can't be read as a torch state dict of plain tensors ({type(error).__name__}): save "
            "model.state_dict(), not the model"
        ) from error
    if isinstance(value, Mapping) and isinstance(value.get("state_dict"), Mapping):
        value = value["state_dict"]
    if not isinstance(value, Mapping):
        raise WeightSetError(f"{where} holds a {type(value).__name__}, not a state dict")
    tensors = {
        key: tensor.detach().to(torch.float64).numpy()
        for key, tensor in value.items()
        if isinstance(key, str) and isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    return parse_allennlp(tensors, where)


def read_torch_mix_weights(path: str | Path) -> tuple[WeightSet, ...]:
    """The weight sets of a torch file on this machine's disk. WeightSetError as `parse_torch`."""
    return parse_torch(Path(path).read_bytes(), str(path))
