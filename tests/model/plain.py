"""Lanes of sentences through the plain model (`model.bilm`), for tests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.bilm import read_sentence
from model.files.weights import BiLMWeights
from model.start_state import StartState


def plain_lane(
    weights: BiLMWeights,
    sentences: Sequence[Sequence[str]],
    start: StartState | None = None,
    carry: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """States [n+2, 2L+1, p] of each sentence; from `start` each, or carried from one to the next."""
    start = start or StartState.zero(weights.options)
    tensors = {name: tensor.to(dtype) for name, tensor in weights.tensors.items()}
    h = h_0 = start.h.to(dtype)  # [2, L, p]
    c = c_0 = start.c.to(dtype)  # [2, L, d]
    result = []
    for words in sentences:
        states, h, c = read_sentence(tensors, weights.options, words, h, c)
        result.append(states)
        if not carry:
            h, c = h_0, c_0
    return result
