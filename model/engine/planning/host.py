"""The host's half of a call: text → numbers of words, sequences, plans of both directions, where each state goes.

Pure but for the word book, which remembers numbers from call to call.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from model.engine.planning.grid import Limits, PlannedDirection, choose_lanes
from model.engine.planning.sequences import Rows, WordArray, bounded, sentence_rows
from model.engine.planning.text import BOS_ID, EOS_ID, Text, WordBook


@dataclass(frozen=True, eq=False)
class Group:
    """Sentences low to high of a call, planned."""

    low: int
    high: int
    first_row: int  # of the call's rows
    words: WordArray  # int32 [rows] number of each row's word
    sides: tuple[Rows, Rows]  # what forward and backward compute
    planned: list[list[PlannedDirection]]  # how, for lanes that may be outdated: one grid, or two with the long sequences in one


@dataclass(frozen=True, eq=False)
class Prepared:
    """A call that can be run."""

    text: Text  # of the call, its words being numbers of the word book, its rows counted from BOS
    vocabulary: list[str]  # of the word book, of which the first n_words must be known
    n_words: int
    groups: list[Group]  # of the call's sentences, in order
    n_rows: int


class Host:
    """Prepares calls; the limits are those of the device that will run them, asked for anew with each plan."""

    def __init__(self, limits: Callable[[], Limits], word_capacity: int, boundaries: tuple[str, str]) -> None:
        self._limits = limits
        self._book = WordBook(word_capacity, boundaries)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")  # a direction each

    def prepare(self, text: Text, *, boundaries: bool) -> Prepared:
        """All that can be done for a call before the device begins; for one thread at a time. ValueError as of `Text.check`."""
        text.check(boundaries)
        numbers = self._book.numbers(text.vocabulary)  # [V]
        words = numbers[text.words] if len(numbers) else text.words
        vocabulary, offset = self._book.vocabulary, 0 if boundaries else 1
        numbered = Text(vocabulary, words, text.offsets, text.first + offset, text.stop + offset)
        groups = self.groups(numbered, 0, len(text), 0)
        return Prepared(numbered, vocabulary, len(vocabulary), groups, int((text.stop - text.first).sum()))

    def groups(self, text: Text, low: int, high: int, first_row: int) -> list[Group]:
        """Sentences low to high, whose rows begin at first_row, in groups of as many rows as the device takes at once."""
        limit = self._limits().group_rows
        ends = np.cumsum(text.stop[low:high] - text.first[low:high])  # [n] rows up to and with each sentence
        groups = []
        begin = done = 0  # sentences and rows that are in a group
        while begin < high - low:
            until = len(ends) if limit is None else min(len(ends), int(np.searchsorted(ends, done + limit)) + 1)
            group = self._group(text, low + begin, low + until, first_row + done)
            if len(group.words):
                groups.append(group)
            begin, done = until, int(ends[until - 1])
        return groups

    def _group(self, text: Text, low: int, high: int, first_row: int) -> Group:
        words = text.words[text.offsets[low] : text.offsets[high]]
        sentences = bounded(words, text.lengths[low:high], BOS_ID, EOS_ID)
        forward, backward, row_words = sentence_rows(sentences, text.first[low:high], text.stop[low:high])
        sides = (forward, backward) if len(row_words) else ()
        return Group(low, high, first_row, row_words, (forward, backward), list(self._pool.map(self.planned, sides)))

    def planned(self, side: Rows) -> list[PlannedDirection]:
        """One direction, laid out for the device as it is now.

        Which of two grids a sequence goes to depends on its own length alone: its bytes do not depend on the batch.
        """
        limits, lengths = self._limits(), side.sequences.lengths
        long = lengths > limits.long_tokens if limits.long_lanes else np.zeros(len(lengths), bool)
        planned = []
        for chosen, lane_choices in ((~long, limits.lane_choices), (long, limits.long_lanes)):
            if chosen.any():
                part = side if chosen.all() else side.only(chosen)
                lanes = choose_lanes(part.sequences.lengths, lane_choices)
                planned.append(PlannedDirection.of(part, lanes, limits))
        return planned
