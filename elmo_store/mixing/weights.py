"""Files with the weights of mixes: JSON, safetensors, torch state dicts. What is ambiguous is refused, never guessed.

A weight set is w (logits) or s (normalised weights), one number a layer, and gamma. Layouts:
- JSON: one set ``{"w": […], "gamma": 1.0}`` or several ``{"NAME": {"s": […], "gamma": 1.0}, …}``; a set may have a ``note``,
  which is not read further;
- safetensors and torch files: AllenNLP's names, ``PREFIX.scalar_parameters.0 … L`` and ``PREFIX.gamma``; NAME is the last name of
  PREFIX.
"""

import json
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import msgspec
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from elmo_store.errors import WeightSetError
from elmo_store.format.layout import check_set_names
from elmo_store.format.manifest import WeightSet
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.storage.data import TooLargeError
from elmo_store.storage.filesystems import fetched
from elmo_store.storage.json_values import MOST_JSON_BYTES, convert

UNNAMED = "elmo"  # the name of a set whose file gives it none
TORCH_SUFFIXES = (".th", ".pt", ".pth", ".bin", ".ckpt")
_ALLENNLP = re.compile(r"(?:(?P<prefix>.+)\.)?scalar_parameters\.(?P<layer>[0-9]{1,9})")


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """A weight set as files have it."""

    gamma: float
    w: list[float] | None = None
    s: list[float] | None = None
    note: str | None = None  # what the weights rest on, for people


Tensors = Mapping[str, npt.NDArray[Any]]
Fields = list[tuple[str, Mapping[str, Any]]]  # a set's name, and what the file says of it


def read_weight_sets(
    url: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[WeightSet, ...]:
    """The weight sets of a file, at any URL, in the file's order; its kind is told by the end of its name.

    Raises:
        FileNotFoundError: no such file.
        WeightSetError: of an unknown kind, damaged, or ambiguous; names file and key.
    """
    name = url.rpartition("/")[2]
    try:
        data = fetched(url, storage_options, MOST_JSON_BYTES if name.endswith(".json") else None)
    except TooLargeError as error:
        raise WeightSetError(f"{url}: {error}") from error
    except IsADirectoryError as error:
        raise WeightSetError(f"{url} is a folder: name the file in it") from error
    try:
        sets = tuple(_checked(name, fields) for name, fields in _parsed(name, data))
        if not sets:
            raise ValueError(
                "it holds no scalar mix, which is PREFIX.scalar_parameters.0 … and PREFIX.gamma"
            )
        names = [weight_set.name for weight_set in sets]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"several weight sets are called {', '.join(twins)}: give each its own name"
            )
    except (ValueError, RecursionError) as error:
        raise WeightSetError(f"{url}: {error}") from error
    return sets


def check_layers(weights: Sequence[WeightSet], n_layers: int) -> None:
    """WeightSetError unless every set has one weight for each of the layers 0 … ``n_layers``."""
    for weight_set in weights:
        if len(weight_set.s) != n_layers + 1:
            raise WeightSetError(
                f"the store has {n_layers + 1} layers (layer 0 = x, and {n_layers} of the LSTM), weight set "
                f"{weight_set.name} has {len(weight_set.s)} weights: s = {', '.join(f'{share:.3g}' for share in weight_set.s)}: "
                "they belong to different models"
            )


def _parsed(name: str, data: bytes) -> Fields:
    if name.endswith(".json"):
        return _of_json(data)
    if name.endswith(".safetensors"):
        try:
            return _of_allennlp(load(data))
        except SafetensorError as error:
            raise ValueError(f"it is not a safetensors file: {error}") from error
        except KeyError as error:  # a number type that NumPy lacks
            raise ValueError(
                f"it holds {error.args[0]} numbers: save the weights as float32"
            ) from error
    if name.endswith(TORCH_SUFFIXES):
        return _of_allennlp(_torch_tensors(data))
    raise ValueError(
        f"its name does not say what it is: known are .json, .safetensors, and for torch {', '.join(TORCH_SUFFIXES)}"
    )


def _of_json(data: bytes) -> Fields:
    try:
        value = json.loads(data.decode(), object_pairs_hook=_without_twins)
    except ValueError as error:
        raise ValueError(f"it can't be read: {error}") from error
    if not isinstance(value, dict) or not value:
        raise ValueError('it is not an object like {"w": [0, 0, 0], "gamma": 1.0}')
    return (
        list(value.items())
        if all(isinstance(fields, dict) for fields in value.values())
        else [(UNNAMED, value)]
    )


def _of_allennlp(tensors: Tensors) -> Fields:
    """By AllenNLP's names; all other tensors are ignored."""
    mixes: dict[str, dict[int, Any]] = {}
    for key, tensor in tensors.items():
        if match := _ALLENNLP.fullmatch(key):
            mixes.setdefault(match["prefix"] or "", {})[int(match["layer"])] = _single(tensor, key)
    short = [prefix.rpartition(".")[2] or UNNAMED for prefix in mixes]
    sets: Fields = []
    for (prefix, layers), name in zip(mixes.items(), short, strict=True):
        if sorted(layers) != list(range(len(layers))):
            raise ValueError(
                f"{prefix or 'scalar_parameters'} has layers {sorted(layers)}, not 0, 1, …: save the whole mix"
            )
        key = f"{prefix}.gamma" if prefix else "gamma"
        if key not in tensors:
            raise ValueError(
                f"it has {prefix or 'scalar_parameters'} and no {key}: save the whole mix"
            )
        own_name = name if short.count(name) == 1 else prefix or UNNAMED
        sets.append(
            (
                own_name,
                {
                    "w": [layers[layer] for layer in sorted(layers)],
                    "gamma": _single(tensors[key], key),
                },
            )
        )
    return sets


def _torch_tensors(data: bytes) -> Tensors:
    """Of a state dict, or a dict that has one as ``state_dict``. Nothing in the file is executed."""
    import torch

    try:
        value = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # torch documents none: damaged bytes lead its unpickler into errors of any kind
        raise ValueError(
            f"it can't be read as a torch state dict of plain tensors ({type(error).__name__}): save model.state_dict(), not the "
            "model"
        ) from error
    if isinstance(value, Mapping) and isinstance(value.get("state_dict"), Mapping):
        value = value["state_dict"]
    if not isinstance(value, Mapping):
        raise ValueError(
            f"it holds a {type(value).__name__}, not a state dict: save model.state_dict()"
        )
    return {
        key: tensor.detach().to(torch.float64).numpy()
        for key, tensor in value.items()
        if isinstance(key, str) and isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }


def _checked(name: str, fields: Mapping[str, Any]) -> WeightSet:
    """The set of a mapping with exactly w or s, and gamma; its note is left out."""
    check_set_names([name])
    try:
        found = convert(fields, _Fields)
        if (found.w is None) == (found.s is None):
            raise ValueError("it has both w and s" if found.w else "it has neither w nor s")
        mix = ScalarMix(found.w, s=found.s, gamma=found.gamma)
    except ValueError as error:
        remedy = "a set is gamma and either w (logits, softmaxed) or s (normalised weights), one number per layer"
        raise ValueError(f"set {name}: {error}; {remedy}") from error
    return WeightSet(name, mix.s, mix.gamma, mix.w)


def _single(tensor: npt.NDArray[Any], key: str) -> Any:
    if tensor.size != 1:
        raise ValueError(f"{key} has {tensor.size} numbers, not 1")
    return tensor.item()


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"a key occurs twice among {', '.join(keys)}")
    return dict(pairs)
