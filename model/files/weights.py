"""A biLM's weights: one set of canonical tensors, whatever file they came from.

Canonical names and shapes are those of `BiLMOptions.tensor_shapes`: float32 on the CPU, torch orientation (out, in),
gates in torch's order input, forget, cell, output. The bias is the published one: TensorFlow adds 1.0 to the forget
gate when it computes, and so do our engines, so that files round-trip bit by bit.

Our own form is one safetensors file: the canonical tensors; the dictionaries of a model that has them as one more tensor, of
bytes, `lexicon`; and in the metadata one key, `options`, the published options.json as text. One key, because safetensors does
not fix the order of several, and equal models are equal files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from model.characters import Lexicon
from model.errors import OptionsError, WeightsError
from model.files import hdf5, locate
from model.options import BiLMOptions, check_regular, options_in, read_options

_LEXICON = "lexicon"


@dataclass(frozen=True, eq=False)
class BiLMWeights:
    """Options and tensors of one biLM, checked against each other."""

    options: BiLMOptions
    tensors: dict[
        str, torch.Tensor
    ]  # canonical name → float32 CPU tensor; see `BiLMOptions.tensor_shapes`
    lexicon: Lexicon | None = None  # of a model whose alphabet is "characters"

    def __post_init__(self) -> None:
        shapes = self.options.tensor_shapes()
        if missing := sorted(shapes.keys() - self.tensors.keys()):
            raise WeightsError(
                f"weights lack {len(missing)} tensor(s) that the options call for: {', '.join(missing[:5])}"
            )
        if extra := sorted(self.tensors.keys() - shapes.keys()):
            raise WeightsError(
                f"weights hold {len(extra)} tensor(s) that the options don't know: {', '.join(extra[:5])}"
            )
        for name, shape in shapes.items():
            tensor = self.tensors[name]
            if tuple(tensor.shape) != shape:
                raise WeightsError(
                    f"tensor {name!r} has shape {tuple(tensor.shape)}, the options say {shape}; "
                    "are these options.json and weights of the same model?"
                )
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
                raise WeightsError(
                    f"tensor {name!r} is {tensor.dtype} on {tensor.device}, not float32 on the CPU"
                )
            if not _all_finite(tensor):
                raise WeightsError(
                    f"tensor {name!r} holds NaN or infinity; the weights file is damaged"
                )
        self._check_lexicon()
        if self.options.alphabet == "bytes" and bool(self.tensors["char_embed"][0].any()):
            raise WeightsError(
                "row 0 of 'char_embed' is not zero; it stands for padding and must be"
            )

    def _check_lexicon(self) -> None:
        if (self.lexicon is None) != (self.options.alphabet == "bytes"):
            has = "no dictionaries" if self.lexicon is None else "dictionaries"
            raise WeightsError(
                f"the options say that the alphabet is {self.options.alphabet!r}, and there are {has}"
            )
        if self.lexicon is not None:
            rows_of_tables = self.options.n_characters, self.options.n_words
            tables = ("character", self.lexicon.characters), ("word", self.lexicon.words)
            for (what, table), rows in zip(tables, rows_of_tables, strict=True):
                if max(table.values(), default=0) >= max(rows, 1):
                    raise WeightsError(
                        f"the {what} dictionary gives rows up to {max(table.values())}, the table has {rows}"
                    )

    @cached_property
    def fingerprint(self) -> str:
        """'sha256:…' of the options and of every tensor's float32 bytes: the same from HDF5 and from safetensors."""
        digest = hashlib.sha256(json.dumps(self.options.to_dict(), sort_keys=True).encode())
        for name in sorted(self.tensors):
            digest.update(f"\n{name} {list(self.tensors[name].shape)}\n".encode())
            digest.update(self.tensors[name].contiguous().numpy().data)
        if self.lexicon is not None:
            digest.update(b"\nlexicon\n" + self.lexicon.to_bytes())
        return f"sha256:{digest.hexdigest()}"

    @property
    def n_parameters(self) -> int:
        """Count of all numbers, the padding row left out."""
        padding = self.options.char_embedding_dim if self.options.alphabet == "bytes" else 0
        return sum(t.numel() for t in self.tensors.values()) - padding

    def direction(self, direction: Literal["fwd", "bwd"], layer: int) -> dict[str, torch.Tensor]:
        """The four tensors of one LSTM layer: weight_ih, weight_hh, bias, weight_proj; layer counts from 1."""
        prefix = f"lstm.{direction}{layer}."
        return {
            name.removeprefix(prefix): t
            for name, t in self.tensors.items()
            if name.startswith(prefix)
        }

    @classmethod
    def load(cls, folder_or_url: str, *, options: str | None = None) -> "BiLMWeights":
        """Load a folder (options.json beside weights.safetensors or weights.hdf5), or one .safetensors or .hdf5 file.

        Any fsspec URL will do; what is not on a local disk is copied to the cache first. ``options``: a file in place of the
        options beside.

        Raises:
            UnknownModelError: nothing is there.
            WeightsError, OptionsError: what is there can't be used.
        """
        weights, beside = locate.find(folder_or_url)
        path = beside if options is None else locate.fetch(options)
        chosen = None if path is None else read_options(path)
        if weights.suffix.lower() == ".safetensors":
            return cls.load_safetensors(weights, chosen)
        if chosen is None:
            raise OptionsError(
                f"{folder_or_url} has no options.json; HDF5 weights can't be read without one"
            )
        return cls(chosen, hdf5.read(weights, chosen))

    @classmethod
    def load_safetensors(
        cls, path: str | Path, options: BiLMOptions | None = None
    ) -> "BiLMWeights":
        """Load a file that `save_safetensors` wrote; its metadata hold the options.

        `options`, where given, stand in for options that the file does not hold, and must equal those that it does.
        """
        stored, tensors, lexicon = _read_safetensors(Path(path))
        if stored is not None and options is not None and stored != options:
            raise OptionsError(
                f"{path} holds other options than the options.json beside it; remove the wrong one"
            )
        chosen = stored or options
        if chosen is None:
            raise OptionsError(
                f"{path} has no 'options' in its metadata and no options.json beside it; add one"
            )
        return cls(chosen, tensors, lexicon)

    def save_hdf5(self, folder: str | Path) -> None:
        """Write options.json and weights.hdf5 in the published layout, as AllenNLP and bilm-tf read them.

        WeightsError for a model of another alphabet, which that layout has no place for.
        """
        if self.lexicon is not None:
            raise WeightsError(
                "weights.hdf5 has no place for a model's own characters and words: write safetensors"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        hdf5.write(folder / "weights.hdf5", self.options, self.tensors)
        (folder / "options.json").write_text(
            json.dumps(self.options.to_dict(), indent=2) + "\n", encoding="utf-8"
        )

    def save_safetensors(
        self, path: str | Path, dtype: Literal["float32", "float16"] = "float32"
    ) -> None:
        """Write one file, the options in its metadata; float16 halves it and makes another model (new fingerprint)."""
        data = self.to_safetensors(dtype)
        with locate.replacing(Path(path)) as temporary:
            temporary.write_bytes(data)

    def to_safetensors(self, dtype: Literal["float32", "float16"] = "float32") -> bytes:
        """The file of `save_safetensors` as bytes. WeightsError: a value that float16 can't hold."""
        stored = {
            name: tensor.to(getattr(torch, dtype)).contiguous()
            for name, tensor in self.tensors.items()
        }
        for name, tensor in stored.items():
            if not _all_finite(tensor):
                raise WeightsError(f"tensor {name!r} has values beyond {dtype}; store float32")
        if self.lexicon is not None:
            stored[_LEXICON] = torch.frombuffer(
                bytearray(self.lexicon.to_bytes()), dtype=torch.uint8
            )
        return save(stored, metadata={"options": json.dumps(self.options.to_dict())})


def _read_safetensors(
    path: Path,
) -> tuple[BiLMOptions | None, dict[str, torch.Tensor], Lexicon | None]:
    """Options (None if the file holds none), canonical tensors, converted to float32, and the lexicon of a model that has one.

    Raises:
        WeightsError: not a safetensors file, or a tensor not of floating point.
        OptionsError: options that are not a biLM's.
    """
    check_regular(path, WeightsError)
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 (the file is not a mapping)
                tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} can't be read as safetensors ({error})") from error
    bytes_of = (
        tensors.pop(_LEXICON)
        if _LEXICON in tensors and tensors[_LEXICON].dtype == torch.uint8
        else None
    )
    lexicon = None if bytes_of is None else Lexicon.from_bytes(bytes_of.numpy().tobytes())
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise WeightsError(f"{path}: tensor {name!r} is {tensor.dtype}, not floating point")
    return (
        _options(path, metadata),
        {name: tensor.float() for name, tensor in tensors.items()},
        lexicon,
    )


def _options(path: Path, metadata: Mapping[str, str]) -> BiLMOptions | None:
    if "options" not in metadata:
        return None
    where = f"{path}: the 'options' of its metadata"
    try:
        return options_in(json.loads(metadata["options"]), where)
    except (json.JSONDecodeError, RecursionError) as error:
        raise OptionsError(f"{where} can't be read as JSON: {error}") from error


def _all_finite(tensor: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite; one pass without a mask of the tensor's size."""
    return all(bool(torch.isfinite(bound)) for bound in torch.aminmax(tensor))
