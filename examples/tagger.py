"""A tagger over precomputed stores: the learned mix of the biLM's layers, dropout, one linear layer.

    elmo-store embed en_ewt-ud-train.conllu.xz --keep-fields upos --output out/ud-train
    elmo-store embed en_ewt-ud-test.conllu.xz --keep-fields upos --output out/ud-test
    python examples/tagger.py --train out/ud-train --test out/ud-test --label upos --save mix.th
    elmo-store mix out/ud-test --weights mix.th --output out/ud-test-mixed      # what was learned, as a store

The stores hold every layer and the labels, so neither the biLM nor the annotated text is read. What is learned is γ and w
(Peters et al. 2018, equation 1) and the task's own layer.
"""

import argparse
import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elmo_store
from elmo_store.torch import ScalarMix, SentenceDataset, collate

PADDING = -100  # the target that PyTorch's cross entropy ignores
WARM_UP = 0.05  # share of the steps


class LabelledSentences(Dataset[dict[str, Any]]):
    """A store's sentences that have tokens, with the labels of these from a kept field (`elmo-store embed --keep-fields`).

    SystemExit if the store can't be read, or if the field does not label each row.
    """

    def __init__(self, url: str, field: str) -> None:
        try:
            self.store = elmo_store.open(url)
            columns = self.store.table(["n_tokens", "tokens", field])
        except elmo_store.errors.StoreError as error:
            raise SystemExit(str(error)) from None
        lengths, labels = columns["n_tokens"].to_pylist(), columns[field].to_pylist()
        indices = [i for i, n in enumerate(lengths) if n]
        for i in indices:
            if (
                not isinstance(labels[i], list)
                or len(labels[i]) != self.store.sentence(i).n_rows
                or None in labels[i]
            ):
                raise SystemExit(
                    f"{url}: the field {field} of sentence {i} is {labels[i]!r}, not a label for each of its rows"
                )
        tokens = columns["tokens"].to_pylist()
        self.words = [tokens[i] for i in indices]
        self.labels = [[str(label) for label in labels[i]] for i in indices]
        self.names = sorted({label for own in self.labels for label in own})
        self.sentences = SentenceDataset(self.store, indices=indices)

    @property
    def shape(self) -> tuple[int, int]:
        """L+1, and p."""
        return (len(self.store.states) + 1) // 2, self.store.channels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, items: list[int]) -> list[dict[str, Any]]:
        """A batch at once, so that neighbours are read together."""
        read = self.sentences.__getitems__(items)
        return [
            {**sentence, "labels": self.labels[item]}
            for sentence, item in zip(read, items, strict=True)
        ]


class MixTagger(nn.Module):
    """γ Σ s_j h_j → dropout → linear."""

    def __init__(self, n_layers: int, p: int, n_labels: int) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers=n_layers, dropout=0.1, l2=0.001)
        self.out = nn.Linear(2 * p, n_labels)
        self.penalty = self.mix.penalty

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.mix(states=batch["states"]))
        return scores


def train(model: Any, data: LabelledSentences, epochs: int) -> None:
    """Train with Adam, in batches of 32 sentences; γ and w learn ten times as fast as the tagger's own weights.

    The rate rises over the first steps and falls to zero along a cosine. ``model``: a module that gives the scores [B, n, labels]
    of a batch with `states` [B, n, 2L+1, p] and `mask` [B, n]; its `penalty()` is added to the loss.
    """
    numbers = {name: i for i, name in enumerate(data.names)}
    learned = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    mixes = [weight for name, weight in learned if "mix" in name]
    others = [weight for name, weight in learned if "mix" not in name]
    optimiser = torch.optim.Adam([{"params": others}, {"params": mixes, "lr": 0.03}], lr=0.003)
    loader: DataLoader[dict[str, Any]] = DataLoader(
        data, batch_size=32, shuffle=True, collate_fn=collate
    )
    n_steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min(
            (step + 1) / (WARM_UP * n_steps), 0.5 + 0.5 * math.cos(math.pi * step / n_steps)
        ),
    )
    model.train()
    for _ in range(epochs):
        for batch in loader:
            length = batch["mask"].shape[1]
            gold = [
                [numbers[label] for label in own] + [PADDING] * (length - len(own))
                for own in batch["labels"]
            ]  # [B, n]
            loss = nn.functional.cross_entropy(
                model(batch).flatten(0, 1), torch.tensor(gold).flatten(), ignore_index=PADDING
            )
            optimiser.zero_grad()
            (loss + model.penalty()).backward()
            optimiser.step()
            schedule.step()


@torch.no_grad()
def predict(model: Any, data: LabelledSentences, names: list[str]) -> list[list[str]]:
    """The label of each token, sentence by sentence; ``names`` are those of the training sentences."""
    model.eval()
    predicted = []
    for batch in DataLoader(data, batch_size=256, collate_fn=collate):
        best = model(batch).argmax(dim=-1)  # [B, n]
        predicted += [
            [names[i] for i in row[: len(own)]]
            for row, own in zip(best.tolist(), batch["labels"], strict=True)
        ]
    return predicted


def accuracy(predicted: list[list[str]], data: LabelledSentences) -> float:
    """The tokens with the right label, in percent."""
    pairs = [
        pair
        for both in zip(predicted, data.labels, strict=True)
        for pair in zip(*both, strict=True)
    ]
    return 100 * sum(a == b for a, b in pairs) / len(pairs)


def arguments(description: str) -> argparse.ArgumentParser:
    """The stores, the field, and how long to train."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for side in ("train", "test"):
        parser.add_argument(
            f"--{side}",
            default=f"out/ud-{side}",
            metavar="STORE",
            help=f"store of the {side} sentences",
        )
    parser.add_argument(
        "--label", default="upos", metavar="FIELD", help="kept field with a label for each token"
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training sentences")
    return parser


def main() -> None:
    """Train, test, and print what the mix learned."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument(
        "--save", metavar="FILE", help="the mix's state dict, for `elmo-store mix --weights`"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    training, test = (LabelledSentences(url, args.label) for url in (args.train, args.test))
    model = MixTagger(*training.shape, len(training.names))
    train(model, training, args.epochs)
    print(f"test accuracy {accuracy(predict(model, test, training.names), test):.2f}")
    print(
        f"s {' '.join(f'{share:.3f}' for share in model.mix.s.tolist())}  gamma {model.mix.gamma.item():.3f}"
    )
    if args.save:
        torch.save(model.mix.state_dict(), args.save)


if __name__ == "__main__":
    main()
