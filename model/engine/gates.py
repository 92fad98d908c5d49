"""Which words' share of the first layer's gates is kept, and where.

The table is bounded, and does not change a byte of any result: a row is computed the same way whenever it is needed, so it does
not matter what was held before.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_EMPTY = -1


class GateTable:
    """Slots that hold W_ih · x + b of words for one direction's first layer; the longest unused word makes room.

    There are at least as many slots as one window of steps can hold distinct words. ``compute(words [n], slots [n])``, int64,
    writes the rows of these words.
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
        """Slots of one window's words at once, shape as given; computes the rows that are missing.

        ``n_words`` and ``generation`` are those of the word book that gave the numbers.
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
            self._word_of[slots] = _EMPTY
            self._compute(missing, slots)
            # Not before: what was not computed must never be taken for a word's row.
            self._word_of[slots] = missing
            self._slot_of[missing] = slots
            self._used[slots] = self._clock
        self.n_wanted += words.size
        self.n_computed += len(missing)
        return self._slot_of[words]
