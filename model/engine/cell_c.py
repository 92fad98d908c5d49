"""The three functions of `model.engine.cell` in C, for CPUs: one pass over memory each.

The extension `model.engine._cell` is built with the package where there is a C compiler; `problem` says why it can't be used,
and the engine then computes with `cell`, slower. The best instruction set that the processor has is taken at run time (AVX-512,
AVX2, or what the compiler takes for any processor); all of them give the same bytes, of which the last bits differ from
PyTorch's: at most 5e-7 off (`tests/model/test_cell.py`).
"""

import ctypes
import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from model.engine.cell import CellBuffers, OutputBuffers, agrees

__all__ = ["CellC", "problem", "variants"]


@functools.cache
def _extension() -> ModuleType | str:
    """The extension, proved on a small cell, or why there is none."""
    try:
        extension = importlib.import_module("model.engine._cell")
    except ImportError as error:
        return f"the C extension is not there ({error}); install a wheel, or a C compiler before building"
    _share_threads(extension)
    return extension


def _share_threads(extension: Any) -> None:
    """Hand PyTorch's own OpenMP threads to the extension, where its runtime is the one of GCC; else one thread computes."""
    try:
        process = ctypes.CDLL(None)
        functions = (process.GOMP_parallel, process.omp_get_thread_num, process.omp_get_num_threads)
    except (AttributeError, OSError, TypeError):
        return
    extension.use_threads(*(ctypes.cast(function, ctypes.c_void_p).value for function in functions))


@functools.cache
def problem() -> str | None:
    """Why the C cell can't be used here, or None where it can: it is compared with `cell`."""
    extension = _extension()
    if isinstance(extension, str):
        return extension
    return None if agrees(CellC(), torch.device("cpu"), 2e-6) else "the C cell gave wrong numbers"


def variants() -> tuple[str, ...]:
    """The instruction sets that this processor can run, best first; none without the extension."""
    extension = _extension()
    return () if isinstance(extension, str) else tuple(extension.variants())


class CellC:
    """`model.engine.cell.CellOps` in C.

    Args:
        variant: which of the extension's instruction sets, 0 = the best.

    Raises:
        RuntimeError: there is no extension here.
    """

    NAME = "c"

    def __init__(self, variant: int = 0) -> None:
        extension = _extension()
        if isinstance(extension, str):
            raise RuntimeError(extension)
        self._extension: Any = extension
        self._variant = variant

    def load_h(self, h: Tensor, slot_h: Tensor, source: Tensor | None) -> None:
        """See `cell.load_h`."""
        if source is not None:
            size = h.element_size()
            lanes, p = h.shape
            self._extension.load_h(lanes, p * size, h.stride(0) * size, h.data_ptr(), slot_h.data_ptr(), source.data_ptr())

    def cell(self, buffers: CellBuffers) -> None:
        """See `cell.cell`; all contiguous."""
        gates, table, table_row, c, slot_c, source, target, hidden, clip = buffers
        lanes, d = c.shape
        self._extension.cell(
            self._variant,
            torch.get_num_threads(),
            gates.dtype == torch.bfloat16,
            lanes,
            d,
            len(slot_c) - 1,
            gates.data_ptr(),
            _address(table),
            table_row.data_ptr(),
            c.data_ptr(),
            slot_c.data_ptr(),
            _address(source),
            _address(target),
            hidden.data_ptr(),
            clip,
        )

    def finish(self, buffers: OutputBuffers) -> None:
        """See `cell.finish`; contiguous but for the rows of h, skip and following."""
        projected, h, slot_h, target, skip, output, following, clip = buffers
        lanes, p = projected.shape
        self._extension.finish(
            self._variant,
            projected.dtype == torch.bfloat16,
            lanes,
            p,
            h.stride(0),
            0 if skip is None else skip.stride(0),
            0 if following is None else following.stride(0),
            len(slot_h) - 1,
            projected.data_ptr(),
            h.data_ptr(),
            slot_h.data_ptr(),
            _address(target),
            _address(skip),
            output.data_ptr(),
            _address(following),
            clip,
        )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
