"""Exact neighbours over a sample of rows, for any mix of the layers: pure.

With m = Σ s_k q_k, the cosine of m and a row's mix is Σ_k s_k (m · h_k) / (|m| · √(sᵀ G s)), where G holds the row's products
of its layers among themselves. So a new s costs one product of each layer's matrix with one vector, and no row is ever mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import VectorSample
from elmo_store.figures.vectors import Float, layer_name
from elmo_store.mixing.scalar_mix import layers_of_states


@dataclass(frozen=True)
class Found:
    """Neighbours, nearest first: row of the store, its place in the sample (-1 outside of it), its cosine."""

    row: int
    place: int
    cosine: float


def query_layers(states: npt.NDArray[Any], kind: str) -> Float:
    """The layers of one token's states [S, p]: [L+1, 2p]; of a mixed store the weight sets as they are, [S, channels]."""
    values = states.astype(np.float32)
    return values if kind == "mix" else layers_of_states(values[None])[0]


def layer_names(states: Sequence[str], kind: str) -> list[str]:
    """What the layers of `query_layers` are called."""
    return list(states) if kind == "mix" else [layer_name(layer) for layer in range((len(states) + 1) // 2)]


class Sample:
    """Rows of a store in memory, ready for any mix.

    Attributes:
        text: the rows' tokens, sentences and places; its states are empty, they are held here in float32.
    """

    def __init__(self, sample: VectorSample, kind: str) -> None:
        n = len(sample.row)
        self.text = replace(sample, states=sample.states[:0])
        self._doubled = kind == "states"  # layer 0 is [x; x]: one half is held
        if self._doubled:
            pairs = [sample.states[:, 2 * j - 1 : 2 * j + 1].reshape(n, -1) for j in range(1, (sample.states.shape[1] + 1) // 2)]
            blocks = [sample.states[:, 0], *pairs]
        else:
            blocks = [sample.states[:, k] for k in range(sample.states.shape[1])]
        self._blocks = [np.ascontiguousarray(block, np.float32) for block in blocks]  # [n, p], then [n, 2p] each
        self._gram = self._products_of_layers()
        self._place = {int(row): place for place, row in enumerate(sample.row)}

    def __len__(self) -> int:
        return len(self.text.row)

    def _products_of_layers(self) -> Float:
        """G: [n, L+1, L+1]."""
        n, k = len(self), len(self._blocks)
        gram = np.empty((n, k, k), np.float32)
        for i in range(k):
            for j in range(i, k):
                gram[:, i, j] = gram[:, j, i] = self._pair(i, j)
        return gram

    def _pair(self, i: int, j: int) -> Float:
        a, b = self._blocks[i], self._blocks[j]
        if self._doubled and i == 0:
            if j == 0:
                return np.float32(2) * np.einsum("nd,nd->n", a, a)
            half = a.shape[1]
            both: Float = np.einsum("nd,nd->n", a, b[:, :half]) + np.einsum("nd,nd->n", a, b[:, half:])
            return both
        found: Float = np.einsum("nd,nd->n", a, b)
        return found

    def place(self, row: int) -> int | None:
        """Place of a row in the sample."""
        return self._place.get(row)

    def layers_at(self, place: int) -> Float:
        """The layers of one row: [L+1, 2p]."""
        rows = [block[place] for block in self._blocks]
        if self._doubled:
            rows[0] = np.concatenate([rows[0], rows[0]])
        return np.stack(rows)

    def cosines(self, query: Float, s: Sequence[float]) -> Float:
        """Cosine of the query's mix with every row's: [n]. ``query``: [L+1, 2p]; zero where a mix has no length."""
        weights = np.asarray(s, np.float32)
        m = weights @ query  # [2p]
        dots = np.zeros(len(self), np.float32)
        for k, block in enumerate(self._blocks):
            if weights[k]:
                vector = m.reshape(2, -1).sum(axis=0) if self._doubled and k == 0 else m
                dots += weights[k] * (block @ vector)
        squares = self._gram.reshape(len(self), -1) @ np.outer(weights, weights).reshape(-1)
        lengths = np.sqrt(np.maximum(squares, 0)) * np.linalg.norm(m)
        found: Float = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 1e-12)
        return found

    def nearest(self, query: Float, s: Sequence[float], n: int, without: int | None = None) -> list[Found]:
        """The ``n`` rows nearest to the query's mix, without the row ``without`` of the store."""
        cosines = self.cosines(query, s)
        if without is not None and (place := self.place(without)) is not None:
            cosines[place] = -2
        few = min(n, len(cosines) - (without is not None and self.place(without) is not None))
        if few <= 0:
            return []
        best = np.argpartition(-cosines, few - 1)[:few]
        best = best[np.lexsort((best, -cosines[best]))]
        return [Found(int(self.text.row[place]), int(place), float(cosines[place])) for place in best]

    def mixed(self, places: npt.NDArray[np.int64], s: Sequence[float]) -> Float:
        """Σ s_k h_k of some rows: [len(places), 2p]."""
        mixed = np.zeros((len(places), self._blocks[-1].shape[1]), np.float32)
        for k, block in enumerate(self._blocks):
            rows = block[places]
            mixed += np.float32(s[k]) * (np.concatenate([rows, rows], axis=1) if self._doubled and k == 0 else rows)
        return mixed


def two_groups(vectors: Float, rounds: int = 20) -> npt.NDArray[np.int64]:
    """0 or 1 for each row, by 2-means on directions, begun at the row farthest from the mean and the row farthest from that."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
    if len(units) < 2:
        return np.zeros(len(units), np.int64)
    first = int(np.argmin(units @ units.mean(axis=0)))
    centres = units[[first, int(np.argmin(units @ units[first]))]]
    group = np.zeros(len(units), np.int64)
    for _ in range(rounds):
        group = np.argmax(units @ centres.T, axis=1)
        if group.min() == group.max():
            break
        centres = np.stack([units[group == g].mean(axis=0) for g in (0, 1)])
    return group
