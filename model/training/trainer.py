"""The training loop: batches in, parameters changed, one direction on each thread.

On a CPU the two directions run side by side, each on a thread of its own with no parallelism inside its products: their
steps are too small to be worth splitting; on a GPU each is a graph on a stream of its own (`steps`). What both need, the
word vectors, is computed before and its gradient after, on all cores. The host waits for a GPU once a batch.
"""

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from elmo_store.format.characters import char_ids
from model.errors import TrainingError
from model.options import DIRECTIONS, BiLMOptions
from model.threads import direction_pool
from model.training import softmax
from model.training.corpus import FIRST_WORD, Corpus, Epoch, TrainingBatch
from model.training.network import Network, initial_parameters, table_rows
from model.training.steps import DirectionBatch, DirectionResult, GraphedDirection, State, gradients

RISE = 0.1  # share of a run over which the rate rises at most
FALL = 0.25  # share of a run over which the rate falls to zero at its end


@dataclass(frozen=True)
class Recipe:
    """How to train; what belongs to the model's shape stands in `BiLMOptions`."""

    seed: int = 1  # of the parameters, the negatives and the order of sentences
    lanes: int = 128  # a batch is [unroll, lanes] tokens in each direction
    unroll: int = 20  # gradients go back so many tokens
    n_words: int = 100_000  # words that the softmax tells apart
    sampled: int = 2048  # negatives per batch
    rate: float = 2e-3  # learning rate of the network
    softmax_rate: float = 0.1  # of the softmax's rows
    weight_decay: float = 0.01  # AdamW's
    clip: float = 1.0  # bound on the norm of the network's gradient (of the mean loss of a position, both directions added)
    warmup: int = 1_000_000  # tokens over which the learning rate rises
    max_tokens: int | None = (
        None  # words of text after which the run ends, over whose last quarter the rate falls; None = never
    )

    def rate_factor(self, tokens: int) -> float:
        """What the learning rates are multiplied by after so many tokens: they rise, stay, and fall in a straight line."""
        if self.max_tokens is None:
            return min(1.0, (tokens + 1) / self.warmup)
        rise = min(1.0, (tokens + 1) / min(self.warmup, RISE * self.max_tokens))
        return rise * min(1.0, max(0.0, (self.max_tokens - tokens) / (FALL * self.max_tokens)))


@dataclass
class Progress:
    """Where a run stands: everything else follows from it and the recipe."""

    batches: int = 0  # done since the start
    tokens: int = 0  # words of text seen
    seconds: float = 0.0  # spent in training
    epoch: int = 0  # of the next batch to take
    batch: int = 0  # its number in the epoch


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """A batch, its negatives, and which of the softmax's rows it changes: all that can be known before its turn."""

    batch: TrainingBatch
    characters: Tensor  # int16 [n, 50], of the batch's words
    negatives: softmax.Negatives
    rows: Tensor  # int64 [r], the classes of negatives and targets, distinct
    row_of: Tensor  # int64 [m], where in `rows` stand the negatives, then the targets, first of one direction, then of the other


@dataclass(frozen=True)
class StepReport:
    """One batch: Σ -log p and the number of predictions for each direction."""

    loss: tuple[float, float]
    predictions: tuple[float, float]


@dataclass(eq=False)
class Trainer:
    """One run's parameters, optimisers and states."""

    recipe: Recipe
    corpus: Corpus
    network: Network
    rows: softmax.SoftmaxRows
    optimiser: torch.optim.Optimizer
    states: list[State]
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._characters = char_ids(
            self.corpus.vocabulary, self.network.options.max_characters_per_token
        )  # [types, 50]
        self._pool: ThreadPoolExecutor | None = None
        if self.network.device.type == "cpu" and torch.get_num_threads() > 1:
            self._pool = direction_pool(2, torch.get_num_threads() // 2)
        self._directions = [GraphedDirection(self.network, name, self.rows) for name in DIRECTIONS]

    @classmethod
    def fresh(
        cls,
        options: BiLMOptions,
        recipe: Recipe,
        corpus: Corpus,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> "Trainer":
        if options.alphabet != "bytes":
            raise TrainingError(
                f"the options' alphabet is {options.alphabet!r}: only models of bytes can be trained"
            )
        parameters = {
            name: value.to(device).requires_grad_()
            for name, value in initial_parameters(options, recipe.seed).items()
        }
        network = Network(options, parameters, dtype)
        generator, n_classes = torch.Generator().manual_seed(recipe.seed + 1), corpus.n_classes
        weight = (torch.randn(n_classes, options.projection_dim, generator=generator) * 0.03).to(
            device
        )
        rows = softmax.SoftmaxRows(
            weight, torch.zeros(n_classes, device=device), recipe.softmax_rate
        )
        matrices = [value for value in parameters.values() if value.ndim > 1]
        vectors = [value for value in parameters.values() if value.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)
        return cls(
            recipe,
            corpus,
            network,
            rows,
            optimiser,
            [network.zero_state(recipe.lanes) for _ in DIRECTIONS],
        )

    def train(self) -> Iterator[StepReport]:
        """Train batch by batch from where `progress` stands, without end; the caller stops asking.

        While one batch is computed a thread cuts the next one from the text and draws its negatives.
        """
        recipe, progress = self.recipe, self.progress
        with ThreadPoolExecutor(1, thread_name_prefix="next-batch") as ahead:
            while True:
                epoch = Epoch(self.corpus, progress.epoch, recipe.lanes, recipe.unroll, recipe.seed)

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
        generator = np.random.default_rng(
            [self.recipe.seed, number]
        )  # so that a resumed run draws alike
        negatives = softmax.draw(self.corpus.n_classes, self.recipe.sampled, generator)
        changed = [
            part
            for targets in batch.targets
            for part in (negatives.classes.numpy(), targets.ravel())
        ]
        rows, row_of = np.unique(np.concatenate(changed), return_inverse=True)
        characters = torch.from_numpy(self._characters[batch.words])
        return PreparedBatch(
            batch, characters, negatives, torch.from_numpy(rows), torch.from_numpy(row_of)
        )

    def step(self, prepared: PreparedBatch) -> StepReport:
        """One batch. TrainingError if the gradient is not finite: the parameters are as before it."""
        batch, device = prepared.batch, self.network.device
        factor = self.recipe.rate_factor(self.progress.tokens)
        negatives = prepared.negatives.to(device)
        inputs, targets, weights = (
            torch.from_numpy(part).to(device)
            for part in (batch.inputs, batch.targets, batch.weights)
        )
        rows, row_of = prepared.rows.to(device), prepared.row_of.to(device)
        vectors = table_rows(self.network.word_vectors(prepared.characters), inputs)  # [2, T, B, p]
        read = vectors.detach()
        results = self._both(
            [
                DirectionBatch(read[k], self.states[k], targets[k], weights[k], negatives)
                for k in range(2)
            ]
        )
        self.states = [result.state for result in results]
        cnn = {
            name: value
            for name, value in self.network.parameters.items()
            if not name.startswith("lstm.")
        }
        of_cnn = gradients(vectors, cnn, torch.stack([result.d_read for result in results]))
        for name, gradient in (of_cnn | results[0].gradients | results[1].gradients).items():
            self.network.parameters[name].grad = gradient
        forward, backward = self._change_network(
            factor, [result.sampled.loss for result in results]
        )
        self.progress.batches += 1
        self.progress.batch += 1
        self.progress.tokens += batch.n_words
        gradient = softmax.sum_rows(len(rows), row_of, [result.sampled for result in results])
        counts = batch.weights.sum((1, 2))
        self.rows.step(rows, gradient, factor)
        return StepReport((forward, backward), (float(counts[0]), float(counts[1])))

    def softmax_weights(self) -> softmax.SoftmaxWeights:
        """The softmax as it stands, with its words."""
        words = self.corpus.vocabulary[FIRST_WORD : self.corpus.n_classes]
        return softmax.SoftmaxWeights(self.rows.weight, self.rows.bias, words)

    def _both(self, batches: list[DirectionBatch]) -> list[DirectionResult]:
        run = map if self._pool is None else self._pool.map
        results = list(run(GraphedDirection.step, self._directions, batches))
        for direction in self._directions:
            direction.wait()
        return results

    def _change_network(self, factor: float, losses: list[Tensor]) -> list[float]:
        """One step of the optimiser; the losses, which come from a GPU with the gradient's norm. TrainingError as of `step`."""
        parameters = list(self.network.parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip, foreach=True)
        length, *values = torch.stack([norm.to(losses[0].dtype), *losses]).tolist()
        if not math.isfinite(length):  # clipping by NaN would make NaN of every parameter
            raise TrainingError(
                f"the gradient is not finite at token {self.progress.tokens:,}: the run has diverged: give a "
                f"lower --rate than {self.recipe.rate:g}, with --resume from its last checkpoint, if it has one"
            )
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * factor
        self.optimiser.step()
        self.optimiser.zero_grad()
        return values
