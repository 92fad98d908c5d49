"""The character convolutions with their maximum, for training. Imports torch and the kernels.

A window of w characters times a filter is a sum of w numbers, each known from its character and its place in the window
alone: with 262 characters these are looked up in a small table instead of multiplied out. Equations: `model.bilm`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.training import kernels

PADDING = 261  # the id of model.characters that fills a word's row behind its end marker


def convolve(characters: Tensor, char_embed: Tensor, weights: Sequence[Tensor], *, groups: int = 3) -> Tensor:
    """The largest product of each filter over all windows of a word, bias and activation not applied.

    Args:
        characters: int64 ids [n, 50].
        char_embed: [262, d_char].
        weights: of each convolution, [f, d_char, width].
        groups: by length, that the plain form takes words in.

    Returns:
        [n, Σf] in char_embed's dtype.
    """
    used = (characters != PADDING).sum(1)  # [n]
    if char_embed.dtype == torch.float32 and char_embed.device.type == "cpu" and kernels.compiled():
        table = torch.cat([char_embed @ weight.permute(1, 2, 0).flatten(1) for weight in weights], dim=1)  # [262, S]
        return _LookUp.apply(table, characters.to(torch.int16), used, [(w.shape[2], w.shape[0]) for w in weights])
    widest = max(weight.shape[2] for weight in weights)
    order = torch.argsort(used, stable=True)
    pooled = []
    for part in order.tensor_split(groups):
        if len(part):
            # One window of nothing but padding is kept: it stands for all the others.
            keep = min(characters.shape[1], int(used[part[-1]]) + widest)
            vectors = F.embedding(characters[part, :keep], char_embed).transpose(1, 2)  # [n, d_char, keep]
            pooled.append(torch.cat([F.conv1d(vectors, weight).amax(2) for weight in weights], dim=1))  # [n, Σf]
    return torch.cat(pooled)[torch.argsort(order)]


class _LookUp(torch.autograd.Function):
    """table [262, S], ids int16 [n, 50], used int64 [n], shapes (width, count) of each convolution → [n, Σ counts]."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, used: Tensor, shapes: list[tuple[int, int]]) -> Tensor:
        """See the class."""
        best, where = kernels.conv_max(table.detach().contiguous(), ids, used, shapes)
        ctx.save_for_backward(ids, where)
        ctx.shapes, ctx.table_shape = shapes, table.shape
        return best

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """gradient [n, Σ counts] → that of the table."""
        ids, where = ctx.saved_tensors
        dtable = gradient.new_zeros(ctx.table_shape)
        kernels.conv_max_backward(gradient.contiguous(), ids, where, ctx.shapes, dtable)
        return dtable, None, None, None
