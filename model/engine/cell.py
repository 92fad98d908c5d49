"""What a step does beside its products, in plain torch on any device: the fallback of, and the oracle for, the kernels.

`cell_c` and `cell_triton` have the same three functions as one pass over memory each, for CPUs and for GPUs; `select_cell` takes
them where they work. On a GPU shapes are constant and nothing is read back, so that a CUDA graph can hold a step.

Lanes say what they load and save by number: `source` [B] is the slot a lane starts from at this step, -1 = it goes on; `target`
[B] is the slot its state goes to after this step, the last slot = nowhere (nobody ever loads that one). None instead of either:
no lane does.
"""

import logging
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from model.kernels import kernel_module

_LOG = logging.getLogger(__name__)
_KERNELS = {"cpu": "model.engine.cell_c", "cuda": "model.engine.cell_triton"}

NAME = "torch"


class CellBuffers(NamedTuple):
    """What a step's cell reads and writes, for B lanes.

    Attributes:
        gates: [B, 4d] products in the order i, f, g, o; biases are in them or in the table.
        table, table_row: rows [slots, 4d] of which one a lane, table_row [B], is added to the gates; None = nothing.
        c: [B, d] float32, updated.
        slot_c: [slots, d] float32, read by source and written by target.
        source, target: [B] each, or None; see the module.
        hidden: [B, d], gets o · tanh(c) in its own dtype.
        clip: bound on |c|, inf for none.
    """

    gates: Tensor
    table: Tensor | None
    table_row: Tensor
    c: Tensor
    slot_c: Tensor
    source: Tensor | None
    target: Tensor | None
    hidden: Tensor
    clip: float


class OutputBuffers(NamedTuple):
    """What is read and written after a step's projection, for B lanes.

    Attributes:
        projected: [B, p], hidden · W_Pᵀ.
        h: [B, p] view, gets the clipped projection: what recurs.
        slot_h: [slots, p], written by target.
        target: [B], or None; see the module.
        skip: [B, p] view, the layer's input where it is added to the output; None = no skip connection.
        output: float32 [B, p], gets h + skip.
        following: [B, p] view, gets the output too: the next layer's input; None = last layer.
        clip: bound on |h|, inf for none.
    """

    projected: Tensor
    h: Tensor
    slot_h: Tensor
    target: Tensor | None
    skip: Tensor | None
    output: Tensor
    following: Tensor | None
    clip: float


class CellOps(Protocol):
    """This module, or one of kernels with the same functions; stores say its NAME, because last bits differ."""

    @property
    def NAME(self) -> str:
        """What computes: "c", "torch" or "triton"."""

    def load_h(self, h: Tensor, slot_h: Tensor, source: Tensor | None) -> None:
        """See `load_h`."""

    def cell(self, buffers: CellBuffers) -> None:
        """See `cell`."""

    def finish(self, buffers: OutputBuffers) -> None:
        """See `finish`."""


def select_cell(device: torch.device, wanted: Literal["auto", "c", "torch"] = "auto") -> CellOps:
    """What computes the cell on a device: its kernels where they work, else this module, with a log line.

    Raises:
        ValueError: "c" was asked for, and can't be had.
    """
    plain = cast(CellOps, sys.modules[__name__])
    if wanted == "torch":
        return plain
    kernels = kernel_module(_KERNELS[device.type], device)
    if not isinstance(kernels, str):
        return cast(CellOps, kernels)
    if wanted == "c":
        raise ValueError(f"cell is 'c', which can't be had here: {kernels}")
    _LOG.warning("the kernels of the cell are off, computing it with plain torch (slower): %s", kernels)
    return plain


def agrees(compute: Callable[[CellBuffers], None], device: torch.device, tolerance: float) -> bool:
    """Whether a cell gives the numbers of this module's for a small example, on the device."""
    generator = torch.Generator().manual_seed(0)
    gates, c, slot_c = (torch.randn(4, n, generator=generator).to(device) for n in (160, 40, 40))
    source, target = torch.tensor([-1, 0, 1, -1], device=device), torch.tensor([3, 3, 2, 3], device=device)
    results = []
    for function in (cell, compute):
        after, slots, hidden = c.clone(), slot_c.clone(), torch.empty_like(c)
        function(CellBuffers(gates, None, source, after, slots, source, target, hidden, 3.0))
        results.append(torch.cat([after, slots[:3], hidden]))
    return torch.allclose(results[0], results[1], rtol=0, atol=tolerance)


def load_h(h: Tensor, slot_h: Tensor, source: Tensor | None) -> None:
    """h [B, p] ← slot_h [slots, p] where a lane starts from a slot; h may be a view with a longer row stride."""
    if source is not None:
        h.copy_(torch.where((source >= 0)[:, None], slot_h[source.clamp(min=0)], h))


def cell(buffers: CellBuffers) -> None:
    """The LSTM cell of B lanes, in place.

    PyTorch's sigmoid is four times as fast as its tanh on a CPU, so tanh(z) is 2 · sigmoid(2z) - 1 here (2e-7 off at most).
    """
    gates, table, table_row, c, slot_c, source, target, hidden, clip = buffers
    d = c.shape[1]
    total = gates.float() if table is None else torch.index_select(table, 0, table_row).float().add_(gates)  # [B, 4d]
    if source is not None:
        c.copy_(torch.where((source >= 0)[:, None], slot_c[source.clamp(min=0)], c))
    i, f = torch.sigmoid(total[:, :d]), torch.sigmoid(total[:, d : 2 * d])  # [B, d] each
    g, o = _tanh(total[:, 2 * d : 3 * d]), torch.sigmoid(total[:, 3 * d :])  # [B, d] each
    c.mul_(f).addcmul_(i, g).clamp_(-clip, clip)
    if target is not None:
        slot_c[target] = c
    hidden.copy_(_tanh(c).mul_(o))


def _tanh(z: Tensor) -> Tensor:
    return torch.mul(z, 2).sigmoid_().mul_(2).sub_(1)


def finish(buffers: OutputBuffers) -> None:
    """Everything after the projection of B lanes: clip, save, add what skips the layer, pass on."""
    projected, h, slot_h, target, skip, output, following, clip = buffers
    h.copy_(projected.float().clamp_(-clip, clip))
    if target is not None:
        slot_h[target] = h
    output.copy_(h)
    if skip is not None:
        output.add_(skip)
    if following is not None:
        following.copy_(output)
