"""The cell and what follows a projection, of `model.engine.cell`, in C for CPUs: one pass over memory each.

The extension `model.engine._lstm` is built with the package where there is a C compiler; without it this module can't be
imported, and the engine computes with `cell`, slower. The best instruction set that the processor has is taken at run time
(AVX-512, AVX2, or what the compiler takes for any processor); all of them give the same bytes, of which the last bits differ
from PyTorch's: at most 5e-7 off (`tests/model/engine/test_cell.py`).
"""

import ctypes
import importlib
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from model.engine.cell import CellBuffers, OutputBuffers, agrees

NAME = "c"
_EXTENSION: Any = importlib.import_module("model.engine._lstm")
VARIANTS: tuple[str, ...] = (
    _EXTENSION.variants()
)  # instruction sets that this processor can run, best first


# The extension computes with PyTorch's own OpenMP threads, where its runtime is the one of GCC; else one thread computes.
with suppress(AttributeError, OSError, TypeError):
    _process = ctypes.CDLL(None)
    _functions = (_process.GOMP_parallel, _process.omp_get_thread_num, _process.omp_get_num_threads)
    _EXTENSION.use_threads(
        *(ctypes.cast(function, ctypes.c_void_p).value for function in _functions)
    )


def check(device: torch.device) -> bool:
    """Whether the cell gives the numbers of `cell.cell`."""
    return agrees(cell, device, 2e-6)


def cell(buffers: CellBuffers, variant: int = 0) -> None:
    """See `cell.cell`; contiguous. variant: which of `VARIANTS` computes."""
    gates, table, table_row, c, begins, begin_c, hidden, clip = buffers
    pointers = _pointers(gates, table, table_row, c, begins, begin_c, hidden)
    _EXTENSION.cell(
        variant, torch.get_num_threads(), gates.dtype == torch.bfloat16, *c.shape, *pointers, clip
    )


def finish(buffers: OutputBuffers, variant: int = 0) -> None:
    """See `cell.finish`; contiguous but for the rows of h, skip and following. variant: which of `VARIANTS` computes."""
    projected, h, skip, output, following, clip = buffers
    strides = [0 if tensor is None else tensor.stride(0) for tensor in (h, skip, following)]
    pointers = _pointers(projected, h, skip, output, following)
    _EXTENSION.finish(
        variant, projected.dtype == torch.bfloat16, *projected.shape, *strides, *pointers, clip
    )


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
