"""Figures of vectors: pure functions over arrays, every row a token."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.mixing.scalar_mix import layers_of_states

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int64]
OFTEN = 8  # occurrences that a word needs to be measured


def layers_of(states: npt.NDArray[Any], kind: str) -> Float:
    """The layers of tokens' states [n, S, p]: [n, L+1, 2p]; of a mixed store the weight sets as they are, [n, S, channels]."""
    values = states.astype(np.float32)
    return values if kind == "mix" else layers_of_states(values)


def layer_names(states: Sequence[str], kind: str) -> list[str]:
    """What pictures call the layers of `layers_of`."""
    return (
        list(states)
        if kind == "mix"
        else ["layer 0 (x)", *(f"layer {layer}" for layer in range(1, len(states) // 2 + 1))]
    )


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
    length = (
        np.square(units.sum(axis=0, dtype=np.float64)).sum()
        - np.square(units, dtype=np.float64).sum()
    )
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


def occurrences(tokens: Iterable[str]) -> dict[str, Int]:
    """The rows of each token that occurs `OFTEN` times or more."""
    rows: dict[str, list[int]] = {}
    for row, token in enumerate(tokens):
        rows.setdefault(token, []).append(row)
    return {token: np.array(own) for token, own in rows.items() if len(own) >= OFTEN}
