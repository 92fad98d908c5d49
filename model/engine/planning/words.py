"""Words by number, from call to call."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model.characters import BOS, EOS, n_truncated_words

BOS_ID, EOS_ID = 0, 1


class WordBook:
    """Word → number, on the host; emptied when it is full, never in the middle of a call.

    Its vocabulary, the words by number, only grows until it is emptied: whoever holds the list may read its first n words.

    Args:
        capacity: words after which the next call starts with an empty book.
        max_chars: characters the model reads of a word, markers included.
    """

    def __init__(self, capacity: int, max_chars: int) -> None:
        self._capacity = capacity
        self._max_chars = max_chars
        self._empty()

    def _empty(self) -> None:
        self.vocabulary: list[str] = []  # a new one: its identity says which emptying a number belongs to
        self._ids: dict[str, int] = {}
        self._truncated = np.zeros(0, bool)
        self._add([BOS, EOS])

    def _add(self, words: list[str]) -> None:
        """Number distinct words that have no number yet."""
        n = len(self._ids)
        # n_truncated_words encodes only words that might be too long.
        truncated = [len(w) * 4 > self._max_chars - 2 and n_truncated_words([w], self._max_chars) > 0 for w in words]
        if n + len(words) > len(self._truncated):
            self._truncated = np.resize(self._truncated, max(n + len(words), min(self._capacity, 2 * n)))
        self._truncated[n : n + len(words)] = truncated
        self._ids.update(zip(words, range(n, n + len(words)), strict=True))
        self.vocabulary += words

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        """[words] whether the word is longer than the model reads."""
        return self._truncated[: len(self._ids)]

    def numbers(self, words: Sequence[str]) -> npt.NDArray[np.int32]:
        """The number of each of these words, which from now on all have one."""
        new = [word for word in dict.fromkeys(words) if word not in self._ids]
        if new and len(self._ids) + len(new) > self._capacity:
            self._empty()
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
        if new:
            try:
                self._add(new)
            except BaseException:  # half of the words may have their numbers
                self._empty()
                raise
        return np.fromiter(map(self._ids.__getitem__, words), np.int32, len(words))
