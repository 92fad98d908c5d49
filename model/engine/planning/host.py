"""The host's half of a call: text → numbers of words, sequences, plans of both directions, where each state goes.

Pure but for the word book, which remembers numbers from call to call.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from model.engine.planning.grid import DirectionPlan, choose_lanes, plan_direction
from model.engine.planning.sequences import IntArray, Rows, WordArray, bounded, sentence_rows
from model.engine.planning.text import Text
from model.engine.planning.words import BOS_ID, EOS_ID, WordBook


@dataclass(frozen=True, eq=False)
class PlannedDirection:
    """One direction of a group, or its short or its long sequences only, as its device runs it.

    Attributes:
        plan: the grid.
        index: int64 [rows] where each wanted state stands in the output of its window, in order of window.
        row: int64 [rows] the row that it goes to.
        bounds: [windows + 1] where each window's states begin in the two.
        n_asked: tokens that a grid without sharing would have had.
    """

    plan: DirectionPlan
    index: IntArray
    row: IntArray
    bounds: IntArray
    n_asked: int


@dataclass(frozen=True, eq=False)
class Group:
    """Sentences low to high of a call, planned, and their rows: first_row on, as many as words.

    Attributes:
        words: int32 [rows] number of each row's word.
        sides: what forward and backward compute; planned: how, for lanes that may be outdated: one grid, or two of which
            the second has the long sequences.
    """

    low: int
    high: int
    first_row: int
    words: WordArray
    sides: tuple[Rows, Rows]
    planned: list[list[PlannedDirection]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A call that can be run.

    Attributes:
        text: of the call, its words being numbers of the vocabulary.
        first, stop: int64 [n] wanted rows of each sentence, counted from BOS.
        vocabulary, n_words: words that must be known.
        groups: of the call's sentences, in order.
        n_rows: of the result.
        n_truncated: rows of words that are longer than the model reads.
        seconds: taken by preparing.
    """

    text: Text
    first: IntArray
    stop: IntArray
    vocabulary: list[str]
    n_words: int
    groups: list[Group]
    n_rows: int
    n_truncated: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """What planning must know of a device.

    Attributes:
        lane_choices: numbers of lanes that give the same bytes, of which a grid may have any.
        narrower: numbers of lanes that the end of a grid may be computed with, giving the same bytes.
        long_lanes: numbers of lanes of a grid for sequences of more than long_tokens, so that these do not set the steps of
            all others; none where a grid's end can be narrower.
        group_rows: rows after which a call's requests are cut into groups, so that copying one group's result goes on
            while the next is computed; None = one group.
        window: steps of a window, at most; window_cells: lanes × steps of one, at most.
    """

    lane_choices: Sequence[int]
    window: int
    window_cells: int
    narrower: Sequence[int] = ()
    long_lanes: Sequence[int] = ()
    long_tokens: int = 0
    group_rows: int | None = None


class Host:
    """Prepares calls.

    Args:
        limits: those of the device that will run them, asked for anew with each plan.
        word_capacity, max_chars: see `WordBook`.
    """

    def __init__(self, limits: Callable[[], Limits], word_capacity: int, max_chars: int) -> None:
        self._limits = limits
        self._book = WordBook(word_capacity, max_chars)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="plan")  # a direction each

    def prepare(self, text: Text, *, boundaries: bool) -> Prepared:
        """All that can be done for a call before the device begins; for one thread at a time.

        Raises:
            ValueError: a request asks for rows that its sentence does not have.
        """
        began = time.perf_counter()
        text.check(boundaries)
        numbers = self._book.numbers(text.vocabulary)  # [V]
        words = numbers[text.words] if len(numbers) else text.words
        numbered = Text(self._book.vocabulary, words, text.offsets, text.first, text.stop)
        offset = 0 if boundaries else 1
        first, stop = text.first + offset, text.stop + offset
        groups = self.groups(numbered, first, stop, 0, len(text), 0)
        return Prepared(
            text=numbered,
            first=first,
            stop=stop,
            vocabulary=self._book.vocabulary,
            n_words=len(self._book),
            groups=groups,
            n_rows=int((stop - first).sum()),
            n_truncated=sum(int(self._book.truncated[group.words].sum()) for group in groups),
            seconds=time.perf_counter() - began,
        )

    def groups(self, text: Text, first: IntArray, stop: IntArray, low: int, high: int, first_row: int) -> list[Group]:
        """Sentences low to high, whose rows begin at first_row, in groups of as many rows as the device takes at once."""
        limit = self._limits().group_rows
        ends = np.cumsum(stop[low:high] - first[low:high])  # [n] rows up to and with each sentence
        groups = []
        begin = done = 0  # sentences and rows that are in a group
        while begin < high - low:
            until = len(ends) if limit is None else min(len(ends), int(np.searchsorted(ends, done + limit)) + 1)
            group = self._group(text, first, stop, low + begin, low + until, first_row + done)
            if len(group.words):
                groups.append(group)
            begin, done = until, int(ends[until - 1])
        return groups

    def _group(self, text: Text, first: IntArray, stop: IntArray, low: int, high: int, first_row: int) -> Group:
        begin, end = text.offsets[low], text.offsets[high]
        sentences = bounded(text.words[begin:end], text.lengths[low:high], BOS_ID, EOS_ID)
        forward, backward, words = sentence_rows(sentences, first[low:high], stop[low:high])
        sides = (forward, backward) if len(words) else ()
        planned = list(self._pool.map(self.planned, sides))
        return Group(low, high, first_row, words, (forward, backward), planned)

    def planned(self, side: Rows) -> list[PlannedDirection]:
        """One direction, laid out for the device as it is now.

        Which of two grids a sequence goes to depends on its own length alone: its bytes do not depend on the batch.
        """
        limits = self._limits()
        if not limits.long_lanes:
            return [self._grid(side, limits.lane_choices)]
        long = side.sequences.lengths > limits.long_tokens
        if not long.any():
            return [self._grid(side, limits.lane_choices)]
        if long.all():
            return [self._grid(side, limits.long_lanes)]
        return [self._grid(side.only(~long), limits.lane_choices), self._grid(side.only(long), limits.long_lanes)]

    def _grid(self, side: Rows, lane_choices: Sequence[int]) -> PlannedDirection:
        limits = self._limits()
        lanes = choose_lanes(side.sequences.lengths, lane_choices)
        plan = plan_direction(side.sequences, lanes, idle_word=BOS_ID, narrower=limits.narrower)
        windows = np.array(plan.windows(limits.window, limits.window_cells), np.int64).reshape(-1, 3)  # first step, steps, lanes
        index, row, bounds = side.placed(plan.cells, lanes, windows)
        return PlannedDirection(plan, index, row, bounds, side.n_asked)
