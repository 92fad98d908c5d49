"""The host's half of a call: text → numbers of words, sequences, plans of both directions, where each state goes.

Pure but for the word book, which remembers numbers from call to call.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from model.engine.planning.grid import Limits, PlannedDirection, choose_lanes
from model.engine.planning.sequences import Rows, WordArray, bounded, sentence_rows
from model.engine.planning.text import BOS_ID, EOS_ID, Text, WordBook


@dataclass(frozen=True, eq=False)
class Group:
    """Sentences of a call that are computed together, planned."""

    first_row: int  # of the call's rows
    words: WordArray  # int32 [rows] number of each row's word
    planned: list[
        list[PlannedDirection]
    ]  # forward and backward: one grid each, or two with the long sequences in one


@dataclass(frozen=True, eq=False)
class Prepared:
    """A call that can be run."""

    text: Text  # of the call, its words being numbers of the word book, its rows counted from BOS
    vocabulary: list[str]  # of the word book, of which the first n_words must be known
    n_words: int
    limits: Limits  # that it was planned for
    groups: list[Group]  # of the call's sentences, in order
    n_rows: int


class Host:
    """Prepares calls."""

    def __init__(self, word_capacity: int, boundaries: tuple[str, str]) -> None:
        self._book = WordBook(word_capacity, boundaries)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")  # a direction each

    def prepare(self, text: Text, limits: Limits, *, boundaries: bool) -> Prepared:
        """All that can be done for a call before the device begins; for one thread at a time. ValueError as of `Text.check`."""
        text.check(boundaries)
        numbers = self._book.numbers(text.vocabulary)  # [V]
        words = numbers[text.words] if len(numbers) else text.words
        vocabulary, offset = self._book.vocabulary, 0 if boundaries else 1
        numbered = Text(vocabulary, words, text.offsets, text.first + offset, text.stop + offset)
        groups = self._groups(numbered, limits)
        return Prepared(
            numbered,
            vocabulary,
            len(vocabulary),
            limits,
            groups,
            int((text.stop - text.first).sum()),
        )

    def planned_for(self, limits: Limits, prepared: Prepared) -> Prepared:
        """The same call for other limits."""
        return replace(prepared, limits=limits, groups=self._groups(prepared.text, limits))

    def _groups(self, text: Text, limits: Limits) -> list[Group]:
        """The call's sentences in groups of as many rows as the device takes at once."""
        ends = np.cumsum(text.stop - text.first)  # [n] rows up to and with each sentence
        groups = []
        begin = done = 0  # sentences and rows that are in a group
        while begin < len(text):
            rows = limits.group_rows
            until = (
                len(text)
                if rows is None
                else min(len(text), int(np.searchsorted(ends, done + rows)) + 1)
            )
            if ends[until - 1] > done:
                groups.append(self._group(text, slice(begin, until), done, limits))
            begin, done = until, int(ends[until - 1])
        return groups

    def _group(self, text: Text, part: slice, first_row: int, limits: Limits) -> Group:
        words = text.words[text.offsets[part.start] : text.offsets[part.stop]]
        sentences = bounded(words, text.lengths[part], BOS_ID, EOS_ID)
        forward, backward, row_words = sentence_rows(sentences, text.first[part], text.stop[part])
        return Group(
            first_row,
            row_words,
            list(self._pool.map(partial(planned, limits=limits), (forward, backward))),
        )


def planned(side: Rows, limits: Limits) -> list[PlannedDirection]:
    """One direction, laid out for a device.

    Which of two grids a sequence goes to depends on its own length alone: its bytes do not depend on the batch.
    """
    lengths = side.sequences.lengths
    long = lengths > limits.long_tokens if limits.long_lanes else np.zeros(len(lengths), bool)
    grids = []
    for chosen, lane_choices in ((~long, limits.lane_choices), (long, limits.long_lanes)):
        if chosen.any():
            part = side if chosen.all() else side.only(chosen)
            lanes = choose_lanes(part.sequences.lengths, lane_choices)
            grids.append(PlannedDirection.of(part, lanes, limits))
    return grids
