"""Word numbers as arrays: sequences end to end, and which of their tokens go to which rows. By NumPy alone.

A GPU computes millions of tokens a second, so nothing here takes Python a step a token.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.int32]


def ranges(first: IntArray, count: IntArray) -> IntArray:
    """first[i], first[i] + 1, …: count[i] numbers for each i, one after the other."""
    ends = np.cumsum(count)
    return np.arange(int(count.sum())) + np.repeat(first - (ends - count), count)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of word numbers, end to end: words int32 [Σ lengths], offsets [n + 1] where each begins in them."""

    words: WordArray
    offsets: IntArray

    @classmethod
    def cut(cls, words: WordArray, first: IntArray, length: IntArray) -> "Sequences":
        """Slices of an array, which may overlap."""
        return cls(
            words[ranges(first, length)], np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """[n] tokens of each."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class Rows:
    """One direction's sequences and where their tokens' states go.

    Pick i takes tokens first[i], first[i] + 1, … (count[i] of them) of sequence index[i] to rows row[i], row[i] + row_step, ….
    """

    sequences: Sequences  # what is computed, each with its boundary first
    index: IntArray  # this and the next three: int64 [picks]
    first: IntArray
    row: IntArray
    count: IntArray
    row_step: int  # 1 forward, -1 backward

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        """The picks of some of the sequences, ``chosen`` [n sequences]."""
        kept = chosen[self.index]  # [picks]
        sequences = Sequences.cut(
            self.sequences.words,
            self.sequences.offsets[:-1][chosen],
            self.sequences.lengths[chosen],
        )
        index = (np.cumsum(chosen) - 1)[self.index[kept]]
        return Rows(
            sequences, index, self.first[kept], self.row[kept], self.count[kept], self.row_step
        )


def bounded(words: WordArray, lengths: IntArray, first: int, last: int) -> Sequences:
    """Sentences of these lengths, end to end in `words`, each put between two boundaries."""
    offsets = np.concatenate([[0], np.cumsum(lengths + 2)]).astype(np.int64)
    with_boundaries = np.empty(offsets[-1], np.int32)
    with_boundaries[offsets[:-1]] = first
    with_boundaries[offsets[1:] - 1] = last
    with_boundaries[ranges(offsets[:-1] + 1, lengths)] = words
    return Sequences(with_boundaries, offsets)


def _distinct(words: WordArray, first: IntArray, length: IntArray) -> tuple[Sequences, IntArray]:
    """The different ones among slices of an array, in order of their first appearance; and which of them each slice is."""
    raw, size = words.tobytes(), words.itemsize
    seen: dict[bytes, int] = {}
    bounds = zip((first * size).tolist(), ((first + length) * size).tolist(), strict=True)
    index = np.array([seen.setdefault(raw[low:high], len(seen)) for low, high in bounds], np.int64)
    kept = np.flatnonzero(np.diff(np.maximum.accumulate(index), prepend=-1))
    return Sequences.cut(words, first[kept], length[kept]), index


def sentence_rows(
    sentences: Sequences, first: IntArray, stop: IntArray
) -> tuple[Rows, Rows, WordArray]:
    """What a call's sentences ask of each direction, every sentence from the start state.

    Forward nothing after the last wanted row matters, backward nothing before the first. Equal sequences are computed once.
    ``sentences``: boundaries included; ``first``, ``stop``: [n] wanted tokens of each, counted from BOS; none where they are
    equal. Returns forward, backward, and the word of each row, rows being the wanted tokens in order.
    """
    wanted = np.flatnonzero(stop > first)
    begin, end, first, stop = (
        sentences.offsets[:-1][wanted],
        sentences.offsets[1:][wanted],
        first[wanted],
        stop[wanted],
    )
    count = stop - first
    row = np.cumsum(count) - count
    words = sentences.words
    forward = Rows(*_distinct(words, begin, stop), first, row, count, 1)
    sequences, index = _distinct(
        np.ascontiguousarray(words[::-1]), len(words) - end, end - begin - first
    )
    backward = Rows(sequences, index, end - begin - stop, row + count - 1, count, -1)
    return forward, backward, words[ranges(begin + first, count)]
