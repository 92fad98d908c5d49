"""Figures of vectors: pure functions over arrays, every row a token.

A *view* is one vector a token: a layer of a biLM, or one weight set of a mixed store: name → [n, d].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.text import ENGLISH
from elmo_store.format.layout import have_layers
from elmo_store.mixing.scalar_mix import layers_of_states

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int64]
PAIRS = 20_000
MAP_POINTS = 600
POSITIONS = 24


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


def norms_by_position(views: Mapping[str, Float], position: Int) -> dict[str, npt.NDArray[np.float64]]:
    """Mean norm of each view at positions 0, 1, … of a sentence: [POSITIONS], NaN where the sample has none."""
    counts = np.bincount(position[position < POSITIONS], minlength=POSITIONS)
    means = {}
    for name, vectors in views.items():
        norms = np.linalg.norm(vectors, axis=1)
        sums = np.bincount(position[position < POSITIONS], norms[position < POSITIONS], POSITIONS)
        with np.errstate(invalid="ignore"):
            means[name] = sums / counts
    return means


def cosines_between_states(states: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Mean cosine between the states of the same token: [n, states, p] → [states, states]."""
    n, n_states, width = states.shape
    flat = unit(states.reshape(n * n_states, width).astype(np.float32)).reshape(n, n_states, width)
    return np.einsum("nip,njp->ij", flat, flat, dtype=np.float64, optimize=True) / max(1, n)


def anisotropy(views: Mapping[str, Float], seed: int = 0) -> dict[str, float]:
    """Mean cosine of random pairs of different rows, for each view; 0 for fewer than two rows."""
    cosines = {}
    for name, vectors in views.items():
        n = len(vectors)
        if n < 2:
            cosines[name] = 0.0
            continue
        random = np.random.default_rng(seed)
        left = random.integers(0, n, PAIRS)
        right = (left + random.integers(1, n, PAIRS)) % n
        units = unit(vectors)
        cosines[name] = float(np.einsum("nd,nd->n", units[left], units[right]).mean())
    return cosines


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
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1, 1)  # a sign is no part of the result
    total = max(float(variances.sum()), 1e-30)
    return Map(centred[rows] @ axes, rows, (float(variances[-1]) / total, float(variances[-2]) / total))


def nearest(vectors: Float, row: int, n: int, exclude: npt.NDArray[np.bool_]) -> list[tuple[int, float]]:
    """The ``n`` rows with the highest cosine to ``row``, best first, with the cosine; rows of ``exclude`` are left out."""
    units = unit(vectors)
    cosines = units @ units[row]
    cosines[exclude] = -np.inf
    cosines[row] = -np.inf
    best = np.argsort(-cosines, kind="stable")[:n]
    return [(int(i), float(cosines[i])) for i in best if np.isfinite(cosines[i])]


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


def telling_words(tokens: Sequence[str], n_words: int = 4, at_least: int = 4) -> list[str]:
    """Words to show neighbours of: lower-case, 4 letters or more, not rare, no function words of English; commonest first."""
    counts: dict[str, int] = {}
    for token in tokens:
        if len(token) >= 4 and token.isalpha() and token.islower() and token not in ENGLISH:
            counts[token] = counts.get(token, 0) + 1
    fit = [word for word, count in counts.items() if count >= at_least]
    return sorted(fit, key=lambda word: (-counts[word], word))[:n_words]
