"""The state that every sentence starts from: zero, or one frozen warm state a model (`model.warm` computes it)."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from elmo_store.format.manifest import start_state_sha256
from model.errors import WeightsError
from model.options import MOST_OPTIONS_BYTES, BiLMOptions


@dataclass(frozen=True, eq=False)
class StartState:
    """What (h, c) a sentence starts from, for each direction and layer; the forward one is index 0."""

    kind: Literal["zero", "warm"]
    h: Tensor  # float32 [2, L, p], the recurrent output, skip connection left out
    c: Tensor  # float32 [2, L, d], the cell

    @classmethod
    def zero(cls, options: BiLMOptions) -> "StartState":
        n_layers = options.n_layers
        return cls(
            "zero",
            torch.zeros(2, n_layers, options.projection_dim),
            torch.zeros(2, n_layers, options.dim),
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of kind, shapes and float32 bytes, as 64 hexadecimal digits."""
        return start_state_sha256(self.kind, self.h.numpy(), self.c.numpy())

    def check(self, options: BiLMOptions) -> None:
        want = (2, options.n_layers, options.projection_dim), (2, options.n_layers, options.dim)
        have = tuple(self.h.shape), tuple(self.c.shape)
        if have != want:
            raise WeightsError(
                f"start state has h, c of shapes {have}, the model has {want}: it belongs to another model"
            )

    def to_bytes(self) -> bytes:
        """A safetensors file with `h` and `c`, the kind in its metadata; equal states are equal bytes."""
        return save(
            {"h": self.h.contiguous(), "c": self.c.contiguous()}, metadata={"kind": self.kind}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "StartState":
        """Read what `to_bytes` wrote. WeightsError: not such a file."""
        try:
            if (size := int.from_bytes(data[:8], "little")) > MOST_OPTIONS_BYTES:
                raise ValueError(
                    f"its header has {size:,} bytes; {MOST_OPTIONS_BYTES:,} are the most"
                )
            tensors = load(data)
            # The library reads metadata from files only; the header is JSON after its length in 8 little-endian bytes.
            header = json.loads(data[8 : 8 + size])
            return cls(header["__metadata__"]["kind"], tensors["h"], tensors["c"])
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise WeightsError(
                f"the start state can't be read: {error!r}; this program did not write it"
            ) from error
