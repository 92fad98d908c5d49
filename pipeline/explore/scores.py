"""How well labels of a word's occurrences are told apart, and whether a mix of the layers does it better than one layer.

The measure is nearest-neighbour accuracy: the share of the occurrences whose nearest other one, by
cosine, has the same label. The mixes that are compared are those of a coarse grid over the simplex:
s in steps of a tenth for three layers.

The highest of 66 scores is high by chance alone. So what choosing among mixes is worth is measured
by repeated cross-validation: the mix and the layer are chosen on the training folds, and compared
on the fold that is held out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.vectors import Float, Int

STEPS = 10  # of the grid, at most …
MOST_MIXES = 300  # … and as many as keep the grid within this
SAME = 1e-5  # cosine distance under which vectors are one
FOLDS, REPEATS = 5, 4  # of the cross-validation
MIN_LABELLED = 20  # occurrences; with fewer, a fold of them says nothing
# Nearest neighbours that are kept of each occurrence. One of them is in the training folds, but for a chance of FOLDS ** -32.
KEPT_NEIGHBOURS = 32
ERRORS_APART = (
    2.0  # standard errors by which a mix must be better than the best layer to be suggested
)


@dataclass(frozen=True)
class MixScores:
    """Which occurrences each mix labels correctly, with all other occurrences as neighbours and in the cross-validation.

    Attributes:
        mixes: the weights of each mix [m].
        accuracy: leave-one-out accuracy of each mix over all occurrences [m].
        correct: whether the nearest occurrence of the training folds has the same label [m, splits, n].
        training: the occurrences of each split's training folds [splits, n].
    """

    mixes: Sequence[tuple[float, ...]]
    accuracy: npt.NDArray[np.float64]
    correct: npt.NDArray[np.bool_]
    training: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Suggestion:
    """The weights to use, and what the cross-validation found.

    Attributes:
        s: a mix if one is better than the best layer, otherwise that layer alone.
        layer: the layer with the highest leave-one-out accuracy.
        is_mix: whether ``s`` is a mix.
        mix_accuracy: accuracy of the mixes that the training folds chose, on the held-out occurrences.
        layer_accuracy: accuracy of the single layers that the training folds chose, on the held-out occurrences.
        gain: the former less the latter.
        error: standard error of ``gain``.
        majority: share of the commonest label, which is what always answering it would score.
    """

    s: tuple[float, ...]
    layer: int
    is_mix: bool
    mix_accuracy: float
    layer_accuracy: float
    gain: float
    error: float
    majority: float


def suggestion(layers: Sequence[Float], label: Int) -> Suggestion:
    """Return the weights that separate labels best, which are those of one layer unless a mix is measurably better.

    A mix is suggested if it scores higher than the best layer on held-out occurrences, by more than `ERRORS_APART` standard
    errors, and higher than always answering the commonest label.

    Args:
        layers: the occurrences' vectors in each layer, [n, d] each.
        label: a number for each occurrence's label, [n].

    Raises:
        ValueError: there are fewer than two labels or `MIN_LABELLED` occurrences, or no layer tells occurrences apart.
    """
    scores = scored_mixes(layers, label)
    splits = np.arange(len(scores.training))
    chosen_by = (scores.correct & scores.training).sum(axis=2)  # [m, splits]
    single = np.array([i for i, s in enumerate(scores.mixes) if max(s) == 1])
    best_mix = _highest(chosen_by, scores.mixes)
    best_layer = single[chosen_by[single].argmax(axis=0)]
    held_out = ~scores.training
    # [n]: how often each occurrence is labelled correctly while it is held out, which is once in each repeat
    by_mix = (scores.correct[best_mix, splits] & held_out).sum(axis=0) / REPEATS
    by_layer = (scores.correct[best_layer, splits] & held_out).sum(axis=0) / REPEATS
    gains = by_mix - by_layer
    gain = float(gains.mean())
    error = float(gains.std(ddof=1) / np.sqrt(len(gains)))
    majority = float(np.unique(label, return_counts=True)[1].max() / len(label))
    mix_accuracy = float(by_mix.mean())

    mix = scores.mixes[int(_highest(scores.accuracy[:, None], scores.mixes)[0])]
    layer_alone = scores.mixes[int(single[scores.accuracy[single].argmax()])]
    is_mix = max(mix) < 1 and gain > ERRORS_APART * error and mix_accuracy > majority
    return Suggestion(
        s=mix if is_mix else layer_alone,
        layer=layer_alone.index(1.0),
        is_mix=is_mix,
        mix_accuracy=mix_accuracy,
        layer_accuracy=float(by_layer.mean()),
        gain=gain,
        error=error,
        majority=majority,
    )


def scored_mixes(layers: Sequence[Float], label: Int) -> MixScores:
    """Score each mix of the grid that tells occurrences apart. Args and Raises: as `suggestion`'s."""
    if len(np.unique(label)) < 2:
        raise ValueError("its labelled occurrences have fewer than two labels")
    if len(label) < MIN_LABELLED:
        raise ValueError(
            f"{len(label)} labelled occurrences are not enough labels: it takes {MIN_LABELLED}"
        )
    n = len(layers)
    pairs = list(combinations_with_replacement(range(n), 2))
    # [pairs, n, n]: a mix's products follow from these, so that no mix is ever computed
    grams = np.stack([layers[i] @ layers[j].T for i, j in pairs])
    for gram, (i, j) in zip(grams, pairs, strict=True):
        if i != j:
            gram += gram.T.copy()
    training = _training_folds(len(label))
    mixes, accuracies, correct = [], [], []
    for s in simplex(n):
        products = np.array([s[i] * s[j] for i, j in pairs], np.float32)
        cosines = _cosines_with_others(np.tensordot(products, grams, 1))
        if cosines is None:
            continue
        mixes.append(s)
        accuracies.append(_accuracy(cosines, label))
        nearest = _nearest(cosines)  # [n, k]
        nearest_training = training[:, nearest].argmax(axis=2)  # [splits, n]: the first one there
        neighbour = nearest[np.arange(len(label)), nearest_training]
        correct.append(label[neighbour] == label)
    if not any(max(s) == 1 for s in mixes):
        raise ValueError("all its labelled occurrences have the same vector")
    return MixScores(mixes, np.array(accuracies), np.array(correct), training)


def _training_folds(n: int) -> npt.NDArray[np.bool_]:
    """Return the occurrences that each split trains on [splits, n]; the same every time."""
    random = np.random.default_rng(0)
    folds = [random.permutation(n) % FOLDS for _ in range(REPEATS)]
    return np.array([fold != held_out for fold in folds for held_out in range(FOLDS)])


def _nearest(cosines: Float) -> Int:
    """Return each row's nearest other rows, nearest first [n, k]. Of equally near rows the first comes first."""
    k = min(KEPT_NEIGHBOURS, len(cosines) - 1)
    nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
    nearest.sort(axis=1)
    order = np.argsort(-np.take_along_axis(cosines, nearest, 1), axis=1, kind="stable")
    return np.take_along_axis(nearest, order, 1)


def _highest(scores: npt.NDArray[Any], mixes: Sequence[tuple[float, ...]]) -> Int:
    """Return the mix with the highest score in each column of [m, columns], of equal ones the most even."""
    evenness = np.array([-sum(share * share for share in s) for s in mixes])
    by_evenness = np.argsort(-evenness, kind="stable")
    return by_evenness[scores[by_evenness].argmax(axis=0)]


def simplex(n: int) -> Iterator[tuple[float, ...]]:
    """Weights of ``n`` layers, 1 together, in equal steps."""
    steps = max(q for q in range(1, STEPS + 1) if q == 1 or comb(q + n - 1, n - 1) <= MOST_MIXES)
    for chosen in combinations_with_replacement(range(n), steps):
        yield tuple(chosen.count(layer) / steps for layer in range(n))


def accuracy(gram: Float, label: Int) -> float | None:
    """Leave-one-out nearest-neighbour accuracy by cosine of rows with labels [n]; None where all rows are one vector.

    ``gram``: the rows' products with each other [n, n].
    """
    cosines = _cosines_with_others(gram)
    return None if cosines is None else _accuracy(cosines, label)


def _accuracy(cosines: Float, label: Int) -> float:
    return float((label[cosines.argmax(axis=1)] == label).mean())


def _cosines_with_others(gram: Float) -> Float | None:
    """Return the rows' cosines, -inf with themselves [n, n]; None where all rows are one vector."""
    lengths = np.sqrt(np.maximum(np.diag(gram), 1e-24))
    cosines: Float = (gram / lengths / lengths[:, None]).astype(np.float32, copy=False)
    if cosines.min() > 1 - SAME:
        return None
    np.fill_diagonal(cosines, -np.inf)
    return cosines
