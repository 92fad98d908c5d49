"""Two sentences, token by token."""

import numpy as np

from elmo_store.figures.vectors import Float, unit


def cosines(first: Float, second: Float, weights: Float) -> Float:
    """Cosine of each token of one sentence with each of another, by each of some mixes.

    [n, layers, d], [m, layers, d], [mixes, layers] → [mixes, n, m]; 0 where a vector has no length.
    """
    of_each = [(unit(np.tensordot(s, first, (0, 1))), unit(np.tensordot(s, second, (0, 1)))) for s in weights]
    return np.stack([one @ other.T for one, other in of_each])
