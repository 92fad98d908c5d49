"""The training loop: batches in, parameters changed, one direction on each thread. Imports torch and its neighbours.

Recipe (a run's settings), schedule (the learning rate by tokens), optimiser, loop. The network's parameters change at
every batch: AdamW, or Adagrad as published; the softmax's rows have an optimiser of their own (`softmax.SoftmaxRows`).

On a CPU the two directions run side by side, each on a thread of its own with no parallelism inside its products: their
steps are too small to be worth splitting. What both need, the word vectors, is computed before and its gradient after,
on all cores.
"""

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.characters import char_ids
from model.options import DIRECTIONS, BiLMOptions
from model.threads import direction_pool
from model.training import softmax
from model.training.corpus import FIRST_WORD, Batch, Corpus, Epoch
from model.training.errors import TrainingError
from model.training.network import Network, initial_parameters

MOST_PASSED_OVER = 10  # batches in a row
FALL = 0.25  # share of a run over which the rate falls to zero at its end
logger = logging.getLogger(__name__)

State = list[list[tuple[Tensor, Tensor]]]  # direction → layer → (h [B, p], c [B, d])


@dataclass(frozen=True)
class Recipe:
    """How to train; what belongs to the model's shape stands in `BiLMOptions`.

    Attributes:
        seed: of the parameters, the negatives, the dropout and the order of later epochs.
        lanes, unroll: a batch is [unroll, lanes] tokens in each direction; gradients go back `unroll` tokens.
        shuffle: whether the first pass over the text shuffles its sentences too; a text that stands source by source needs it.
        n_words: words that the softmax tells apart.
        sampled: negatives a batch; 0 = the full softmax.
        optimiser: "adamw" or "adagrad", of all but the softmax's rows.
        rate: learning rate of the network; softmax_rate: of the softmax's rows.
        weight_decay: AdamW's.
        clip: bound on the norm of the network's gradient (of the mean loss of a position, both directions added).
        dropout: share of x and of each layer's output set to zero.
        warmup: tokens over which the learning rate rises.
        decay_tokens: words of text before `max_tokens` over which the rate falls to zero.
        max_tokens: words of text after which the run ends; None = not known (yet): the rate stays.
    """

    seed: int = 1
    lanes: int = 128
    unroll: int = 20
    shuffle: bool = False
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


@dataclass(frozen=True)
class Schedule:
    """The learning rate by tokens: rise, stay, fall to zero in a straight line.

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


def make_optimiser(
    kind: Literal["adamw", "adagrad"], parameters: dict[str, Tensor], rate: float, decay: float
) -> torch.optim.Optimizer:
    """The network's optimiser; weight decay holds for matrices only and for AdamW only."""
    if kind == "adagrad":
        # The accumulator starts at 1.0 as bilm-tf's does: the first steps are then no larger than the gradient.
        return torch.optim.Adagrad(parameters.values(), lr=rate, initial_accumulator_value=1.0)
    matrices = [value for value in parameters.values() if value.ndim > 1]
    vectors = [value for value in parameters.values() if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)


@dataclass
class Progress:
    """Where a run stands: everything else follows from it and the recipe.

    Attributes:
        batches: batches done since the start; tokens: words of text seen; seconds: spent in training.
        epoch, batch: the next batch to take.
        passed_over: batches whose gradient was not finite: they changed nothing.
    """

    batches: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0
    passed_over: int = 0


@dataclass(frozen=True)
class StepReport:
    """One batch: Σ -log p and the number of predictions for each direction, and the gradient's norm before clipping.

    A batch that was passed over counts no predictions.
    """

    loss: tuple[float, float]
    predictions: tuple[float, float]
    norm: float


@dataclass(eq=False)
class Trainer:
    """One run's parameters, optimisers and states."""

    options: BiLMOptions
    recipe: Recipe
    corpus: Corpus
    network: Network
    rows: softmax.SoftmaxRows
    optimiser: torch.optim.Optimizer
    states: State
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._characters = char_ids(self.corpus.vocabulary.types, self.options.max_characters_per_token)  # [types, 50]
        self._passed_over_in_a_row = 0
        self._pool: ThreadPoolExecutor | None = None
        if self.network.device.type == "cpu" and torch.get_num_threads() > 1:
            self._pool = direction_pool(2, torch.get_num_threads() // 2)

    @classmethod
    def fresh(
        cls,
        options: BiLMOptions,
        recipe: Recipe,
        corpus: Corpus,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> "Trainer":
        """A run at its start."""
        parameters = {name: value.to(device).requires_grad_() for name, value in initial_parameters(options, recipe.seed).items()}
        network = Network(options, parameters, dtype)
        generator = torch.Generator().manual_seed(recipe.seed + 1)
        weight = torch.randn(corpus.vocabulary.n_classes, options.projection_dim, generator=generator) * 0.03
        rows = softmax.SoftmaxRows(
            weight.to(device),
            torch.zeros(corpus.vocabulary.n_classes, device=device),
            recipe.softmax_rate,
            each_element=recipe.optimiser == "adagrad",
        )
        return cls(
            options,
            recipe,
            corpus,
            network,
            rows,
            make_optimiser(recipe.optimiser, parameters, recipe.rate, recipe.weight_decay),
            [network.zero_state(recipe.lanes) for _ in DIRECTIONS],
        )

    @property
    def schedule(self) -> Schedule:
        """The learning rate by tokens, as the recipe has it now."""
        return Schedule(self.recipe.warmup, self.recipe.max_tokens, self.recipe.decay_tokens)

    def train(self) -> Iterator[StepReport]:
        """Train batch by batch from where `progress` stands, without end; the caller stops asking."""
        while True:
            epoch = Epoch(
                self.corpus, self.progress.epoch, self.recipe.lanes, self.recipe.unroll, self.recipe.seed, self.recipe.shuffle
            )
            while self.progress.batch < epoch.n_batches:
                yield self.step(epoch.batch(self.progress.batch))
            self.progress.epoch += 1
            self.progress.batch = 0

    def step(self, batch: Batch) -> StepReport:
        """Train on one batch."""
        device = self.network.device
        factor = self.schedule.factor(self.progress.tokens)
        characters = torch.from_numpy(self._characters[batch.words].astype(np.int64)).to(device)  # [n, 50]
        negatives = None
        if self.recipe.sampled:
            generator = softmax.generator_for(self.recipe.seed, self.progress.batches)
            negatives = softmax.draw(self.corpus.vocabulary.n_classes, self.recipe.sampled, generator)
        x = self.network.word_vectors(characters)  # [n, p]
        inputs, targets, weights = (torch.from_numpy(part).to(device) for part in (batch.inputs, batch.targets, batch.weights))
        jobs = [(k, x.detach(), inputs[k], targets[k], weights[k], negatives) for k in range(2)]
        if self._pool is not None:
            results = list(self._pool.map(lambda job: self._direction(*job), jobs))
        else:
            results = [self._direction(*job) for job in jobs]
        x.backward(results[0][0] + results[1][0])
        norm = self._change_network(factor)
        self.progress.batches += 1
        self.progress.batch += 1
        self.progress.tokens += batch.n_words
        if not math.isfinite(norm):
            self._pass_over()
            return StepReport((0.0, 0.0), (0.0, 0.0), norm)
        self._passed_over_in_a_row = 0
        parts = []
        for k, (_, sampled) in enumerate(results):
            classes = torch.arange(len(self.rows.weight)) if negatives is None else negatives.classes
            parts.append((classes.to(device), sampled.d_negatives, sampled.d_negative_bias))
            parts.append((targets[k].flatten(), sampled.d_targets, sampled.d_target_bias))
        rows, gradient, bias_gradient = softmax.sum_rows(parts)
        scale = self._published_scale / float(weights[0].sum()) if self._published_scale else 1.0
        self.rows.step(rows, gradient * scale, bias_gradient * scale, factor)
        loss_f, loss_b = (float(result[1].loss) for result in results)
        count_f, count_b = (float(part.sum()) for part in weights)
        return StepReport((loss_f, loss_b), (count_f, count_b), norm)

    def softmax_weights(self) -> softmax.SoftmaxWeights:
        """The softmax as it stands, with its words."""
        vocabulary = self.corpus.vocabulary
        return softmax.SoftmaxWeights(self.rows.weight, self.rows.bias, vocabulary.types[FIRST_WORD : vocabulary.n_classes])

    def _direction(
        self, k: int, x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, negatives: softmax.Negatives | None
    ) -> tuple[Tensor, softmax.SampledLoss]:
        """One direction forward and backward: the gradient of x [n, p], and the loss. Leaves the state to carry."""
        x = x.requires_grad_()
        read = F.embedding(inputs, x)  # [T, B, p]
        h, self.states[k] = self.network.direction(DIRECTIONS[k], read, self.states[k], self._dropout(k))
        flat = h.detach().view(-1, h.shape[2])
        sampled = softmax.sampled_loss(flat, targets.flatten(), weights.flatten(), self.rows.weight, self.rows.bias, negatives)
        h.backward((sampled.dh * ((self._published_scale or 1.0) / weights.sum())).view_as(h))
        assert x.grad is not None
        return x.grad, sampled

    @property
    def _published_scale(self) -> float | None:
        """Adagrad depends on the gradient's scale: bilm-tf's loss is the directions' average times the steps."""
        return self.recipe.unroll / 2 if self.recipe.optimiser == "adagrad" else None

    def _dropout(self, k: int) -> Callable[[Tensor], Tensor] | None:
        """Dropout whose masks follow from the seed, the batch and the direction alone: a resumed run draws alike."""
        share = self.recipe.dropout
        if not share:
            return None
        generator = torch.Generator(self.network.device)
        generator.manual_seed((self.recipe.seed << 40) + 2 * self.progress.batches + k)

        def drop(x: Tensor) -> Tensor:
            return x * torch.empty_like(x).bernoulli_(1 - share, generator=generator).div_(1 - share)

        return drop

    def _change_network(self, factor: float) -> float:
        parameters = list(self.network.parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip, foreach=True)
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * factor
        if bool(torch.isfinite(norm)):  # clipping by NaN would make NaN of every parameter
            self.optimiser.step()
        self.optimiser.zero_grad()
        return float(norm)

    def _pass_over(self) -> None:
        """Go on from zero states after a batch without a finite gradient; TrainingError if they all are so."""
        self.progress.passed_over += 1
        self._passed_over_in_a_row += 1
        tokens = self.progress.tokens
        if self._passed_over_in_a_row >= MOST_PASSED_OVER:
            raise TrainingError(
                f"the gradient was not finite in {MOST_PASSED_OVER} batches one after the other, up to token {tokens:,}: the "
                f"run has diverged. Resume from an older checkpoint, or start with a lower --rate than {self.recipe.rate:g}"
            )
        logger.warning(
            "the gradient is not finite at token %s: this batch changes nothing, states start from zero", f"{tokens:,}"
        )
        self.states = [self.network.zero_state(self.recipe.lanes) for _ in DIRECTIONS]
