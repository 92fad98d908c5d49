"""Nearest rows of a store by any mix of its layers, exact over a sample in memory.

The cosine of two mixes is sᵀ P s / √(sᵀ Q s · sᵀ G s), where P holds the products of the query's layers with the row's, Q and G
those of each one's layers among themselves. G is taken once for all rows, P once for each query: a new s then costs (L+1)²
numbers a row, and no row is ever mixed.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elmo_store.figures.gather import VectorSample
from elmo_store.figures.vectors import Float, Int, layers_of

GRAM_ROWS = 1024
TINY = np.float32(1e-12)  # below it a vector has no direction


class RowSample:
    """Rows of a store in memory, ready for any mix."""

    def __init__(self, sample: VectorSample, kind: str) -> None:
        n, n_layers, width = len(sample.row), *layers_of(sample.states[:1], kind).shape[1:]
        self.text = replace(
            sample, states=sample.states[:0]
        )  # tokens, sentences, positions; states are held here in float32
        self.layers = np.empty((n, n_layers, width), np.float32)  # [n, L+1, 2p]
        self._gram = np.empty((n, n_layers, n_layers), np.float32)
        for first in range(0, n, GRAM_ROWS):
            few = slice(first, first + GRAM_ROWS)
            self.layers[few] = layers = layers_of(sample.states[few], kind)
            self._gram[few] = layers @ layers.transpose(0, 2, 1)
        self.index_of = {
            int(row): index for index, row in enumerate(sample.row)
        }  # of a row of the store
        self._asked: tuple[bytes, Float] = (
            b"",
            np.empty((0, 0), np.float32),
        )  # the last query, and its products
        self._rows_of: dict[str, list[int]] = {}
        for index, token in enumerate(sample.token):
            self._rows_of.setdefault(token, []).append(index)
        self._first_of_each = np.array([rows[0] for rows in self._rows_of.values()], np.int64)

    def __len__(self) -> int:
        return len(self.text.row)

    def cosines(self, query: Float, s: Sequence[float]) -> Float:
        """Cosine of the query's mix with every row's: [n]. ``query``: [L+1, 2p]; zero where a mix has no length."""
        weights = np.asarray(s, np.float32)
        pairs = np.outer(weights, weights).reshape(-1)
        lengths = np.sqrt(
            np.maximum(self._gram.reshape(-1, len(pairs)) @ pairs, 0)
        ) * np.linalg.norm(weights @ query)
        dots = self._products(query) @ pairs
        cosines: Float = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > TINY)
        return cosines

    def _products(self, query: Float) -> Float:
        """Products of the query's layers with each row's: [n, layers²]. Those of the last query are kept."""
        key, products = self._asked
        if key != query.tobytes():
            rows = self.layers.reshape(
                -1, query.shape[1]
            )  # one product of two matrices, which BLAS is made for
            products = (rows @ query.T).reshape(-1, len(query) ** 2)
            self._asked = (query.tobytes(), products)
        return products

    def nearest(
        self,
        query: Float,
        s: Sequence[float],
        n: int,
        without: int | None = None,
        *,
        types: bool = False,
    ) -> tuple[Int, Float]:
        """Indices and cosines of the ``n`` rows nearest to the query's mix, without the row ``without`` of the store.

        ``types``: one row of each word, without that row's word: for layer 0, where all rows of a word are one vector.
        """
        cosines = self.cosines(query, s)
        left_out = None if without is None else self.index_of.get(without)
        if left_out is not None:
            cosines[self._rows_of[self.text.token[left_out]] if types else left_out] = -2
        rows = self._first_of_each if types else np.arange(len(self))
        rows = rows[cosines[rows] > -2]
        n = min(n, len(rows))
        best = rows[np.argpartition(-cosines[rows], n - 1)[:n]] if n else rows
        best = best[np.lexsort((best, -cosines[best]))]
        return best, cosines[best]

    def occurrences(self, word: str, most: int) -> tuple[Int, int]:
        """Where a word is in the sample, in order: at most so many, drawn at random (the same every time), and of how many."""
        rows = np.array(self._rows_of.get(word, ()), np.int64)
        drawn = (
            rows
            if len(rows) <= most
            else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        )
        return drawn, len(rows)

    def mixed(self, indices: Int, s: Sequence[float]) -> Float:
        """Σ s_k h_k of some rows: [len(indices), 2p]."""
        mixed: Float = np.einsum("k,nkd->nd", np.asarray(s, np.float32), self.layers[indices])
        return mixed
