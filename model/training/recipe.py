"""A training run's settings in one place. Imports the standard library."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """How to train; what belongs to the model's shape stands in `BiLMOptions`.

    Attributes:
        seed: of the parameters, the negatives, the dropout and the order of later epochs.
        lanes, steps: a batch is [steps, lanes] tokens in each direction; gradients go back `steps` tokens.
        n_words: words that the softmax tells apart.
        sampled: negatives a batch; 0 = the full softmax.
        optimiser: "adamw" or "adagrad", of all but the softmax's rows.
        rate: learning rate of the network; softmax_rate: of the softmax's rows.
        weight_decay: AdamW's.
        clip: bound on the norm of the network's gradient (of the mean loss of a position, both directions added).
        dropout: share of x and of each layer's output set to zero.
        warmup: tokens over which the learning rate rises.
        decay_tokens: words of text before `max_tokens` over which the rate falls to zero.
        max_tokens: words of text after which the run ends; None = never by itself, and the rate never falls.
    """

    seed: int = 1
    lanes: int = 128
    steps: int = 20
    n_words: int = 100_000
    sampled: int = 2048
    optimiser: Literal["adamw", "adagrad"] = "adamw"
    rate: float = 2e-3
    softmax_rate: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.0
    warmup: int = 1_000_000
    decay_tokens: int = 0
    max_tokens: int | None = None
