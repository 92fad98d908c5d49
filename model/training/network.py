"""The network in training: parameters under their canonical names, word vectors, one direction's pass. Imports torch.

The same equations as `model.bilm`, arranged for speed: the character CNN sees each distinct word
of a batch once and no more padding than shows in its result; the recurrence has its gradient written by hand.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.training.convolution import convolve
from model.training.recurrence import LSTMRecurrence

CARRY_BIAS = -2.0  # a highway layer starts by mostly passing its input through, as in bilm-tf


def initial_parameters(options: BiLMOptions, seed: int) -> dict[str, Tensor]:
    """Random parameters, float32, under the names and in the shapes of `BiLMOptions.tensor_shapes`."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, shape in options.tensor_shapes().items():
        kind = name.split(".")[-1]
        if name == "char_embed":
            value = torch.rand(shape, generator=generator) * 2 - 1
            value[0] = 0.0  # padding of whole words
        elif kind == "bias":
            value = torch.full(shape, CARRY_BIAS if ".carry." in name else 0.0)
        else:
            fan_in = math.prod(shape[1:])
            if name.endswith(("weight_ih", "weight_hh")):
                fan_in *= 2  # both halves feed the same gates
            scale = math.sqrt((2.0 if name.startswith("conv") and options.activation == "relu" else 1.0) / fan_in)
            value = torch.randn(shape, generator=generator) * scale
        parameters[name] = value
    return parameters


@dataclass(frozen=True)
class Network:
    """One biLM under training.

    Attributes:
        options: its shape.
        parameters: canonical name → float32 leaf (float64 in tests) on the device of the run.
        dtype: what products are computed in.
    """

    options: BiLMOptions
    parameters: dict[str, Tensor]
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters["char_embed"].device

    def zero_state(self, lanes: int) -> list[tuple[Tensor, Tensor]]:
        """Of one direction: h [B, p] and c [B, d] for each layer."""
        wide = self.parameters["char_embed"].dtype
        return [
            (
                torch.zeros(lanes, self.options.projection_dim, dtype=self.dtype, device=self.device),
                torch.zeros(lanes, self.options.dim, dtype=wide, device=self.device),
            )
            for _ in range(self.options.n_layers)
        ]

    def word_vectors(self, characters: Tensor) -> Tensor:
        """x [n, p] in `dtype` of words given as int64 ids [n, 50]; equal to `model.bilm.char_cnn`."""
        n_conv = len(self.options.filters)
        weights = [self.parameters[f"conv{i}.weight"] for i in range(n_conv)]
        bias = torch.cat([self.parameters[f"conv{i}.bias"] for i in range(n_conv)])
        activate = torch.relu if self.options.activation == "relu" else torch.tanh
        pooled = convolve(characters, self.parameters["char_embed"], weights)  # [n, filters]
        x = activate(pooled + bias).to(self.dtype)
        for k in range(self.options.n_highway):
            x = self._highway(x, f"highway{k}")
        return self._linear(x, "proj")

    def _highway(self, x: Tensor, name: str) -> Tensor:
        carry = torch.sigmoid(self._linear(x, f"{name}.carry"))  # [n, filters]
        return carry * torch.relu(self._linear(x, f"{name}.transform")) + (1 - carry) * x

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return F.linear(x, weight.to(self.dtype), bias.to(self.dtype))

    def direction(
        self, direction: str, x: Tensor, state: list[tuple[Tensor, Tensor]], drop: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """One direction over a batch's steps.

        Args:
            direction: "fwd" or "bwd".
            x: [T, B, p] in the order in which this direction reads.
            state: h [B, p] and c [B, d] for each layer, from the batch before.
            drop: dropout, for x and every layer's output.

        Returns:
            the top layer's outputs [T, B, p], and the state to carry, cut off from the gradient.
        """
        carried = []
        clips = self.options.cell_clip, self.options.proj_clip
        x = drop(x) if drop else x
        for j, (h_0, c_0) in enumerate(state, start=1):
            names = (f"lstm.{direction}{j}.{part}" for part in ("weight_ih", "weight_hh", "bias", "weight_proj"))
            h, c = LSTMRecurrence.apply(x, h_0, c_0, *(self.parameters[name] for name in names), *clips)
            carried.append((h[-1].detach().clone(), c))
            h = drop(h) if drop else h
            x = h + x if self.options.use_skip_connections and j > 1 else h
        return x, carried

    def weights(self) -> BiLMWeights:
        """The parameters as they stand, for the inference path and its files."""
        return BiLMWeights(self.options, {name: value.detach().float().cpu().clone() for name, value in self.parameters.items()})
