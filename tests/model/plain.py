"""Tests' driver of the plain torch path (`char_cnn`, `lstm`): one sentence at a time. Imports torch and model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.char_cnn import char_cnn
from model.characters import BOS, EOS, char_ids
from model.lstm import lstm_layers, run_layers
from model.options import DIRECTIONS
from model.start_state import StartState
from model.weights import BiLMWeights


def plain_lane(
    weights: BiLMWeights,
    sentences: Sequence[Sequence[str]],
    start: StartState | None = None,
    carry: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """States [n+2, 2L+1, p] of each sentence; from `start` each, or carried from one to the next."""
    options = weights.options
    start = start or StartState.zero(options)
    tensors = {name: tensor.to(dtype) for name, tensor in weights.tensors.items()}
    per_sentence: list[list[Tensor]] = []
    for words in sentences:
        ids = torch.from_numpy(char_ids([BOS, *words, EOS], options.max_characters_per_token)).long()
        per_sentence.append([char_cnn(tensors, options, ids)])
    for k, direction in enumerate(DIRECTIONS):
        layers = lstm_layers(tensors, options, direction)
        h = h_0 = start.h[k][:, None].to(dtype)  # [L, 1, p]
        c = c_0 = start.c[k][:, None].to(dtype)  # [L, 1, d]
        for states in per_sentence:
            x = states[0].flip(0) if direction == "bwd" else states[0]
            outputs, h, c = run_layers(layers, x[:, None], h, c, options.use_skip_connections)
            if not carry:
                h, c = h_0, c_0
            outputs = outputs[:, :, 0]  # [L, T, p]
            states += list(outputs.flip(1) if direction == "bwd" else outputs)
    n = options.n_layers
    order = [0, *(i for j in range(1, n + 1) for i in (j, n + j))]  # x, fwd1, bwd1, fwd2, …
    return [torch.stack([states[i] for i in order], dim=1) for states in per_sentence]
