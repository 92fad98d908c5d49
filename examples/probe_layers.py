"""What the layers of a biLM know: taggers on each layer, on their mixes, and on the other ways in which papers use ELMo.

    elmo-store embed en_ewt-ud-train.conllu.xz --keep-fields upos,xpos,deprel --output out/ud-train
    elmo-store embed en_ewt-ud-test.conllu.xz --keep-fields upos,xpos,deprel --output out/ud-test
    python examples/probe_layers.py --train out/ud-train --test out/ud-test --label upos --seeds 5 --plot probe.svg

Prints a table of accuracies over seeds, and the learned γ and s.
"""

import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tagger import LabelledSentences, accuracy, arguments, predict, train
from torch import nn

from elmo_store.torch import ScalarMix, layers_of_states

HIDDEN, DROPOUT, L2 = 64, 0.1, 0.001  # units of a BiLSTM in one direction; of vectors; λ of λ‖w‖²
MIX = "mix"  # the feature whose s and γ are reported


@dataclass(frozen=True)
class Feature:
    """What a tagger sees of a token (Peters et al. 2018, sections 3.2 and 3.3).

    Attributes:
        inputs: of "x", the biLM's vector of the word alone; "mix"; "projection", learned, of all layers side by side.
        w: of the mix at the input: None = learned; of a single layer 0 among -∞. γ is always learned.
        bilstm: whether a BiLSTM reads the inputs; its output is h.
        output_mix: whether a mix of its own stands beside h, before the last layer.
    """

    inputs: tuple[str, ...] = ("mix",)
    w: tuple[float, ...] | None = None
    bilstm: bool = False
    output_mix: bool = False


def features(n_layers: int) -> dict[str, Feature]:
    """All features by name, in the table's order."""
    single = [tuple(0.0 if i == j else -np.inf for i in range(n_layers)) for j in range(n_layers)]
    layers = {
        ("x", *(f"layer {j}" for j in range(1, n_layers)))[j]: Feature(w=w)
        for j, w in enumerate(single)
    }
    return layers | {
        "average": Feature(w=(0.0,) * n_layers),
        MIX: Feature(),
        "projection": Feature(("projection",)),
        "[x; mix]": Feature(("x", "mix")),
        "h": Feature(("x",), bilstm=True),
        "[h; mix]": Feature(("x",), bilstm=True, output_mix=True),
        "[x; mix] and [h; mix]": Feature(("x", "mix"), bilstm=True, output_mix=True),
    }


class Probe(nn.Module):
    """inputs → dropout → (BiLSTM → dropout) → linear."""

    def __init__(self, n_layers: int, p: int, n_labels: int, feature: Feature) -> None:
        super().__init__()
        self.feature = feature
        width = sum({"x": p, "mix": 2 * p, "projection": 2 * p}[name] for name in feature.inputs)
        self.dropout = nn.Dropout(DROPOUT)
        self.mixes = nn.ModuleDict()
        if "mix" in feature.inputs:
            trainable = feature.w is None
            w = feature.w or (0.0,) * n_layers
            self.mixes["input"] = ScalarMix(
                w, trainable=trainable, dropout=DROPOUT, l2=L2 if trainable else 0.0
            )
            self.mixes["input"].gamma.requires_grad_(True)
        if "projection" in feature.inputs:
            self.projection = nn.Linear(n_layers * 2 * p, 2 * p, bias=False)
        if feature.bilstm:
            self.lstm = nn.LSTM(width, HIDDEN, batch_first=True, bidirectional=True)
            width = 2 * HIDDEN
        if feature.output_mix:
            self.mixes["output"] = ScalarMix(n_layers=n_layers, dropout=DROPOUT, l2=L2)
            width += 2 * p
        self.out = nn.Linear(width, n_labels)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Scores [B, n, labels]."""
        states, mask = batch["states"], batch["mask"]  # [B, n, 2L+1, p], [B, n]
        given = []
        for name in self.feature.inputs:
            if name == "mix":
                given.append(self.mixes["input"](states=states))  # [B, n, 2p]
            elif name == "x":
                given.append(self.dropout(states[:, :, 0].float()))  # [B, n, p]
            else:
                given.append(
                    self.dropout(self.projection(layers_of_states(states).float().flatten(2)))
                )  # [B, n, 2p]
        vectors = torch.cat(given, dim=-1)
        if self.feature.bilstm:
            packed = nn.utils.rnn.pack_padded_sequence(
                vectors, mask.sum(dim=1), batch_first=True, enforce_sorted=False
            )
            h, _ = nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0], batch_first=True
            )  # [B, n, 2 HIDDEN]
            vectors = self.dropout(h)
        if self.feature.output_mix:
            vectors = torch.cat([vectors, self.mixes["output"](states=states)], dim=-1)
        scores: torch.Tensor = self.out(vectors)
        return scores

    def penalty(self) -> torch.Tensor:
        """λ‖w‖² of the learned mixes."""
        return sum((mix.penalty() for mix in self.mixes.values() if mix.l2), torch.zeros(()))


def most_frequent(training: LabelledSentences, test: LabelledSentences) -> list[list[str]]:
    """The most frequent training label of each test word, or of all words."""
    by_word: dict[str, Counter[str]] = {}
    for tokens, labels in zip(training.words, training.labels, strict=True):
        for token, label in zip(tokens, labels, strict=True):
            by_word.setdefault(token, Counter())[label] += 1
    every = sum(by_word.values(), Counter[str]()).most_common(1)[0][0]
    best = {word: own.most_common(1)[0][0] for word, own in by_word.items()}
    return [[best.get(token, every) for token in tokens] for tokens in test.words]


def spread(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def plot(
    path: str, label: str, scores: dict[str, list[float]], s: list[list[float]], names: list[str]
) -> None:
    """The scores of the features, and the learned s, as bars with their deviations over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 0.5 + 0.32 * max(len(scores), 4)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    scored = left, list(scores), list(scores.values()), f"{label}: score, percent"
    for panel, rows, values, title in (scored, (right, names, s, "learned s of the mix")):
        means = [statistics.fmean(own) for own in values]
        deviations = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in values]
        panel.barh(rows, means, xerr=deviations, height=0.7)
        panel.bar_label(
            panel.containers[-1], [f"{mean:.2f}" for mean in means], padding=6, fontsize=9
        )
        panel.set_title(title, fontsize=10, loc="left")
        panel.invert_yaxis()
        panel.margins(x=0.2)
    every = [value for own in scores.values() for value in own]
    left.set_xlim(min(every) - 5, max(every) + 0.2 * (max(every) - min(every) + 5))
    figure.savefig(path)


def main() -> None:
    """Train every feature's taggers; print, and draw."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each feature")
    parser.add_argument(
        "--features",
        metavar="NAME,…",
        help="those of the table (default: the layers, average, mix)",
    )
    parser.add_argument("--plot", metavar="FILE", help="scores and s as a picture, .svg or .png")
    args = parser.parse_args()
    torch.set_num_threads(1)  # steps are small
    training, test = (LabelledSentences(url, args.label) for url in (args.train, args.test))
    if training.shape != test.shape:
        raise SystemExit(
            f"{args.train} has (layers, channels) {training.shape}, {args.test} {test.shape}: use one model"
        )
    n_layers, p = training.shape
    known = features(n_layers)
    layers = list(known)[:n_layers]
    wanted = args.features.split(",") if args.features else [*layers, "average", MIX]
    if unknown := set(wanted) - known.keys():
        raise SystemExit(
            f"--features: no {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )

    scores = {"most frequent": [accuracy(most_frequent(training, test), test)]}
    mixes = []
    for name in wanted:
        scores[name] = []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            model = Probe(n_layers, p, len(training.names), known[name])
            train(model, training, args.epochs)
            scores[name].append(accuracy(predict(model, test, training.names), test))
            print(f"{name}, seed {seed}: {scores[name][-1]:.2f}", file=sys.stderr)
            if name == MIX:
                mixes.append(model.mixes["input"])

    print(f"| feature | {args.label} |\n|---|---|")
    for name, own in scores.items():
        print(f"| {name} | {spread(own)} |")
    if not mixes:
        return
    s = torch.stack([mix.s for mix in mixes], dim=1).tolist()  # [layers, seeds]
    print(
        "\n".join(
            f"s of {name}: {spread(values, 3)}" for name, values in zip(layers, s, strict=True)
        )
    )
    print(f"gamma: {spread([mix.gamma.item() for mix in mixes], 3)}")
    if args.plot:
        plot(args.plot, args.label, scores, s, layers)


if __name__ == "__main__":
    main()
