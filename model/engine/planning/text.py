"""A call's text as numbers: a vocabulary, each token's place in it, and which rows are wanted. By NumPy alone.

Readers that hold Arrow arrays have the text in this form already (its dictionary encoding), so that Python touches
distinct words only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from model.engine.planning.sequences import IntArray, WordArray

BOS_ID, EOS_ID = 0, 1  # the words of every `WordBook` that come first


@dataclass(frozen=True, eq=False)
class Text:
    """Sentences end to end, and which of their rows are wanted.

    Attributes:
        vocabulary: [V] words; a word may stand in it more than once, and need not be used.
        words: int32 [Σ lengths] place in the vocabulary of each token, without boundaries.
        offsets: int64 [n + 1] where each sentence begins in `words`.
        first, stop: int64 [n] wanted rows of each. Rows are tokens 0 to n-1; with boundaries row 0 is BOS, 1 to n are the tokens
            and n+1 is EOS. A sentence of zero tokens has no rows, with or without boundaries.
    """

    vocabulary: Sequence[str]
    words: WordArray
    offsets: IntArray
    first: IntArray
    stop: IntArray

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]], boundaries: bool = False) -> "Text":
        """All rows of sentences that are lists of words."""
        numbers: dict[str, int] = {}
        words = np.array(
            [numbers.setdefault(token, len(numbers)) for token in chain.from_iterable(sentences)],
            np.int32,
        )
        lengths = np.array([len(tokens) for tokens in sentences], np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        stop = np.where(lengths > 0, lengths + 2, 0) if boundaries else lengths
        return cls(list(numbers), words, offsets, np.zeros_like(stop), stop)

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
            raise ValueError(
                f"request {i} asks for rows {self.first[i]} to {self.stop[i]} of a sentence that has {n_rows[i]}"
            )


class WordBook:
    """Word → number, from call to call; emptied when it has ``capacity`` words, never in the middle of a call.

    Its vocabulary, the words by number, only grows until it is emptied: whoever holds the list may read its first n words.
    ``boundaries`` are the model's words for BOS and EOS.
    """

    def __init__(self, capacity: int, boundaries: tuple[str, str]) -> None:
        self._capacity = capacity
        self._boundaries = boundaries
        self._empty()

    def _empty(self) -> None:
        self.vocabulary: list[
            str
        ] = []  # a new one: its identity says which emptying a number belongs to
        self._ids: dict[str, int] = {}
        self._add([*self._boundaries])

    def _add(self, words: list[str]) -> None:
        """Number distinct words that have no number yet."""
        self._ids.update((word, number) for number, word in enumerate(words, len(self._ids)))
        self.vocabulary += words

    def numbers(self, words: Sequence[str]) -> npt.NDArray[np.int32]:
        """The number of each of these words, which from now on all have one."""
        # Generators, here and below: between two words another thread can have the interpreter's lock, which `map` keeps.
        new = list(dict.fromkeys(word for word in words if word not in self._ids))
        if new and len(self._ids) + len(new) > self._capacity:
            self._empty()
            new = list(dict.fromkeys(word for word in words if word not in self._ids))
        if new:
            try:
                self._add(new)
            except BaseException:  # half of the words may have their numbers
                self._empty()
                raise
        return np.fromiter((self._ids[word] for word in words), np.int32, len(words))
