"""Sequences as lists of numbers."""

from collections.abc import Iterable, Sequence

import numpy as np

from model.engine.planning.sequences import Sequences


def sequences_of(sequences: Iterable[Sequence[int]]) -> Sequences:
    """The engine's form of them."""
    listed = list(sequences)
    words = np.array([word for sequence in listed for word in sequence], np.int32)
    return Sequences(words, np.cumsum([0, *map(len, listed)], dtype=np.int64))
