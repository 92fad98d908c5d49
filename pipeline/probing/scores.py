"""Scores of token labels, sentence by sentence, and whether two features' scores differ by more than their sentences do.

Accuracy, and F1 of the spans that IOB2 labels mark; both are 2 · right / (gold + predicted).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Metric = Literal["accuracy", "span-f1"]
_IOB2 = re.compile(r"O|[BI]-.+")
_COVERAGE = 0.95  # of the interval


@dataclass(frozen=True, eq=False)
class Counts:
    """What a score is made of, for each sentence: int64 [sentences] each.

    Attributes:
        right: tokens, or spans, that are predicted as they are.
        gold: how many there are; predicted: how many were predicted.
    """

    right: npt.NDArray[np.int64]
    gold: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]

    @property
    def score(self) -> float:
        """Over all sentences, 0 … 1; 0 where nothing is right."""
        return float(_score(self.table().sum(0)))

    def table(self) -> npt.NDArray[np.int64]:
        """[sentences, 2]: right, gold + predicted."""
        return np.stack([self.right, self.gold + self.predicted], axis=1)

    def __add__(self, other: "Counts") -> "Counts":
        """Of two passes over the same sentences."""
        return Counts(self.right + other.right, self.gold + other.gold, self.predicted + other.predicted)


def counts(metric: Metric, gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Counts:
    """The counts of predicted labels beside the right ones, sentence by sentence."""
    rows = []
    for gs, ps in zip(gold, predicted, strict=True):
        if metric == "accuracy":
            rows.append((sum(g == p for g, p in zip(gs, ps, strict=True)), len(gs), len(ps)))
        else:
            true, found = spans(gs), spans(ps)
            rows.append((len(true & found), len(true), len(found)))
    right, n_gold, n_predicted = np.asarray(rows, np.int64).reshape(-1, 3).T
    return Counts(right, n_gold, n_predicted)


@dataclass(frozen=True)
class Difference:
    """A score less another on the same sentences, with the interval that holds 95% of the bootstrap's differences."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind``, or ``within noise`` where the interval holds 0."""
        if self.low > 0:
            return "ahead"
        return "behind" if self.high < 0 else "within noise"


def paired_bootstrap(first: Counts, second: Counts, *, samples: int = 2000, seed: int = 0) -> Difference:
    """How far ``first`` is ahead of ``second``: sentences drawn with replacement, the same ones for both.

    It says what other test sentences of the same kind would do, not what other training seeds would: give counts summed
    over seeds. Source: Koehn 2004 (Statistical significance tests for machine translation evaluation).
    """
    pair = np.concatenate([first.table(), second.table()], axis=1)  # [sentences, 4]
    n = len(pair)
    chance = np.random.default_rng(seed)
    differences = []
    for _ in range(0, samples, 100):
        drawn = chance.multinomial(n, np.full(n, 1 / n), size=100) @ pair  # [100, 4]
        differences.append(_score(drawn[:, :2]) - _score(drawn[:, 2:]))
    tail = 100 * (1 - _COVERAGE) / 2
    low, high = np.percentile(np.concatenate(differences), [tail, 100 - tail])
    return Difference(first.score - second.score, float(low), float(high))


def _score(table: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """2 · right / (gold + predicted) of [..., 2]; 0 where there is nothing."""
    return np.asarray(2.0 * table[..., 0] / np.maximum(table[..., 1], 1))


def is_iob2(labels: Iterable[str]) -> bool:
    """True if all of ``labels`` are O, B-TYPE or I-TYPE, and not all are O."""
    found = set(labels)
    return all(_IOB2.fullmatch(label) for label in found) and found != {"O"}


def spans(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first, stop, type) of each span. I-TYPE that continues no span of its type begins one, as in CoNLL's own scorer."""
    found, first, kind = set(), 0, ""
    for i, label in enumerate([*labels, "O"]):
        mark, _, this = label.partition("-")
        if kind and (mark != "I" or this != kind):
            found.add((first, i, kind))
            kind = ""
        if mark in ("B", "I") and not kind:
            first, kind = i, this
    return found
