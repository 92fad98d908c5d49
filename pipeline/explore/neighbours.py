"""Nearest rows of a store by any mix of its layers, exact over a sample in memory.

The cosine of two mixes is sᵀ P s / √(sᵀ Q s · sᵀ G s), where P holds the products of the query's layers with the row's, Q and G
those of each one's layers among themselves. G is taken once for all rows, P once for each query: a new s then costs (L+1)²
numbers a row, and no row is ever mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import VectorSample
from elmo_store.figures.vectors import Float, layer_name
from elmo_store.mixing.scalar_mix import layers_of_states

GRAM_ROWS = 1024
TINY = np.float32(1e-12)  # below it a vector has no direction


@dataclass(frozen=True)
class Neighbour:
    """A row of the store, its index in the sample, its cosine."""

    row: int
    index: int
    cosine: float


def layers_of(states: npt.NDArray[Any], kind: str) -> Float:
    """The layers of tokens' states [n, S, p]: [n, L+1, 2p]; of a mixed store the weight sets as they are, [n, S, channels]."""
    values = states.astype(np.float32)
    return values if kind == "mix" else layers_of_states(values)


def query_layers(states: npt.NDArray[Any], kind: str) -> Float:
    """`layers_of` one token: [S, p] → [L+1, 2p]."""
    return layers_of(states[None], kind)[0]


def layer_names(states: Sequence[str], kind: str) -> list[str]:
    """What the layers of `query_layers` are called."""
    return list(states) if kind == "mix" else [layer_name(layer) for layer in range((len(states) + 1) // 2)]


class Layers:
    """Where each layer stands among a row's states side by side: x, then pairs; of a mixed store one a set.

    Layer 0 of a states store is [x; x], of which one half is held.
    """

    def __init__(self, n_states: int, channels: int, kind: str) -> None:
        self._doubles_first = kind == "states"
        width = 2 * channels if self._doubles_first else channels
        stops = [channels + k * width for k in range((n_states + 1) // 2 if self._doubles_first else n_states)]
        self.slices = [slice(max(0, stop - width), stop) for stop in stops]

    def whole(self, k: int, block: Float) -> Float:
        """Layer ``k`` [..., 2p] of what is held of it."""
        return np.concatenate([block, block], axis=-1) if k == 0 and self._doubles_first else block

    def mixed(self, blocks: Sequence[Float], s: npt.NDArray[np.float32]) -> Float:
        """Σ s_k h_k of the layers' blocks [n, …]: [n, 2p]."""
        mixed: Float = sum(weight * self.whole(k, block) for k, (weight, block) in enumerate(zip(s, blocks, strict=True)))
        return mixed

    def queries(self, m: Float) -> list[Float]:
        """What each layer's block is to be multiplied with, so that the product is that of the whole layer and ``m`` [2p]."""
        folded = [m.reshape(2, -1).sum(axis=0)] if self._doubles_first else []
        return folded + [m] * (len(self.slices) - len(folded))


class RowSample:
    """Rows of a store in memory, ready for any mix.

    Attributes:
        text: the rows' tokens, sentences and positions; its states are empty, they are held here in float32.
    """

    def __init__(self, sample: VectorSample, kind: str) -> None:
        n, n_states, channels = sample.states.shape
        self.text = replace(sample, states=sample.states[:0])
        self._layers = Layers(n_states, channels, kind)
        rows = sample.states.reshape(n, -1)
        self._blocks = [np.ascontiguousarray(rows[:, columns], np.float32) for columns in self._layers.slices]
        gram = np.empty((n, len(self._blocks), len(self._blocks)), np.float32)
        for first in range(0, n, GRAM_ROWS):
            few = slice(first, first + GRAM_ROWS)
            layers = [self._layers.whole(k, block[few]) for k, block in enumerate(self._blocks)]
            for (i, layer), (j, other) in combinations_with_replacement(enumerate(layers), 2):
                gram[few, i, j] = gram[few, j, i] = np.einsum("nd,nd->n", layer, other)
        self._index = {int(row): index for index, row in enumerate(sample.row)}
        self._gram = gram.reshape(n, -1)
        self._asked: tuple[bytes, Float] = (b"", np.empty((0, 0), np.float32))  # the last query, and its products
        self._rows_of: dict[str, list[int]] = {}
        for index, token in enumerate(sample.token):
            self._rows_of.setdefault(token, []).append(index)
        self._first_of_each = np.array([rows[0] for rows in self._rows_of.values()], np.int64)

    def __len__(self) -> int:
        return len(self.text.row)

    def index_of(self, row: int) -> int | None:
        """Where a row of the store is in the sample."""
        return self._index.get(row)

    def layers_at(self, index: int) -> Float:
        """The layers of one row: [L+1, 2p]."""
        return np.stack([self._layers.whole(k, block[index]) for k, block in enumerate(self._blocks)])

    def cosines(self, query: Float, s: Sequence[float]) -> Float:
        """Cosine of the query's mix with every row's: [n]. ``query``: [L+1, 2p]; zero where a mix has no length."""
        weights = np.asarray(s, np.float32)
        pairs = np.outer(weights, weights).reshape(-1)
        lengths = np.sqrt(np.maximum(self._gram @ pairs, 0)) * np.linalg.norm(weights @ query)
        return _divided(self._products(query) @ pairs, lengths)

    def _products(self, query: Float) -> Float:
        """Products of the query's layers with each row's: [n, layers²]. Those of the last query are kept."""
        key, products = self._asked
        if key != query.tobytes():
            folded = [
                np.stack(vectors) for vectors in zip(*map(self._layers.queries, query), strict=True)
            ]  # a layer: [layers, w]
            products = np.stack([block @ q.T for block, q in zip(self._blocks, folded, strict=True)], axis=1).reshape(
                len(self), -1
            )
            self._asked = (query.tobytes(), products)
        return products

    def nearest(
        self, query: Float, s: Sequence[float], n: int, without: int | None = None, *, types: bool = False
    ) -> list[Neighbour]:
        """The ``n`` rows nearest to the query's mix, without the row ``without`` of the store.

        ``types``: one row of each word, without that row's word: for layer 0, where all rows of a word are one vector.
        """
        cosines = self.cosines(query, s)
        left_out = None if without is None else self.index_of(without)
        if left_out is not None:
            cosines[self._rows_of[self.text.token[left_out]] if types else left_out] = -2
        rows = self._first_of_each if types else np.arange(len(self))
        rows = rows[cosines[rows] > -2]
        n = min(n, len(rows))
        if n <= 0:
            return []
        best = rows[np.argpartition(-cosines[rows], n - 1)[:n]]
        best = best[np.lexsort((best, -cosines[best]))]
        return [Neighbour(int(self.text.row[index]), int(index), float(cosines[index])) for index in best]

    def occurrences(self, word: str, most: int) -> tuple[npt.NDArray[np.int64], int]:
        """Where a word is in the sample, in order: at most so many, drawn at random (the same every time), and of how many."""
        rows = np.array(self._rows_of.get(word, ()), np.int64)
        drawn = rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        return drawn, len(rows)

    def mixed(self, indices: npt.NDArray[np.int64], s: Sequence[float]) -> Float:
        """Σ s_k h_k of some rows: [len(indices), 2p]."""
        return self._layers.mixed([block[indices] for block in self._blocks], np.asarray(s, np.float32))


def _divided(dots: Float, lengths: Float) -> Float:
    cosines: Float = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > TINY)
    return cosines
