"""The network in training: parameters under their canonical names, word vectors, one direction's pass.

The same equations as `model.bilm`, arranged for speed. The character CNN sees each distinct word of a batch once, and no more
padding than shows in its result. The recurrence has its gradient written by hand: each step is two products and one pass over
the cell, and the gradients of the weights are one product over all steps at the end; plain autograd over the steps ran at under
a third of this speed.
"""

import logging
import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo_store.format.characters import PADDING_ID
from model.bilm import FORGET_BIAS, highway
from model.engine.cell import kernel_module
from model.engine.products import PackedLinear
from model.engine.word_vectors import merged_convolutions
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.training import cell

_LOG = logging.getLogger(__name__)
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
            scale = math.sqrt(
                (2.0 if name.startswith("conv") and options.activation == "relu" else 1.0) / fan_in
            )
            value = torch.randn(shape, generator=generator) * scale
        parameters[name] = value
    return parameters


@dataclass(frozen=True)
class Network:
    """One biLM under training."""

    options: BiLMOptions  # its shape
    parameters: dict[
        str, Tensor
    ]  # canonical name → float32 leaf (float64 in tests) on the device of the run
    dtype: torch.dtype  # what products are computed in

    @property
    def device(self) -> torch.device:
        return self.parameters["char_embed"].device

    def zero_state(self, lanes: int) -> list[tuple[Tensor, Tensor]]:
        """Of one direction: h [B, p] and c [B, d] for each layer."""
        like, p, d = self.parameters["char_embed"], self.options.projection_dim, self.options.dim
        return [
            (like.new_zeros(lanes, p, dtype=self.dtype), like.new_zeros(lanes, d))
            for _ in range(self.options.n_layers)
        ]

    def word_vectors(self, characters: Tensor) -> Tensor:
        """x [n, p] in `dtype` of words given as ids [n, 50] on the CPU; equal to `model.bilm.char_cnn`."""
        weight, bias, widths = merged_convolutions(self.parameters, self.options)
        activate = torch.relu if self.options.activation == "relu" else torch.tanh
        pooled = convolve(characters, self.parameters["char_embed"], weight, widths)  # [n, filters]
        x = activate(pooled + bias).to(self.dtype)
        tensors = {
            n: value.to(self.dtype)
            for n, value in self.parameters.items()
            if n.startswith(("highway", "proj"))
        }
        for k in range(self.options.n_highway):
            x = highway(x, tensors, f"highway{k}")  # [n, filters]
        return F.linear(x, tensors["proj.weight"], tensors["proj.bias"])

    def direction(
        self, direction: str, x: Tensor, state: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """One direction ("fwd" or "bwd") over a batch's steps, x [T, B, p] in the order in which it reads.

        From the state that the batch before left, h [B, p] and c [B, d] of each layer, to the top layer's outputs [T, B, p] and
        the state to carry, cut off from the gradient.
        """
        carried = []
        clips = self.options.cell_clip, self.options.proj_clip
        for j, (h_0, c_0) in enumerate(state, start=1):
            names = (
                f"lstm.{direction}{j}.{part}"
                for part in ("weight_ih", "weight_hh", "bias", "weight_proj")
            )
            h, c = LSTMRecurrence.apply(
                x, (h_0, c_0), *(self.parameters[name] for name in names), clips
            )
            carried.append((h[-1].detach().clone(), c))
            x = h + x if self.options.use_skip_connections and j > 1 else h
        return x, carried

    def weights(self) -> BiLMWeights:
        """The parameters as they stand, for the inference path and its files."""
        return BiLMWeights(
            self.options,
            {name: value.detach().float().cpu().clone() for name, value in self.parameters.items()},
        )


def convolve(characters: Tensor, char_embed: Tensor, weight: Tensor, widths: Tensor) -> Tensor:
    """The largest product of each filter over all windows of words [n, 50], bias and activation not applied → [n, Σf].

    A window of nothing but padding stands for all others of that kind: one more than the longest word's characters are looked at.
    ``characters``: on the CPU; ``char_embed``: [262, d_char]; ``weight``, ``widths``: as of `merged_convolutions`.
    """
    length, widest = characters.shape[1], weight.shape[1] // char_embed.shape[1]
    windows = min(length, int((characters != PADDING_ID).sum(1).max()) + 1)
    over = max(
        0, windows + widest - 1 - length
    )  # ids that the last windows want behind a word's end
    ids = F.pad(characters[:, : windows + widest - 1].long(), (0, over), value=PADDING_ID).to(
        char_embed.device
    )
    products = (
        table_rows(char_embed, ids.unfold(1, widest, 1)).flatten(2) @ weight.t()
    )  # [n, windows, f]
    if over:
        products = products.masked_fill(
            torch.arange(windows, device=ids.device)[:, None] > length - widths, -torch.inf
        )
    return products.amax(1)


def table_rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table [n, d] by index int64 [...] → [..., d], with a gradient that adds up in one order.

    PyTorch's gradient of an embedding does not on a GPU, and that of indexing does not on a CPU.
    """
    return table[index] if table.is_cuda else F.embedding(index, table)


class LSTMRecurrence(torch.autograd.Function):
    """x [T, B, p] → (h [T, B, p], c after the last step [B, d]); gradients for x and the weights, none for the state.

    x's dtype is the one that products are computed in; the weights may be wider (their gradients are as wide).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [T, B, p]
        state: tuple[
            Tensor, Tensor
        ],  # h [B, p] and c [B, d] before the first step; c is float32 or wider
        weight_ih: Tensor,  # [4d, p], as weight_hh
        weight_hh: Tensor,
        bias: Tensor,  # [4d]
        weight_proj: Tensor,  # [p, d]
        clips: tuple[float, float],  # of the cell and of the projection
    ) -> tuple[Tensor, Tensor]:
        (h_0, c_0), (cell_clip, proj_clip) = state, clips
        steps, batch, p = x.shape
        d = c_0.shape[1]
        w = torch.cat((weight_ih, weight_hh), dim=1).to(x.dtype)  # [4d, 2p]
        w_proj = weight_proj.to(x.dtype)  # [p, d]
        shifted = bias.to(c_0.dtype).clone()  # [4d]
        shifted[d : 2 * d] += FORGET_BIAS
        xh = x.new_empty(steps, batch, 2 * p)
        xh[:, :, :p] = x
        gates = x.new_empty(steps, batch, 4 * d)
        m = x.new_empty(steps, batch, d)
        h = x.new_empty(steps, batch, p)
        c = c_0.new_empty(steps + 1, batch, d)
        c[0] = c_0
        gate_product, projection = _packed(w, batch), _packed(w_proj, batch)
        step, h_t = cell_of(x.device), h_0.to(x.dtype)
        for t in range(steps):
            xh[t, :, p:] = h_t
            step.cell_forward(
                gate_product(xh[t]), shifted, c[t], gates[t], c[t + 1], m[t], cell_clip
            )
            h_t = projection(m[t]).clamp_(-proj_clip, proj_clip)
            h[t] = h_t
        ctx.save_for_backward(xh, gates, m, h, c, w, w_proj)
        ctx.clips = clips
        ctx.dtypes = weight_ih.dtype, weight_proj.dtype
        last_c = c[steps].clone()
        ctx.mark_non_differentiable(last_c)
        return h, last_c

    @staticmethod
    def backward(ctx: Any, dh_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """dh_out [T, B, p] → the gradients of x, weight_ih, weight_hh, bias and weight_proj."""
        xh, gates, m, h, c, w, w_proj = ctx.saved_tensors
        cell_clip, proj_clip = ctx.clips
        steps, batch, p = h.shape
        d = c.shape[2]
        # Where the clip holds, no gradient passes; known for all steps before the loop.
        free = (h.abs() < proj_clip).to(h.dtype)  # [T, B, p]
        dh = (dh_out.to(h.dtype) * free).contiguous()
        dxh = torch.empty_like(xh)
        dc = torch.zeros_like(c[0])
        gate_product, projection, step = (
            _packed(w.t(), batch),
            _packed(w_proj.t(), batch),
            cell_of(h.device),
        )
        for t in reversed(range(steps)):
            if t + 1 < steps:
                dh[t].addcmul_(dxh[t + 1, :, p:], free[t])
            step.cell_backward(gates[t], projection(dh[t]), dc, c[t], c[t + 1], cell_clip)
            dxh[t] = gate_product(gates[t])
        # This way round oneDNN is an eighth faster than with the wide operand turned.
        dw = (
            torch.mm(xh.view(-1, 2 * p).t(), gates.view(-1, 4 * d)).t().to(ctx.dtypes[0])
        )  # [4d, 2p]
        dw_proj = torch.mm(dh.view(-1, p).t(), m.view(-1, d)).to(ctx.dtypes[1])  # [p, d]
        dbias = gates.view(-1, 4 * d).sum(0, dtype=c.dtype).to(ctx.dtypes[0])
        return dxh[:, :, :p], None, dw[:, :p], dw[:, p:], dbias, dw_proj, None


@cache
def cell_of(device: torch.device) -> ModuleType:
    """The module with `cell_forward` and `cell_backward`: Triton's where it compiles for this GPU and gives the same numbers."""
    if device.type != "cuda":
        return cell
    kernels = kernel_module("model.training.cell_triton", device)
    if isinstance(kernels, ModuleType):
        return kernels
    _LOG.warning("training goes on without Triton's kernels (slower): %s", kernels)
    return cell


def _packed(weight: Tensor, rows: int) -> PackedLinear:
    """Weight [out, in] made ready for products with so many rows; packing pays for itself within a few steps."""
    packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    return PackedLinear(weight, None, weight.dtype, rows, packed)
