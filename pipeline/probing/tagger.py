"""Token tagging over precomputed states: a feature (a mix of the layers, mostly), then a linear or small BiLSTM tagger.

The biLM is frozen and not even here: what is trained is the tagger, γ, and where a feature learns its mix, w (Peters et al.
2018, section 3.2).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from elmo_store.torch import LayerNorm, ScalarMix
from pipeline.probing.data import Labelled
from pipeline.probing.results import LEARNED_MIX, Metric, TaggingRun, counts, layer_names

Form = Literal["mix", "x and mix", "h", "h and mix", "projection"]
Tagger = Literal["linear", "bilstm"]
UNSEEN = -1  # a test label that training never saw: always wrong
EVALUATION_SENTENCES = 256
WARM_UP = 0.05  # share of the steps


class FeatureError(ValueError):
    """A feature that a model does not have."""


@dataclass(frozen=True)
class Feature:
    """One row of a probe's table: what of a token's states the tagger sees.

    It is a mix of the layers, γ Σ s_j h_j, with w frozen (one layer, or all alike) or learned; γ is learned for every feature,
    so that none is behind for the length of its vectors. Three more are the ways to use ELMo that Peters et al. 2018 write of:
    beside x at the task network's input, beside h at its output, and a projection of all layers instead of a mix.

    Attributes:
        name: of the row.
        logits: w of the L+1 layers, frozen; None = learned. A layer alone is (…, 0, …) among -∞.
        form: what the tagger sees: the mix; [x; mix]; h, the output of a BiLSTM over x; [h; mix]; or a learned
            projection of all layers, which takes the mix's place.
    """

    name: str
    logits: tuple[float, ...] | None
    form: Form = "mix"


def layer_features(n_layers: int) -> list[str]:
    """The features that are a layer alone; the last says that it is the top."""
    names = layer_names(n_layers)
    return [*names[:-1], f"{names[-1]} (top)"] if n_layers > 1 else names


def features(n_layers: int) -> dict[str, Feature]:
    """All features of a model with L+1 layers, by name, in the order of tables."""
    names = layer_features(n_layers)
    layers = [Feature(name, tuple(0.0 if i == j else -math.inf for i in range(n_layers))) for j, name in enumerate(names)]
    others = [
        Feature("average", (0.0,) * n_layers),
        Feature(LEARNED_MIX, None),
        Feature("projection", None, "projection"),
        Feature("[x; mix]", None, "x and mix"),
        Feature("h", None, "h"),
        Feature("[h; mix]", None, "h and mix"),
    ]
    return {feature.name: feature for feature in [*layers, *others]}


def chosen_features(asked: str | None, n_layers: int) -> list[Feature]:
    """The features of a list ``NAME,…`` ("top" is the last layer), or FeatureError; of None each layer, the average, the mix."""
    known = features(n_layers)
    if not asked:
        return [feature for feature in known.values() if feature.form == "mix"]
    top = list(known)[n_layers - 1]
    short = {"top": top, top.removesuffix(" (top)"): top}
    names = [short.get(name.strip(), name.strip()) for name in asked.split(",")]
    for name in names:
        if name not in known:
            raise FeatureError(f"no feature {name!r}; this model has {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


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


class TaggerModel(nn.Module):
    """mix → dropout → (BiLSTM) → linear; see `Feature.form` for what stands where.

    Args:
        n_layers: L+1.
        p: channels of a state.
    """

    def __init__(self, n_layers: int, p: int, n_labels: int, feature: Feature, settings: TaggerSettings) -> None:
        super().__init__()
        self.form = feature.form
        self.has_mix = feature.form not in ("projection", "h")
        self.learns_mix = self.has_mix and feature.logits is None
        if self.has_mix:
            self.mix = ScalarMix(
                [0.0] * n_layers if feature.logits is None else feature.logits, trainable=self.learns_mix,
                layer_norm=settings.layer_norm,
                dropout=settings.dropout, l2=settings.l2 if self.learns_mix else 0.0,
            )  # fmt: skip
            self.mix.gamma.requires_grad_(True)  # w alone is frozen
        if feature.form == "projection":
            self.projection = nn.Linear((2 * n_layers - 1) * p, 2 * p, bias=False)
        inputs = {"mix": 2 * p, "x and mix": 3 * p, "h": p, "h and mix": p, "projection": 2 * p}[feature.form]
        self.lstm: nn.LSTM | None = None
        if settings.tagger == "bilstm" or feature.form in ("h", "h and mix"):
            self.lstm = nn.LSTM(inputs, settings.hidden, bidirectional=True)
        self.dropout = nn.Dropout(settings.dropout)
        outputs = 2 * settings.hidden if self.lstm else inputs
        self.out = nn.Linear(outputs + (2 * p if feature.form == "h and mix" else 0), n_labels)

    def forward(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Scores [tokens, labels] of the sentences that stand one after the other in ``states`` [tokens, 2L+1, p]."""
        mixed = self.mix(states=states) if self.has_mix else None  # [tokens, 2p]
        if self.form == "mix" and mixed is not None:
            vectors = mixed  # [tokens, 2p]
        elif self.form == "projection":
            vectors = self.dropout(self.projection(states.flatten(1).float()))  # [tokens, 2p]
        else:
            vectors = self.dropout(states[:, 0].float())  # x [tokens, p]
        if self.form == "x and mix" and mixed is not None:
            vectors = torch.cat([vectors, mixed], dim=1)  # [tokens, 3p]
        if self.lstm is not None:
            packed = nn.utils.rnn.pack_sequence(list(vectors.split(list(lengths))), enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # [sentences, longest, 2h]
            vectors = self.dropout(torch.cat([rows[:n] for rows, n in zip(padded, lengths, strict=True)]))  # [tokens, 2h]
        if self.form == "h and mix" and mixed is not None:
            vectors = torch.cat([vectors, mixed], dim=1)  # [tokens, 2h + 2p]
        scores: torch.Tensor = self.out(vectors)
        return scores

    def penalty(self) -> torch.Tensor:
        """λ‖w‖² of a learned mix, 0 of a frozen one."""
        return self.mix.penalty() if self.learns_mix else torch.zeros((), device=self.out.bias.device)


class LabelledStates:
    """A store's states and the numbers of its labels, as tensors."""

    def __init__(self, labelled: Labelled, numbers: dict[str, int]) -> None:
        self.states = torch.from_numpy(labelled.vectors.states)  # [tokens, 2L+1, p]
        self.offsets = labelled.vectors.offsets
        self.gold = [sentence.labels for sentence in labelled.sentences]
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


def train_tagger(
    train: LabelledStates, numbers: dict[str, int], feature: Feature, seed: int, settings: TaggerSettings
) -> TaggerModel:
    """A tagger trained for a fixed number of epochs; ``seed`` gives its first weights, its dropout and the sentences' order."""
    _, n_states, p = train.states.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TaggerModel((n_states + 1) // 2, p, len(numbers), feature, settings).to(settings.device)
        groups: list[dict[str, Any]] = [{"params": [w for name, w in model.named_parameters() if not name.startswith("mix.")]}]
        if model.has_mix:
            learned = [w for w in model.mix.parameters() if w.requires_grad]
            groups.append({"params": learned, "lr": settings.mix_learning_rate})
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
    train: Labelled,
    test: Labelled,
    *,
    metric: Metric,
    seeds: Sequence[int],
    settings: TaggerSettings,
    features: Sequence[Feature],
    on_progress: Callable[[TaggingRun], None] = lambda run: None,
) -> list[TaggingRun]:
    """Train a tagger for each feature and seed, and score it on the test set; ``on_progress`` is called after each."""
    names = sorted({label for sentence in train.sentences for label in sentence.labels})
    numbers = {label: i for i, label in enumerate(names)}
    learned = LabelledStates(train, numbers)
    unseen = LabelledStates(test, numbers)
    runs = []
    for feature in features:
        for seed in seeds:
            began = time.perf_counter()
            model = train_tagger(learned, numbers, feature, seed, settings)
            scored = counts(metric, unseen.gold, predict(model, unseen, names, settings.device))
            w = s = gamma = None
            if model.learns_mix:
                w, s = (tuple(v.detach().cpu().tolist()) for v in (model.mix.w, model.mix.s))
            if model.has_mix:
                gamma = model.mix.gamma.item()
            runs.append(TaggingRun(feature.name, seed, scored, time.perf_counter() - began, w, s, gamma))
            on_progress(runs[-1])
    return runs
