"""Token tagging over precomputed states: a fixed or learned mix of layers, then a linear or small BiLSTM tagger.

May import elmo_store, PyTorch, NumPy and this package. The biLM is frozen and not even here: what is trained is the tagger
and, for the feature "mix", γ and w (Peters et al. 2018, section 3.2).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from elmo_store.torch import LayerNorm, ScalarMix, layers_of_states
from pipeline.probing.labels import LabelledSentence
from pipeline.probing.scores import accuracy, span_f1
from pipeline.probing.vectors import TokenStates

Tagger = Literal["linear", "bilstm"]
Metric = Literal["accuracy", "span-f1"]
METRICS = {"accuracy": accuracy, "span-f1": span_f1}
UNSEEN = -1  # a test label that training never saw: always wrong
EVALUATION_SENTENCES = 256
WARM_UP = 0.05  # share of the steps


@dataclass(frozen=True)
class TaggerSettings:
    """How a probe learns; the same for every feature, so that features differ in the vectors alone.

    Attributes:
        hidden: BiLSTM units a direction.
        batch: sentences of a step.
        learning_rate: Adam's highest; it falls to 0 along a cosine.
        mix_learning_rate: the same for γ and w, which were still on their way at the tagger's rate when it had learned
            (UD-EWT's development set, 10 epochs: 91.43, s of layer 1 0.46; at ten times the rate 91.53 and 0.55).
        dropout: on the vectors that the tagger sees (and on a BiLSTM's output).
        layer_norm: of the layers before they are mixed.
        l2: λ of λ‖w‖² on the learned mix.
    """

    tagger: Tagger = "linear"
    hidden: int = 64
    epochs: int = 10
    batch: int = 32
    learning_rate: float = 0.003
    mix_learning_rate: float = 0.03
    dropout: float = 0.1
    layer_norm: LayerNorm = "none"
    l2: float = 0.001
    device: str = "cpu"


@dataclass(frozen=True)
class TaggingRun:
    """One training: the test score 0 … 1, and what the mix learned (None of a fixed feature)."""

    feature: str
    seed: int
    score: float
    seconds: float
    w: tuple[float, ...] | None = None
    s: tuple[float, ...] | None = None
    gamma: float | None = None


def feature_logits(n_layers: int) -> dict[str, tuple[float, ...] | None]:
    """The features by name, each as the logits of its mix over L+1 layers: softmax turns (0, -∞, …) into one layer alone.

    x, each layer (the last is the top), the uniform average, and "mix": None, to be learned.
    """
    names = ["x", *(f"layer {j}" for j in range(1, n_layers))]
    if n_layers > 1:
        names[-1] += " (top)"
    alone = {name: tuple(0.0 if i == j else -math.inf for i in range(n_layers)) for j, name in enumerate(names)}
    return {**alone, "average": (0.0,) * n_layers, "mix": None}


class TaggerModel(nn.Module):
    """mix → dropout → (BiLSTM) → linear.

    Args:
        logits: of a fixed mix, None for a learned one.
        channels: 2p.
    """

    def __init__(
        self, n_layers: int, channels: int, n_labels: int, logits: tuple[float, ...] | None, settings: TaggerSettings
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(
            n_layers, initial=logits, trainable=logits is None, layer_norm=settings.layer_norm, dropout=settings.dropout,
            l2=settings.l2 if logits is None else 0.0,
        )  # fmt: skip
        self.learns_mix = logits is None
        self.lstm: nn.LSTM | None = None
        if settings.tagger == "bilstm":
            self.lstm = nn.LSTM(channels, settings.hidden, bidirectional=True)
        self.dropout = nn.Dropout(settings.dropout)
        self.out = nn.Linear(2 * settings.hidden if self.lstm else channels, n_labels)

    def forward(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Scores [tokens, labels] of the sentences that stand one after the other in ``states`` [tokens, 2L+1, p]."""
        vectors = self.mix(layers_of_states(states))  # [tokens, 2p]
        if self.lstm is not None:
            packed = nn.utils.rnn.pack_sequence(list(vectors.split(list(lengths))), enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # [sentences, longest, 2h]
            vectors = self.dropout(torch.cat([rows[:n] for rows, n in zip(padded, lengths, strict=True)]))  # [tokens, 2h]
        scores: torch.Tensor = self.out(vectors)
        return scores

    def penalty(self) -> torch.Tensor:
        """λ‖w‖² of a learned mix, 0 of a fixed one."""
        return self.mix.penalty() if self.learns_mix else torch.zeros((), device=self.out.bias.device)


class LabelledStates:
    """A store's states and the numbers of its labels, as tensors."""

    def __init__(self, vectors: TokenStates, sentences: Sequence[LabelledSentence], numbers: dict[str, int]) -> None:
        self.states = torch.from_numpy(vectors.states)  # [tokens, 2L+1, p]
        self.offsets = vectors.offsets
        self.gold = [sentence.labels for sentence in sentences]
        flat = [numbers.get(label, UNSEEN) for labels in self.gold for label in labels]
        self.targets = torch.tensor(flat, dtype=torch.int64)  # [tokens]

    def __len__(self) -> int:
        return len(self.gold)

    def batch(self, sentences: Sequence[int], device: str) -> tuple[torch.Tensor, list[int], torch.Tensor]:
        """States [tokens, 2L+1, p], lengths, targets [tokens] of the named sentences."""
        bounds = [(int(self.offsets[i]), int(self.offsets[i + 1])) for i in sentences]
        rows = torch.from_numpy(np.concatenate([np.arange(first, stop) for first, stop in bounds]))
        lengths = [stop - first for first, stop in bounds]
        return self.states[rows].to(device), lengths, self.targets[rows].to(device)


def label_numbers(sentences: Sequence[LabelledSentence]) -> dict[str, int]:
    """The labels of the training set, numbered in sorted order."""
    return {label: i for i, label in enumerate(sorted({label for s in sentences for label in s.labels}))}


def train_tagger(
    train: LabelledStates, numbers: dict[str, int], logits: tuple[float, ...] | None, seed: int, settings: TaggerSettings
) -> TaggerModel:
    """A tagger trained for a fixed number of epochs; ``seed`` gives its first weights, its dropout and the sentences' order."""
    _, n_states, p = train.states.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TaggerModel((n_states + 1) // 2, 2 * p, len(numbers), logits, settings).to(settings.device)
        groups: list[dict[str, Any]] = [{"params": [w for name, w in model.named_parameters() if not name.startswith("mix.")]}]
        if model.learns_mix:
            groups.append({"params": list(model.mix.parameters()), "lr": settings.mix_learning_rate})
        optimiser = torch.optim.Adam(groups, lr=settings.learning_rate)
        n_steps = settings.epochs * -(-len(train) // settings.batch)
        warm_up = max(1, int(WARM_UP * n_steps))

        def rate(step: int) -> float:
            return min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / n_steps)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
        model.train()
        for _ in range(settings.epochs):
            for chosen in torch.randperm(len(train)).split(settings.batch):
                states, lengths, targets = train.batch(chosen.tolist(), settings.device)
                loss = nn.functional.cross_entropy(model(states, lengths), targets) + model.penalty()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
    return model.eval()


@torch.no_grad()
def predict(model: TaggerModel, data: LabelledStates, names: Sequence[str], device: str) -> list[list[str]]:
    """The label of every token, sentence by sentence."""
    predicted = []
    for first in range(0, len(data), EVALUATION_SENTENCES):
        states, lengths, _ = data.batch(range(first, min(first + EVALUATION_SENTENCES, len(data))), device)
        best = model(states, lengths).argmax(dim=1).cpu().split(lengths)  # [tokens] of each sentence
        predicted += [[names[i] for i in labels.tolist()] for labels in best]
    return predicted


def probe_tagging(
    train: tuple[TokenStates, Sequence[LabelledSentence]],
    test: tuple[TokenStates, Sequence[LabelledSentence]],
    *,
    metric: Metric,
    seeds: Sequence[int],
    settings: TaggerSettings,
    features: Sequence[str] | None = None,
    tell: Callable[[TaggingRun], None] = lambda run: None,
) -> list[TaggingRun]:
    """Train a tagger for each feature and seed, and score it on the test set.

    Args:
        features: names from `feature_logits`, all by default.
        tell: called after each training.
    """
    numbers = label_numbers(train[1])
    names = list(numbers)
    learned = LabelledStates(*train, numbers)
    unseen = LabelledStates(*test, numbers)
    known = feature_logits(train[0].n_layers)
    runs = []
    for feature in known if features is None else features:
        for seed in seeds:
            began = time.perf_counter()
            model = train_tagger(learned, numbers, known[feature], seed, settings)
            score = METRICS[metric](unseen.gold, predict(model, unseen, names, settings.device))
            run = TaggingRun(feature, seed, score, time.perf_counter() - began)
            if model.learns_mix:
                w, s = (tuple(v.detach().cpu().tolist()) for v in (model.mix.w, model.mix.s))
                run = TaggingRun(feature, seed, score, run.seconds, w, s, model.mix.gamma.item())
            runs.append(run)
            tell(run)
    return runs
