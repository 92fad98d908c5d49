"""Figures of vectors: pure functions over arrays, every row a token.

A *view* is one vector a token: a layer of a biLM, or one weight set of a mixed store: name → [n, d].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import have_layers
from elmo_store.mixing.scalar_mix import layers_of_states

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int64]
MAP_POINTS = 600
OFTEN = 8  # occurrences that a word needs to be measured


def views_of(states: npt.NDArray[Any], names: Sequence[str], kind: str) -> dict[str, Float]:
    """The views of rows [n, len(names), p] of a store: its layers, its states where it has a few of them, or its weight sets."""
    values = states.astype(np.float32)
    if kind == "mix" or not have_layers(names):
        return {name: values[:, index] for index, name in enumerate(names)}
    layers = layers_of_states(values)  # [n, L+1, 2p]
    return {layer_name(layer): layers[:, layer] for layer in range(layers.shape[1])}


def layer_name(layer: int) -> str:
    """What pictures call a layer."""
    return "layer 0 (x)" if layer == 0 else f"layer {layer}"


def unit(vectors: Float) -> Float:
    """Each row divided by its length; rows of zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: Float = vectors / np.maximum(lengths, np.float32(1e-12))
    return units


def norms_by_state(states: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Quantiles 0.05, 0.25, 0.5, 0.75, 0.95 of the norms of each state: [n, states, p] → [states, 5]."""
    norms = np.linalg.norm(states.astype(np.float32), axis=2)  # [n, states]
    return np.quantile(norms, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0).T.astype(np.float64)


def mean_cosine(units: Float) -> float:
    """Mean cosine of all pairs of different unit rows [n, d]; 0 for fewer than two."""
    n = len(units)
    length = np.square(units.sum(axis=0, dtype=np.float64)).sum() - np.square(units, dtype=np.float64).sum()
    return float(length) / max(1, n * (n - 1))


def anisotropy(vectors: Float) -> float:
    """Mean cosine of all pairs of different rows, 0 for fewer than two: the baseline of Ethayarajh 2019 (arXiv:1909.00512)."""
    return mean_cosine(unit(vectors))


def self_similarity(vectors: Float, occurrences: Iterable[Int]) -> float:
    """Mean over words of the mean cosine of all pairs of a word's rows (Ethayarajh 2019, not corrected); NaN without words."""
    units = unit(vectors)
    each = [mean_cosine(units[rows]) for rows in occurrences]
    return float(np.mean(each)) if each else float("nan")


def intra_sentence_similarity(vectors: Float, sentence: Int) -> float:
    """Mean over sentences of the mean cosine of a row to the mean of its sentence's (Ethayarajh 2019, not corrected).

    Sentences of one row are left out; NaN without others.
    """
    _, place, sizes = np.unique(sentence, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), vectors.shape[1]), np.float32)
    np.add.at(sums, place, vectors)
    cosines = np.einsum("nd,nd->n", unit(vectors), unit(sums)[place])
    means = np.bincount(place, cosines, len(sizes)) / sizes
    return float(means[sizes > 1].mean()) if (sizes > 1).any() else float("nan")


@dataclass(frozen=True)
class Map:
    """A view in two dimensions.

    Attributes:
        points: [m, 2] coordinates along the first two principal components. rows: [m] which rows of the view they are.
        explained: share of the variance in each component.
    """

    points: npt.NDArray[np.float64]
    rows: Int
    explained: tuple[float, float]


def pca_map(vectors: Float, n_points: int = MAP_POINTS) -> Map:
    """Evenly spaced rows of a view along its first two principal components, found from all its rows."""
    n, width = vectors.shape
    rows = np.unique(np.linspace(0, max(0, n - 1), min(n, n_points)).astype(np.int64))
    if n < 3 or width < 2:
        return Map(np.zeros((len(rows), 2)), rows, (0.0, 0.0))
    centred = vectors - vectors.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T.astype(np.float64) @ centred.astype(np.float64) / n)  # ascending
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1, 1)  # a sign is not part of the result
    total = max(float(variances.sum()), 1e-30)
    return Map(centred[rows] @ axes, rows, (float(variances[-1]) / total, float(variances[-2]) / total))


def kind_of_token(token: str) -> str:
    """What maps colour by: "word", "Capitalised", "number", "punctuation" or "other"."""
    if any(character.isdigit() for character in token):
        return "number"
    if not any(character.isalnum() for character in token):
        return "punctuation"
    if token[0].isupper():
        return "Capitalised"
    return "word" if token[0].isalpha() else "other"


TOKEN_KINDS = ("word", "Capitalised", "number", "punctuation", "other")


def occurrences(tokens: Iterable[str]) -> dict[str, Int]:
    """The rows of each token that occurs `OFTEN` times or more."""
    rows: dict[str, list[int]] = {}
    for row, token in enumerate(tokens):
        rows.setdefault(token, []).append(row)
    return {token: np.array(own) for token, own in rows.items() if len(own) >= OFTEN}
