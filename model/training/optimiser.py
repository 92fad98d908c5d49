"""Optimisers and the learning rate's course. Imports torch.

The network's parameters change at every batch: AdamW, or Adagrad as published. Of the softmax only the rows that a
batch touched change, with Adagrad whose accumulator is one number a row (a row's mean square gradient).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

OPTIMISERS = ("adamw", "adagrad")


@dataclass(frozen=True)
class Course:
    """The learning rate's course by tokens: rise, stay, fall to zero in a straight line.

    Attributes:
        warmup: tokens of the rise from zero.
        total: tokens after which the rate is zero; None while no end is known: the rate stays.
        decay_tokens: tokens of the fall, before `total`.
    """

    warmup: int
    total: int | None
    decay_tokens: int

    def factor(self, tokens: int) -> float:
        """What the learning rate is multiplied by after so many tokens."""
        rise = min(1.0, (tokens + 1) / self.warmup) if self.warmup else 1.0
        if self.total is None or not self.decay_tokens:
            return rise
        return rise * min(1.0, max(0.0, (self.total - tokens) / self.decay_tokens))


def make(kind: Literal["adamw", "adagrad"], parameters: dict[str, Tensor], rate: float, decay: float) -> torch.optim.Optimizer:
    """The network's optimiser; weight decay holds for matrices only and for AdamW only."""
    if kind == "adagrad":
        # The accumulator starts at 1.0 as bilm-tf's does: the first steps are then no larger than the gradient.
        return torch.optim.Adagrad(parameters.values(), lr=rate, initial_accumulator_value=1.0)
    matrices = [value for value in parameters.values() if value.ndim > 1]
    vectors = [value for value in parameters.values() if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)


class SoftmaxRows:
    """The softmax Θs, shared by both directions, and its Adagrad.

    Attributes:
        weight: [classes, p]; bias: [classes].
        seen: the accumulator: [classes, 1], one number a row, or element by element as published, [classes, p + 1].
    """

    def __init__(self, weight: Tensor, bias: Tensor, rate: float, each_element: bool = False) -> None:
        """Start with accumulators at 0.1 for rows, 1.0 for elements (bilm-tf)."""
        self.weight, self.bias, self.rate = weight, bias, rate
        n, p = weight.shape
        self.seen = weight.new_full((n, p + 1), 1.0) if each_element else weight.new_full((n, 1), 0.1)

    def step(self, rows: Tensor, gradient: Tensor, bias_gradient: Tensor, factor: float) -> None:
        """Change some rows.

        Args:
            rows: int64 [r], distinct.
            gradient: [r, p], bias_gradient: [r].
            factor: of the learning rate.
        """
        both = torch.cat((gradient, bias_gradient[:, None]), dim=1)  # [r, p + 1]
        squares = both.square()
        seen = self.seen[rows] + (squares if self.seen.shape[1] > 1 else squares.mean(1, keepdim=True))
        self.seen[rows] = seen
        change = both * (-self.rate * factor / seen.sqrt())  # [r, p + 1]
        self.weight.index_add_(0, rows, change[:, :-1])
        self.bias.index_add_(0, rows, change[:, -1])


def sum_rows(parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Gather gradients of rows: parts of (rows [r], gradient [r, p], bias gradient [r]), rows repeated within and
    across parts, to distinct rows with their sums.
    """
    rows, place = torch.unique(torch.cat([part[0] for part in parts]), return_inverse=True)
    gradient = torch.zeros(len(rows), parts[0][1].shape[1], dtype=parts[0][1].dtype, device=rows.device)
    bias_gradient = torch.zeros(len(rows), dtype=parts[0][2].dtype, device=rows.device)
    gradient.index_add_(0, place, torch.cat([part[1] for part in parts]))
    bias_gradient.index_add_(0, place, torch.cat([part[2] for part in parts]))
    return rows, gradient, bias_gradient
