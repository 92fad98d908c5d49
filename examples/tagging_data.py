"""What both tagging examples share: labels of a CoNLL-U file beside a store's sentences, and what to do when one is missing.

    elmo-store embed en_ewt-ud-train.conllu.xz --output out/ud-train
    elmo-store embed en_ewt-ud-test.conllu.xz --output out/ud-test

Needs elmo_store, PyTorch and the standard library.
"""

import argparse
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import elmo_store
from elmo_store.torch import SentenceDataset, collate

PADDING = -100  # the target that PyTorch's cross entropy passes over


def arguments(description: str) -> argparse.ArgumentParser:
    """The files, and how long to train."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for side in ("train", "test"):
        parser.add_argument(f"--{side}", default=f"out/ud-{side}", metavar="STORE", help=f"store of the {side} sentences")
        parser.add_argument(f"--{side}-labels", type=Path, default=Path(f"en_ewt-ud-{side}.conllu.xz"), metavar="CONLLU")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training sentences")
    parser.add_argument("--seed", type=int, default=0, help="of first weights, dropout and order")
    return parser


def read_upos(path: Path) -> list[list[str]]:
    """The UPOS labels of each sentence's words, the same words that `elmo-store embed` reads from a CoNLL-U file."""
    sentences: list[list[str]] = [[]]
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if fields[0].isdecimal():  # not a comment, a multi-word token or an empty node
                sentences[-1].append(fields[3])
            elif not line.strip() and sentences[-1]:
                sentences.append([])
    return [labels for labels in sentences if labels]


class LabelledSentences(Dataset[dict[str, Any]]):
    """A store's sentences with their labels, checked to be the same sentences."""

    def __init__(self, store: str, labels: Path) -> None:
        self.sentences = SentenceDataset(store)
        self.labels = read_upos(labels)
        if len(self.sentences) != len(self.labels):
            raise SystemExit(f"{store} has {len(self.sentences)} sentences, {labels} {len(self.labels)}")
        for index, own in zip(self.sentences.indices, self.labels, strict=True):
            n_rows = self.sentences.store.sentence(index).n_rows
            if n_rows != len(own):
                raise SystemExit(f"sentence {index} of {store} has {n_rows} rows, its labels in {labels} are {len(own)}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, items: list[int]) -> list[dict[str, Any]]:
        """A batch at once, so that neighbours are read together."""
        found = self.sentences.__getitems__(items)
        return [{**sentence, "labels": self.labels[item]} for sentence, item in zip(found, items, strict=True)]

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.__getitems__([item])[0]


def open_or_explain(store: str, labels: Path) -> LabelledSentences:
    """The labelled sentences; where a file is missing the program ends and says what to put where."""
    if not labels.is_file():
        raise SystemExit(
            f"no labels at {labels}: give a CoNLL-U file with UPOS labels, such as UD English EWT's "
            "(https://universaldependencies.org), as --train-labels and --test-labels"
        )
    try:
        return LabelledSentences(store, labels)
    except elmo_store.errors.StoreNotFoundError:
        raise SystemExit(f"no store at {store}: make it with\n  elmo-store embed {labels} --output {store}") from None


def batches(data: LabelledSentences, *, shuffle: bool) -> DataLoader[dict[str, Any]]:
    """Batches of 32 sentences: `states` [B, n, 2L+1, p], `mask` [B, n], `tokens`, `labels`."""
    return DataLoader(data, batch_size=32, shuffle=shuffle, collate_fn=collate)


def targets(labels: list[list[str]], numbers: dict[str, int], length: int) -> torch.Tensor:
    """Numbers of the labels [B, n]; padding, and labels that training never saw, are left out of the loss."""
    rows = [[numbers.get(label, PADDING) for label in own] + [PADDING] * (length - len(own)) for own in labels]
    return torch.tensor(rows)


def train_and_test(
    model: torch.nn.Module,
    scores: Callable[[dict[str, Any]], torch.Tensor],
    penalty: Callable[[], torch.Tensor],
    train: LabelledSentences,
    test: LabelledSentences,
    epochs: int,
) -> float:
    """Train with Adam, then the share of the test tokens that get their label.

    Args:
        scores: of a batch, [B, n, labels].
        penalty: what the mixes add to the loss.
    """
    names = label_names(train)
    numbers = {name: i for i, name in enumerate(names)}
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    model.train()
    for epoch in range(epochs):
        for batch in batches(train, shuffle=True):
            gold = targets(batch["labels"], numbers, batch["mask"].shape[1])  # [B, n]
            loss = torch.nn.functional.cross_entropy(scores(batch).flatten(0, 1), gold.flatten(), ignore_index=PADDING)
            optimiser.zero_grad()
            (loss + penalty()).backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in batches(test, shuffle=False):
            best = scores(batch).argmax(dim=-1)  # [B, n]
            for row, own in zip(best.tolist(), batch["labels"], strict=True):
                right += sum(names[i] == label for i, label in zip(row, own, strict=False))
                total += len(own)
    return right / total


def label_names(data: LabelledSentences) -> list[str]:
    """The labels that occur, sorted."""
    return sorted({label for labels in data.labels for label in labels})
