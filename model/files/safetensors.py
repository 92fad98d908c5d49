"""A biLM as one safetensors file, its options inside the metadata.

The tensors have their canonical names (`BiLMOptions.tensor_shapes`); the dictionaries of a model that has them are one more
tensor, of bytes, `lexicon`. The metadata hold one key, `options`: the published options.json as text. One key, because
safetensors does not fix the order of several, and equal models are equal files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from model.characters import Lexicon
from model.errors import OptionsError, WeightsError
from model.options import MOST_OPTIONS_BYTES, BiLMOptions

_LEXICON = "lexicon"
_DTYPES = {"float32": torch.float32, "float16": torch.float16}


def read(path: Path) -> tuple[BiLMOptions | None, dict[str, torch.Tensor], Lexicon | None]:
    """Options (None if the file holds none), canonical tensors, converted to float32, and the lexicon of a model that has one.

    Raises:
        WeightsError: not a safetensors file, or a tensor not of floating point.
        OptionsError: options that are no biLM's.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} can't be read as safetensors ({error})") from error
    bytes_of = tensors.pop(_LEXICON) if _LEXICON in tensors and tensors[_LEXICON].dtype == torch.uint8 else None
    lexicon = None if bytes_of is None else Lexicon.from_bytes(bytes_of.numpy().tobytes())
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise WeightsError(f"{path}: tensor {name!r} is {tensor.dtype}, not floating point")
    return _options(path, metadata), {name: tensor.float() for name, tensor in tensors.items()}, lexicon


def stored_options(path: Path) -> BiLMOptions | None:
    """The options that a file holds, its tensors unread. Errors as of `read`."""
    try:
        with safe_open(path, framework="pt") as file:
            return _options(path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} can't be read as safetensors ({error})") from error


def _options(path: Path, metadata: Mapping[str, str]) -> BiLMOptions | None:
    if "options" not in metadata:
        return None
    if (size := len(metadata["options"])) > MOST_OPTIONS_BYTES:
        raise OptionsError(f"{path}: the 'options' of its metadata have {size:,} characters; {MOST_OPTIONS_BYTES:,} are the most")
    try:
        return BiLMOptions.from_dict(json.loads(metadata["options"]))
    except (ValueError, RecursionError) as error:  # a JSONDecodeError or an OptionsError, values nested too deeply
        raise OptionsError(f"{path}: the 'options' of its metadata can't be used: {error}") from error


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite; one pass without a mask of the tensor's size."""
    return all(bool(torch.isfinite(bound)) for bound in torch.aminmax(tensor))


def encode(
    options: BiLMOptions,
    tensors: Mapping[str, torch.Tensor],
    dtype: Literal["float32", "float16"],
    lexicon: Lexicon | None = None,
) -> bytes:
    """The file's bytes. WeightsError: a value that float16 can't hold."""
    if dtype not in _DTYPES:
        raise WeightsError(f"dtype {dtype!r} is unknown; weights are stored as {' or '.join(_DTYPES)}")
    stored = {name: tensor.to(_DTYPES[dtype]).contiguous() for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        if not all_finite(tensor):
            raise WeightsError(f"tensor {name!r} has values beyond {dtype}; store float32")
    if lexicon is not None:
        stored[_LEXICON] = torch.frombuffer(bytearray(lexicon.to_bytes()), dtype=torch.uint8)
    return save(stored, metadata={"options": json.dumps(options.to_dict())})
