"""Scores of token labels: accuracy, and F1 of the spans that IOB2 labels mark. Imports the standard library alone."""

import re
from collections.abc import Iterable, Sequence

_IOB2 = re.compile(r"O|[BI]-.+")


def accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Share of tokens with the right label, 0 … 1."""
    pairs = [(g, p) for gs, ps in zip(gold, predicted, strict=True) for g, p in zip(gs, ps, strict=True)]
    return sum(g == p for g, p in pairs) / len(pairs)


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


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Micro-averaged F1 of spans whose bounds and type are both right, 0 … 1; 0 where nothing is right."""
    right = n_gold = n_predicted = 0
    for gs, ps in zip(gold, predicted, strict=True):
        true, found = spans(gs), spans(ps)
        right += len(true & found)
        n_gold += len(true)
        n_predicted += len(found)
    return 2 * right / (n_gold + n_predicted) if right else 0.0
