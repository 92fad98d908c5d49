"""What a step does beside its products, in plain torch on any device: the fallback of, and the oracle for, the kernels.

`cell_c` and `cell_triton` have the same functions as one pass over memory each, for CPUs and for GPUs. On a GPU shapes are
constant and nothing is read back, so that a CUDA graph can hold a step.
"""

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
_KERNELS = {"cpu": "model.engine.cell_c", "cuda": "model.engine.cell_triton"}

NAME = "torch"


class CellBuffers(NamedTuple):
    """What a step's cell reads and writes, for B lanes."""

    gates: Tensor  # [B, 4d] products in the order i, f, g, o of d cells; biases are in them or in the table
    table: (
        Tensor | None
    )  # [slots, 4d], of which one row a lane is added to the gates; None = nothing
    table_row: Tensor  # int64 [B]
    c: Tensor  # [B, d] float32, updated
    begins: (
        Tensor | None
    )  # int64 [B]: 1 where a lane begins anew at this step, 0 where it goes on; None = no lane begins
    begin_c: Tensor  # [d] float32, what a lane begins from
    hidden: Tensor  # [B, d], gets o · tanh(c) in its own dtype
    clip: float  # bound on |c|, inf for none


class OutputBuffers(NamedTuple):
    """What is read and written after a step's projection, for B lanes."""

    projected: Tensor  # [B, p], hidden · W_Pᵀ
    h: Tensor  # [B, p] view, gets the clipped projection: what recurs
    skip: (
        Tensor | None
    )  # [B, p] view, the layer's input where it is added to the output; None = no skip connection
    output: Tensor  # float32 [B, p], gets h + skip
    following: (
        Tensor | None
    )  # [B, p] view, gets the output too: the next layer's input; None = last layer
    clip: float  # bound on |h|, inf for none


def kernel_module(name: str, device: torch.device) -> ModuleType | str:
    """A module of kernels, or why it can't be used on the device; its own `check` computes an example."""
    try:
        module = import_module(name)
        right = module.check(device)
    except ImportError as error:
        return f"it is not installed ({error})"
    except (
        Exception
    ) as error:  # a compiler has many ways to fail, and none of them must stop the job
        return f"Triton can't compile it here: {error}"
    return module if right else "it gave wrong numbers"


def select_cell(device: torch.device, wanted: Literal["auto", "c", "torch"] = "auto") -> ModuleType:
    """The module with `cell` and `finish` for a device: its kernels where they work, else this one, with a log line.

    Stores say its NAME, because last bits differ. ValueError: "c" was asked for, and can't be had.
    """
    plain = sys.modules[__name__]
    if wanted == "torch":
        return plain
    kernels = kernel_module(_KERNELS[device.type], device)
    if not isinstance(kernels, str):
        return kernels
    if wanted == "c":
        raise ValueError(f"cell is 'c', which can't be had here: {kernels}")
    _LOG.warning(
        "the kernels of the cell are off, computing it with plain torch (slower): %s", kernels
    )
    return plain


def agrees(compute: Callable[[CellBuffers], None], device: torch.device, tolerance: float) -> bool:
    """Whether a cell gives the numbers of this module's for a small example, on the device."""
    generator = torch.Generator().manual_seed(0)
    gates, c = (torch.randn(4, n, generator=generator).to(device) for n in (160, 40))
    begin_c, begins = (
        torch.randn(40, generator=generator).to(device),
        torch.tensor([0, 1, 1, 0], device=device),
    )
    results = []
    for function in (cell, compute):
        after, hidden = c.clone(), torch.empty_like(c)
        function(CellBuffers(gates, None, begins, after, begins, begin_c, hidden, 3.0))
        results.append(torch.cat([after, hidden]))
    return torch.allclose(results[0], results[1], rtol=0, atol=tolerance)


def load_h(h: Tensor, begin_h: Tensor, begins: Tensor | None) -> None:
    """h [B, p] ← begin_h [p] where a lane begins; h may be a view with a longer row stride."""
    if begins is not None:
        h.copy_(torch.where((begins > 0)[:, None], begin_h, h))


def cell(buffers: CellBuffers) -> None:
    """The LSTM cell of B lanes, in place.

    PyTorch's sigmoid is four times as fast as its tanh on a CPU, so tanh(z) is 2 · sigmoid(2z) - 1 here (2e-7 off at most).
    """
    gates, table, table_row, c, begins, begin_c, hidden, clip = buffers
    d = c.shape[1]
    total = (
        gates.float()
        if table is None
        else torch.index_select(table, 0, table_row).float().add_(gates)
    )  # [B, 4d]
    if begins is not None:
        c.copy_(torch.where((begins > 0)[:, None], begin_c, c))
    i, f = torch.sigmoid(total[:, :d]), torch.sigmoid(total[:, d : 2 * d])  # [B, d] each
    g, o = _tanh(total[:, 2 * d : 3 * d]), torch.sigmoid(total[:, 3 * d :])  # [B, d] each
    c.mul_(f).addcmul_(i, g).clamp_(-clip, clip)
    hidden.copy_(_tanh(c).mul_(o))


def _tanh(z: Tensor) -> Tensor:
    return torch.mul(z, 2).sigmoid_().mul_(2).sub_(1)


def finish(buffers: OutputBuffers) -> None:
    """Everything after the projection of B lanes: clip, add what skips the layer, pass on."""
    projected, h, skip, output, following, clip = buffers
    h.copy_(projected.float().clamp_(-clip, clip))
    output.copy_(h)
    if skip is not None:
        output.add_(skip)
    if following is not None:
        following.copy_(output)
