"""How well labels of a word's occurrences are told apart, and which mix of the layers does it best.

The measure is leave-one-out nearest-neighbour accuracy: the share of the occurrences whose nearest other one, by cosine, has the
same label. The mixes that are tried are those of a coarse grid over the simplex: s in steps of a tenth for three layers.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from elmo_store.figures.vectors import Float, Int

STEPS = 10  # of the grid, at most …
MOST_MIXES = 300  # … and as many as keep the grid within this
SAME = 1e-5  # cosine distance under which vectors are one


def scored_mixes(layers: Sequence[Float], label: Int) -> dict[tuple[float, ...], float]:
    """The accuracy of each mix of the grid that tells occurrences apart, by its weights. ``layers``: [n, d] each, ``label``: [n].

    ValueError unless two labels occur, and some layer tells occurrences apart.
    """
    if len(np.unique(label)) < 2:
        raise ValueError("its labelled occurrences have fewer than two labels")
    n = len(layers)
    pairs = list(combinations_with_replacement(range(n), 2))
    grams = np.stack(
        [layers[i] @ layers[j].T for i, j in pairs]
    )  # [pairs, n, n]: no mix is ever made
    for gram, (i, j) in zip(grams, pairs, strict=True):
        if i != j:
            gram += gram.T.copy()
    scored = {}
    for s in simplex(n):
        products = np.array([s[i] * s[j] for i, j in pairs], np.float32)
        value = accuracy(np.tensordot(products, grams, 1), label)
        if value is not None:
            scored[s] = value
    if not scored:
        raise ValueError("all its labelled occurrences have the same vector")
    return scored


def simplex(n: int) -> Iterator[tuple[float, ...]]:
    """Weights of ``n`` layers, 1 together, in equal steps."""
    steps = max(q for q in range(1, STEPS + 1) if q == 1 or comb(q + n - 1, n - 1) <= MOST_MIXES)
    for chosen in combinations_with_replacement(range(n), steps):
        yield tuple(chosen.count(layer) / steps for layer in range(n))


def accuracy(gram: Float, label: Int) -> float | None:
    """Leave-one-out nearest-neighbour accuracy by cosine of rows with labels [n]; None where all rows are one vector.

    ``gram``: the rows' products with each other [n, n].
    """
    lengths = np.sqrt(np.maximum(np.diag(gram), 1e-24))
    cosines = gram / lengths / lengths[:, None]
    if cosines.min() > 1 - SAME:
        return None
    np.fill_diagonal(cosines, -np.inf)
    return float((label[cosines.argmax(axis=1)] == label).mean())
