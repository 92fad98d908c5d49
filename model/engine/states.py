"""A call's states in memory: those that are kept, in the store's dtype, one state after the other.

Numbers are converted where they are computed, so that a result crosses to the host, and goes to the store, as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy.typing as npt
import torch
from torch import Tensor

from elmo_store.format.numbers import GREATEST, GREATEST_SCALE, Int8Rows

Dtype = Literal["float16", "float32", "int8"]
CPU_ROWS_AT_ONCE = 512  # that are converted together, so that they stay in the processor's caches


@dataclass(frozen=True)
class Wanted:
    """Which states, and how. ValueError for an unknown dtype."""

    states: tuple[int, ...]  # their numbers among x, fwd1, bwd1, …, in the order wanted
    dtype: Dtype = (
        "float16"  # as stores have it; int8 numbers come with a scale for each state of each row
    )

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"dtype is {self.dtype!r}; known are {', '.join(get_args(Dtype))}")


@dataclass(frozen=True, eq=False)
class States:
    """Rows of states, on the host or a device."""

    wanted: Wanted  # which, and how
    values: Tensor  # [states, rows, p]
    scale: (
        Tensor | None
    )  # float32 [rows, states] of int8; NaN for a state of a row that holds a number that is not finite

    @classmethod
    def empty(
        cls, wanted: Wanted, rows: int, width: int, memory: Callable[[int], Tensor]
    ) -> "States":
        """Rows to be filled, in one block of so many bytes (uint8) that ``memory`` gives."""
        dtype, n = getattr(torch, wanted.dtype), len(wanted.states)
        scale_bytes = -(-4 * rows * n // 8) * 8 if wanted.dtype == "int8" else 0  # whole words
        block = memory(scale_bytes + rows * n * width * dtype.itemsize)
        values, scale = block[scale_bytes:].view(dtype), block[:scale_bytes].view(torch.float32)
        return cls(
            wanted,
            values.view(n, rows, width),
            scale[: rows * n].view(rows, n) if wanted.dtype == "int8" else None,
        )

    def __len__(self) -> int:
        return self.values.shape[1]

    def rows(self, first: int, n: int) -> "States":
        """``n`` of the rows; the same memory."""
        part = slice(first, first + n)
        return States(
            self.wanted, self.values[:, part], None if self.scale is None else self.scale[part]
        )

    def runs(self) -> list[Tensor]:
        """All of it as tensors whose memory has no gaps."""
        return [*self.values] if self.scale is None else [*self.values, self.scale]

    def put(self, state: int, row: Tensor, numbers: Tensor, index: Tensor) -> None:
        """Rows ``row`` [n] of a state are the rows ``index`` [n] of ``numbers`` [any, p] float32; nothing if it is not kept."""
        if state not in self.wanted.states:
            return
        place = self.wanted.states.index(state)
        at_once = CPU_ROWS_AT_ONCE if numbers.device.type == "cpu" else max(1, len(row))
        for to, of in zip(row.split(at_once), index.split(at_once), strict=True):
            picked = numbers.index_select(0, of)  # [≤ at_once, p]
            if self.scale is None:
                converted = picked.to(self.values.dtype)
            else:
                converted, scale = quantised(picked)
                self.scale[:, place].index_copy_(0, to, scale)
            _in_words(self.values[place]).index_copy_(0, to, _in_words(converted))

    def result(self) -> npt.NDArray[Any] | Int8Rows:
        """Views [rows, states, p] of memory on the host."""
        values = self.values.numpy().transpose(1, 0, 2)
        return values if self.scale is None else Int8Rows(values, self.scale.numpy())


def _in_words(rows: Tensor) -> Tensor:
    """Rows [n, p] as words of 8 bytes, where they have whole ones: PyTorch copies rows by index a number at a time."""
    return rows if rows.shape[1] * rows.element_size() % 8 else rows.view(torch.int64)


def quantised(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """`elmo_store.format.numbers.quantized` of rows [n, p] float32 on any device, bit by bit; int8 [n, p] and scales [n].

    What is not finite has the scale NaN: a device is not waited for to find out.
    """
    # Tensors, not numbers: by a number a GPU divides as by its reciprocal, which is not the same.
    greatest, none = (
        torch.full((1,), value, device=numbers.device) for value in (GREATEST, torch.inf)
    )
    most = numbers.abs().amax(dim=-1)
    scale = torch.clamp(most / greatest, max=float(GREATEST_SCALE))
    ratio = numbers / torch.where(scale == 0, none, scale)[:, None]
    return ratio.round_().clamp_(-GREATEST, GREATEST).to(torch.int8), torch.where(
        most.isfinite(), scale, torch.nan
    )
