"""Held-out perplexity with the full softmax, per direction."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmo_store.format.characters import char_ids
from model.errors import TrainingError
from model.options import DIRECTIONS
from model.training.corpus import BOS_TYPE, EOS_TYPE, Corpus, reverse_sentences
from model.training.network import Network
from model.training.softmax import SoftmaxWeights

STEPS = 32  # of a batch; has no influence on the result
MOST_LANES = 64
TOKENS_PER_LANE = (
    1000  # at least: a lane starts from zeros, which costs its first words some perplexity
)
ROWS = 256  # positions whose logits are computed at a time


@dataclass(frozen=True)
class Evaluation:
    perplexity: tuple[float, float]  # forward, backward
    predictions: int  # how many words and sentence ends each direction predicted (words and sentence starts, backward)
    unknown: float  # share of the predictions that were of words outside the vocabulary, which count as one type


@torch.no_grad()
def evaluate(
    network: Network, theta: SoftmaxWeights, sentences: Iterable[Sequence[str]]
) -> Evaluation:
    """Read held-out sentences in order with the state carried, as in training, and predict every token but the openers.

    ``network`` is of any dtype, float32 for results that rounding has no part in; ``theta`` is the softmax trained with it. Words
    that training never saw are read as themselves and count as unknown.

    Raises:
        TrainingError: the text holds no sentences; network and softmax do not fit together.
    """
    if theta.weight.shape[1] != network.options.projection_dim:
        raise TrainingError(
            f"the softmax is of a model with a projection of {theta.weight.shape[1]}, this one has "
            f"{network.options.projection_dim}: weights and softmax.safetensors must come from the same run"
        )
    corpus = Corpus.encode(sentences, len(theta.words), theta.words)
    characters = char_ids(
        corpus.vocabulary, network.options.max_characters_per_token
    )  # [types, 50]
    n = len(corpus.types)
    lanes = max(1, min(MOST_LANES, n // TOKENS_PER_LANE))
    length = -(-(n - 1) // lanes)
    loss, unknown, predictions = [], 0, 0
    for direction, row in zip(
        DIRECTIONS, (corpus.types, reverse_sentences(corpus.types, corpus.starts)), strict=True
    ):
        total = 0.0
        opener = BOS_TYPE if direction == "fwd" else EOS_TYPE
        state = network.zero_state(lanes)
        for first in range(0, length, STEPS):
            steps = np.arange(first, min(first + STEPS, length))  # [T]
            positions = np.arange(lanes) * length + steps[:, None]  # [T, B]
            inside = positions < n - 1
            read, following = row[positions.clip(max=n - 2)], row[positions.clip(max=n - 2) + 1]
            words, inputs = np.unique(read, return_inverse=True)
            x = network.word_vectors(torch.from_numpy(characters[words]))
            inputs_t = torch.from_numpy(inputs.reshape(read.shape)).to(network.device)
            h, state = network.direction(direction, F.embedding(inputs_t, x), state)  # [T, B, p]
            counted = inside & (following != opener)
            classes = corpus.classes(following[counted])
            kept = h[torch.from_numpy(counted).to(h.device)]  # [n, p]
            total += _loss(theta, kept, torch.from_numpy(classes).to(h.device))
            if direction == "fwd":
                predictions += len(classes)
                unknown += int((following[counted] >= corpus.n_classes).sum())
        loss.append(total)
    return Evaluation(
        (math.exp(loss[0] / predictions), math.exp(loss[1] / predictions)),
        predictions,
        unknown / predictions,
    )


def _loss(theta: SoftmaxWeights, h: Tensor, classes: Tensor) -> float:
    """Σ -log p of classes [n] after outputs h [n, p], a few positions at a time: their logits are of all classes."""
    parts = zip(h.to(theta.weight.dtype).split(ROWS), classes.split(ROWS), strict=True)
    logits = ((F.linear(part, theta.weight, theta.bias), wanted) for part, wanted in parts)
    return sum(float(F.cross_entropy(each, wanted, reduction="sum")) for each, wanted in logits)
