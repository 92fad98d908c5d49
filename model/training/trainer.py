"""The training loop: batches in, parameters changed, one direction on each thread.

On a CPU the two directions run side by side, each on a thread of its own with no parallelism inside its products: their
steps are too small to be worth splitting; on a GPU each is a graph on a stream of its own (`steps`). What both need, the
word vectors, is computed before and its gradient after, on all cores. The host waits for a GPU once a batch.
"""

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model.characters import char_ids
from model.errors import TrainingError
from model.options import DIRECTIONS, BiLMOptions
from model.threads import direction_pool
from model.training import softmax
from model.training.corpus import FIRST_WORD, Corpus, Epoch, TrainingBatch
from model.training.network import Network, initial_parameters
from model.training.steps import DirectionBatch, DirectionResult, GraphedDirection, GraphedWords, State, Words, direction_step

MOST_PASSED_OVER = 10  # batches in a row
FALL = 0.25  # share of a run over which the rate falls to zero at its end
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How to train; what belongs to the model's shape stands in `BiLMOptions`."""

    seed: int = 1  # of the parameters, the negatives, the dropout and the order of later epochs
    lanes: int = 128  # a batch is [unroll, lanes] tokens in each direction
    unroll: int = 20  # gradients go back so many tokens
    shuffle: bool = False  # the sentences of the first pass too; a text that stands source by source needs it
    n_words: int = 100_000  # words that the softmax tells apart
    sampled: int = 2048  # negatives a batch; 0 = the full softmax
    optimiser: Literal["adamw", "adagrad"] = "adamw"  # of all but the softmax's rows
    rate: float = 2e-3  # learning rate of the network
    softmax_rate: float = 0.1  # of the softmax's rows
    weight_decay: float = 0.01  # AdamW's
    clip: float = 1.0  # bound on the norm of the network's gradient (of the mean loss of a position, both directions added)
    dropout: float = 0.0  # share of x and of each layer's output set to zero
    warmup: int = 1_000_000  # tokens over which the learning rate rises
    decay_tokens: int = 0  # words of text before `max_tokens` over which the rate falls to zero
    max_tokens: int | None = None  # words of text after which the run ends; None = not known (yet): the rate stays

    def rate_factor(self, tokens: int) -> float:
        """What the learning rates are multiplied by after so many tokens: they rise, stay, and fall in a straight line."""
        rise = min(1.0, (tokens + 1) / self.warmup) if self.warmup else 1.0
        if self.max_tokens is None or not self.decay_tokens:
            return rise
        return rise * min(1.0, max(0.0, (self.max_tokens - tokens) / self.decay_tokens))


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
    """Where a run stands: everything else follows from it and the recipe."""

    batches: int = 0  # done since the start
    tokens: int = 0  # words of text seen
    seconds: float = 0.0  # spent in training
    epoch: int = 0  # of the next batch to take
    batch: int = 0  # its number in the epoch
    passed_over: int = 0  # batches whose gradient was not finite: they changed nothing


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """A batch, its negatives, and which of the softmax's rows it changes: all that can be known before its turn."""

    batch: TrainingBatch
    characters: Tensor  # int16 [n, 50], of the batch's words
    negatives: softmax.Negatives | None  # None for the full softmax
    rows: Tensor  # int64 [r], the classes of negatives and targets, distinct
    row_of: Tensor  # int64 [m], where in `rows` stand the negatives, then the targets, first of one direction, then of the other


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
    states: list[State]
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._characters = char_ids(self.corpus.vocabulary.types, self.options.max_characters_per_token)  # [types, 50]
        self._passed_over_in_a_row = 0
        self._pool: ThreadPoolExecutor | None = None
        if self.network.device.type == "cpu" and torch.get_num_threads() > 1:
            self._pool = direction_pool(2, torch.get_num_threads() // 2)
        on_gpu = self.network.device.type == "cuda"
        self._words = GraphedWords(self.network) if on_gpu else Words(self.network)
        self._graphed: list[GraphedDirection] = []
        if on_gpu and not self.recipe.dropout:  # a graph would draw the same dropout for every batch
            scale = self._published_scale or 1.0
            self._graphed = [GraphedDirection(self.network, name, self.rows, scale) for name in DIRECTIONS]

    @classmethod
    def fresh(
        cls, options: BiLMOptions, recipe: Recipe, corpus: Corpus, device: str = "cpu", dtype: torch.dtype = torch.bfloat16
    ) -> "Trainer":
        parameters = {name: value.to(device).requires_grad_() for name, value in initial_parameters(options, recipe.seed).items()}
        network = Network(options, parameters, dtype)
        generator, n_classes = torch.Generator().manual_seed(recipe.seed + 1), corpus.vocabulary.n_classes
        weight = (torch.randn(n_classes, options.projection_dim, generator=generator) * 0.03).to(device)
        bias, each_element = torch.zeros(n_classes, device=device), recipe.optimiser == "adagrad"
        rows = softmax.SoftmaxRows(weight, bias, recipe.softmax_rate, each_element=each_element)
        optimiser = make_optimiser(recipe.optimiser, parameters, recipe.rate, recipe.weight_decay)
        return cls(options, recipe, corpus, network, rows, optimiser, [network.zero_state(recipe.lanes) for _ in DIRECTIONS])

    def train(self) -> Iterator[StepReport]:
        """Train batch by batch from where `progress` stands, without end; the caller stops asking.

        While one batch is computed a thread cuts the next one from the text and draws its negatives.
        """
        recipe, progress = self.recipe, self.progress
        with ThreadPoolExecutor(1, thread_name_prefix="next-batch") as ahead:
            while True:
                epoch = Epoch(self.corpus, progress.epoch, recipe.lanes, recipe.unroll, recipe.seed, recipe.shuffle)

                def ask(index: int, number: int, epoch: Epoch = epoch) -> Future[PreparedBatch]:
                    return ahead.submit(lambda: self.prepare(epoch.batch(index), number))

                batches = range(progress.batch, epoch.n_batches)
                if batches:  # none are left where a run is resumed at the end of an epoch
                    pending = ask(batches[0], progress.batches)
                for index in batches:
                    prepared = pending.result()
                    if index + 1 in batches:
                        pending = ask(index + 1, progress.batches + 1)
                    yield self.step(prepared)
                progress.epoch += 1
                progress.batch = 0

    def prepare(self, batch: TrainingBatch, number: int) -> PreparedBatch:
        """What can be done for the run's batch of this number before its turn."""
        negatives, n_classes = None, self.corpus.vocabulary.n_classes
        candidates = np.arange(n_classes)
        if self.recipe.sampled:
            negatives = softmax.draw(n_classes, self.recipe.sampled, softmax.generator_for(self.recipe.seed, number))
            candidates = negatives.classes.numpy()
        changed = [part for targets in batch.targets for part in (candidates, targets.ravel())]
        rows, row_of = np.unique(np.concatenate(changed), return_inverse=True)
        characters = torch.from_numpy(self._characters[batch.words])
        return PreparedBatch(batch, characters, negatives, torch.from_numpy(rows), torch.from_numpy(row_of))

    def step(self, prepared: PreparedBatch) -> StepReport:
        batch, device = prepared.batch, self.network.device
        factor = self.recipe.rate_factor(self.progress.tokens)
        negatives = prepared.negatives and prepared.negatives.to(device)
        inputs, targets, weights = (torch.from_numpy(part).to(device) for part in (batch.inputs, batch.targets, batch.weights))
        rows, row_of = prepared.rows.to(device), prepared.row_of.to(device)
        read = self._words.forward(prepared.characters, inputs)  # [2, T, B, p]
        results = self._both([DirectionBatch(read[k], self.states[k], targets[k], weights[k], negatives) for k in range(2)])
        self.states = [result.state for result in results]
        gradients = self._words.backward(torch.stack([result.d_read for result in results]))
        for name, gradient in (gradients | results[0].gradients | results[1].gradients).items():
            self.network.parameters[name].grad = gradient
        norm, *losses = self._change_network(factor, [result.sampled.loss for result in results])
        self.progress.batches += 1
        self.progress.batch += 1
        self.progress.tokens += batch.n_words
        if not math.isfinite(norm):
            self._pass_over()
            return StepReport((0.0, 0.0), (0.0, 0.0), norm)
        self._passed_over_in_a_row = 0
        gradient = softmax.sum_rows(len(rows), row_of, [result.sampled for result in results])
        counts = batch.weights.sum((1, 2))
        scale = self._published_scale / float(counts[0]) if self._published_scale else 1.0
        self.rows.step(rows, gradient * scale, factor)
        return StepReport((losses[0], losses[1]), (float(counts[0]), float(counts[1])), norm)

    def softmax_weights(self) -> softmax.SoftmaxWeights:
        """The softmax as it stands, with its words."""
        vocabulary = self.corpus.vocabulary
        return softmax.SoftmaxWeights(self.rows.weight, self.rows.bias, vocabulary.types[FIRST_WORD : vocabulary.n_classes])

    def _both(self, batches: list[DirectionBatch]) -> list[DirectionResult]:
        if self._graphed:
            results = [graphed.step(batch) for graphed, batch in zip(self._graphed, batches, strict=True)]
            for graphed in self._graphed:
                graphed.wait()
            return results

        def one(k: int) -> DirectionResult:
            scale = self._published_scale or 1.0
            return direction_step(self.network, DIRECTIONS[k], self.rows, batches[k], scale, self._dropout(k))

        return list(self._pool.map(one, range(2)) if self._pool else map(one, range(2)))

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

    def _change_network(self, factor: float, losses: list[Tensor]) -> list[float]:
        """One step of the optimiser, unless the gradient is not finite: its norm, and the losses, which come with it."""
        parameters = list(self.network.parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip, foreach=True)
        values: list[float] = torch.stack([norm.to(losses[0].dtype), *losses]).tolist()
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * factor
        if math.isfinite(values[0]):  # clipping by NaN would make NaN of every parameter
            self.optimiser.step()
        self.optimiser.zero_grad()
        return values

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
