"""A call's text as numbers: a vocabulary, each token's place in it, and which rows are wanted. Pure: may import NumPy only.

Readers that hold Arrow arrays have the text in this form already (its dictionary encoding), so that Python touches
distinct words only. `SentenceRows` is the same for a few sentences at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from model.engine.planning.sequences import IntArray, WordArray


@dataclass(frozen=True)
class SentenceRows:
    """A sentence and which of its rows are wanted.

    Attributes:
        tokens: the whole sentence, without boundaries.
        first, stop: rows [first, stop). Rows are tokens 0 to n-1; with boundaries row 0 is BOS, 1 to n are the tokens
            and n+1 is EOS. A sentence of zero tokens has no rows, with or without boundaries.
    """

    tokens: Sequence[str]
    first: int
    stop: int


@dataclass(frozen=True, eq=False)
class Text:
    """Sentences end to end, and which of their rows are wanted.

    Attributes:
        vocabulary: [V] words; a word may stand in it more than once, and need not be used.
        words: int32 [Σ lengths] place in the vocabulary of each token, without boundaries.
        offsets: int64 [n + 1] where each sentence begins in `words`.
        first, stop: int64 [n] wanted rows of each, counted as in `SentenceRows`.
    """

    vocabulary: Sequence[str]
    words: WordArray
    offsets: IntArray
    first: IntArray
    stop: IntArray

    @classmethod
    def of(cls, requests: Sequence[SentenceRows]) -> "Text":
        """From sentences as lists of words."""
        places: dict[str, int] = {}
        tokens = chain.from_iterable(request.tokens for request in requests)
        words = np.array([places.setdefault(token, len(places)) for token in tokens], np.int32)
        offsets = np.cumsum([0, *(len(request.tokens) for request in requests)], dtype=np.int64)
        first, stop = (np.array([getattr(request, name) for request in requests], np.int64) for name in ("first", "stop"))
        return cls(list(places), words, offsets, first, stop)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> IntArray:
        """[n] tokens of each sentence."""
        return np.diff(self.offsets)

    def check(self, boundaries: bool) -> None:
        """ValueError if a sentence does not have the rows that are wanted of it."""
        n_rows = self.lengths + (2 * (self.lengths > 0) if boundaries else 0)
        wrong = np.flatnonzero((self.first < 0) | (self.stop < self.first) | (self.stop > n_rows))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(f"request {i} asks for rows {self.first[i]} to {self.stop[i]} of a sentence that has {n_rows[i]}")
