"""What is known of a word is not computed again: its vector x, and its share of the first layer's gates.

May import torch, NumPy and the model's own modules. Both tables are bounded, and neither changes a byte of any result:
a row is computed the same way whenever it is needed, so it does not matter what the table held before.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.characters import BOS, EOS, n_words_cut
from model.engine.sequences import Sequences, bounded

BOS_ID, EOS_ID = 0, 1
_EMPTY = -1
_CPU = torch.device("cpu")

__all__ = ["BOS_ID", "EOS_ID", "GateTable", "NoTable", "WordBook"]


class WordBook:
    """Word ↔ number, and x of each word; emptied when it is full, never in the middle of a call.

    Args:
        compute: distinct words → x [n, p] float32, on the device where the book keeps them.
        projection_dim: p.
        capacity: words after which the next call starts with an empty book.
        max_chars: characters the model reads of a word, markers included.
        device: where x is kept.
    """

    def __init__(
        self,
        compute: Callable[[list[str]], Tensor],
        projection_dim: int,
        capacity: int,
        max_chars: int,
        device: torch.device = _CPU,
    ) -> None:
        self._compute = compute
        self._capacity = capacity
        self._max_chars = max_chars
        self._ids: dict[str, int] = {}
        self._x = torch.empty(0, projection_dim, device=device)
        self._cut = np.zeros(0, bool)
        self.generation = 0  # counts the emptyings: numbers of another generation mean other words
        self.n_computed = 0  # words that the CNN saw, the two boundaries not counted

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def x(self) -> Tensor:
        """[words, p] float32; row k belongs to word number k."""
        return self._x[: len(self._ids)]

    @property
    def cut(self) -> npt.NDArray[np.bool_]:
        """[words] whether the word is longer than the model reads."""
        return self._cut[: len(self._ids)]

    def learn(self, words: Iterable[str]) -> dict[str, int]:
        """Make sure that every word has a number and its x; the returned dict holds at least these words."""
        distinct = dict.fromkeys([BOS, EOS])
        distinct.update(dict.fromkeys(words))
        new = [word for word in distinct if word not in self._ids]
        if new and self._ids and len(self._ids) + len(new) > self._capacity:
            self._ids.clear()
            self.generation += 1
            new = list(distinct)
        if not new:
            return self._ids
        x = self._compute(new)  # [new, p]
        n = len(self._ids)
        if n + len(new) > len(self._x):
            room = max(n + len(new), min(self._capacity, 2 * len(self._x)))
            grown, cut = torch.empty(room, x.shape[1], device=x.device), np.zeros(room, bool)
            grown[:n], cut[:n] = self._x[:n], self._cut[:n]
            self._x, self._cut = grown, cut
        self._x[n : n + len(new)] = x
        for i, word in enumerate(new, start=n):
            self._ids[word] = i
            # n_words_cut encodes only words that might be too long.
            self._cut[i] = n_words_cut([word], self._max_chars) > 0
        self.n_computed += sum(word not in (BOS, EOS) for word in new)
        return self._ids

    def numbered(self, sentences: Sequence[Sequence[str]]) -> Sequences:
        """The sentences' word numbers, boundaries included; x of every word is known after it."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        ids = self.learn(chain.from_iterable(sentences))
        numbers = np.fromiter(map(ids.__getitem__, chain.from_iterable(sentences)), np.int32, int(lengths.sum()))
        return bounded(numbers, lengths, BOS_ID, EOS_ID)


class GateTable:
    """Slots that hold W_ih · x + b of words for one direction's first layer; the longest unused word makes room.

    Args:
        n_slots: capacity; at least as many as the distinct words that one window of steps can hold.
        compute: numbers of words → rows, written into these slots: compute(words int64 [n], slots int64 [n]).
    """

    def __init__(self, n_slots: int, compute: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], None]) -> None:
        self.n_slots = n_slots
        self._compute = compute
        self._generation = 0
        self._word_of = np.full(n_slots, _EMPTY, np.int64)  # slot → word
        self._slot_of = np.full(0, _EMPTY, np.int64)  # word → slot
        self._asked = np.zeros(0, bool)  # word → whether the present window needs it
        # slot → clock of its last use; free slots are taken from the first on, so that memory is touched as needed
        self._used = np.arange(-n_slots, 0)
        self._clock = 0
        self.n_wanted = 0
        self.n_computed = 0

    def slots(self, words: npt.NDArray[np.int32], n_words: int, generation: int) -> npt.NDArray[np.int64]:
        """Slots of all these words at once, shape as given; computes the rows that are missing.

        Args:
            words: word numbers of one window, any shape.
            n_words, generation: of the word book that gave the numbers.
        """
        if generation != self._generation:
            self._word_of.fill(_EMPTY)
            self._slot_of.fill(_EMPTY)
            self._generation = generation
        if n_words > len(self._slot_of):
            grown = np.full(max(n_words, 2 * len(self._slot_of)), _EMPTY, np.int64)
            grown[: len(self._slot_of)] = self._slot_of
            self._slot_of = grown
            self._asked = np.zeros(len(grown), bool)
        self._clock += 1
        self._asked[words] = True  # sorting the window's words would take longer
        needed = np.flatnonzero(self._asked)
        self._asked[needed] = False
        if len(needed) > self.n_slots:
            raise ValueError(f"{len(needed)} distinct words in a window, the table has {self.n_slots} slots")
        held = self._slot_of[needed]
        self._used[held[held != _EMPTY]] = self._clock
        missing = needed[held == _EMPTY]
        if len(missing):
            # Nothing that this window needs is among the longest unused: those have just been marked.
            slots = np.sort(np.argpartition(self._used, len(missing) - 1)[: len(missing)])
            old = self._word_of[slots]
            self._slot_of[old[old != _EMPTY]] = _EMPTY
            self._word_of[slots] = missing
            self._slot_of[missing] = slots
            self._used[slots] = self._clock
            self._compute(missing, slots)
        self.n_wanted += words.size
        self.n_computed += len(missing)
        return self._slot_of[words]


class NoTable(GateTable):
    """Stands in for a table where every cell computes its own row: slots are the words themselves."""

    def __init__(self) -> None:
        super().__init__(0, lambda words, slots: None)

    def slots(self, words: npt.NDArray[np.int32], n_words: int, generation: int) -> npt.NDArray[np.int64]:
        """The words, each of them wanted and computed."""
        self.n_wanted += words.size
        self.n_computed += words.size
        return words.astype(np.int64)
