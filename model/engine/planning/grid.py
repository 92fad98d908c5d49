"""Sequences of words → a grid of lanes × steps that wastes next to nothing.

One direction of a biLM reads every sentence as a sequence of word numbers, boundary first (forward: BOS, words…; backward:
EOS, words reversed…). The state after the boundary is the same for all of them, and a direction computes it once
(`Direction.opening`): a sequence begins with its second token. This module decides which lane computes which sequence from which
step on:

- Sequences are laid end to end in B lanes, longest first, into the lane that is free first (list scheduling: Graham 1969).
- Lanes are numbered by when they end, the last one first, so that those with work left are always the first ones, and
  the end of a grid can be computed with fewer.

Nothing here looks at values, so a plan is a pure function of the sequences, the number of lanes and the device's limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.engine.planning.sequences import IntArray, Rows, Sequences, ranges
from model.engine.planning.text import BOS_ID

OPENING = -1  # in place of a cell: the boundary, which no cell computes


@dataclass(frozen=True)
class Limits:
    """What planning must know of a device."""

    lane_choices: Sequence[
        int
    ]  # numbers of lanes that give the same bytes: a grid has any of them, its end a smaller one
    window: int  # steps of a window, at most
    window_cells: int  # lanes × steps of a window, at most, where that is a step at least
    # Numbers of lanes of a grid for sequences of more than long_tokens, so that these do not set the steps of all others; none
    # where a grid's end can be narrower.
    long_lanes: Sequence[int] = ()
    long_tokens: int = 0
    # Rows after which a call's requests are cut into groups, so that copying one group's result goes on while the next is
    # computed; None = one group.
    group_rows: int | None = None


@dataclass(frozen=True)
class DirectionPlan:
    """Everything the engine needs to run one direction: B lanes, T steps."""

    lanes: int
    words: npt.NDArray[np.int32]  # [T, B] word of each cell; BOS where a lane has nothing to do
    begins: npt.NDArray[
        np.bool_
    ]  # [T, B] whether the lane begins a sequence here, from the state after the boundary
    cells: IntArray  # [Σ lengths] step × B + lane of each token of the sequences, end to end; OPENING for their first
    windows: list[
        tuple[int, int, int]
    ]  # first step, steps, and how many of the lanes, the first ones, are enough

    @property
    def n_cells(self) -> int:
        return sum(steps * lanes for _, steps, lanes in self.windows)

    @property
    def n_computed(self) -> int:
        return int(np.count_nonzero(self.cells != OPENING))


def schedule(length: IntArray, lanes: int) -> tuple[IntArray, IntArray]:
    """Lane and first step of each piece of these lengths: longest first, into the lane that is free first, the lowest of equals.

    In rounds: the lanes in the order in which they are free take a piece each, as long as the next lane is free before all
    that have taken one. Pieces that come longest first make about as many rounds as a lane gets pieces.
    """
    order = np.argsort(-length, kind="stable")
    free = np.arange(lanes)  # step × B + lane, in order
    taken = np.empty(len(length), np.int64)
    done = 0
    while done < len(length):
        pieces = order[done : done + lanes]
        after = free[: len(pieces)] + length[pieces] * lanes
        too_late = free[1 : len(pieces)] > np.minimum.accumulate(after)[:-1]
        n = int(too_late.argmax()) + 1 if too_late.any() else len(pieces)
        taken[pieces[:n]] = free[:n]
        free[:n] = after[:n]
        free.sort()
        done += n
    start, lane = np.divmod(taken, lanes)
    return lane, start


def plan_direction(sequences: Sequences, lanes: int, limits: Limits) -> DirectionPlan:
    """Lay sequences, in reading order and none empty, out in B lanes."""
    offsets, length = sequences.offsets, sequences.lengths - 1  # without the boundary
    lane, start = schedule(length, lanes)
    stop = start + length
    lane, spans = _by_end(lane, stop, lanes, limits.lane_choices)
    steps = int(stop.max(initial=0))
    words, begins = np.full(steps * lanes, BOS_ID, np.int32), np.zeros((steps, lanes), bool)
    cells = np.full(len(sequences.words), OPENING, np.int64)
    token = ranges(offsets[:-1] + 1, length)
    cells[token] = ranges(start, length) * lanes + np.repeat(lane, length)
    words[cells[token]] = sequences.words[token]
    begins[start[length > 0], lane[length > 0]] = True
    return DirectionPlan(lanes, words.reshape(steps, lanes), begins, cells, _windows(spans, limits))


def _by_end(
    lane: IntArray, stop: IntArray, lanes: int, choices: Sequence[int]
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Lanes numbered anew, the last to end first, of each piece (lane, stop [n]); and (lanes, until which step they do)."""
    ends = np.zeros(lanes, np.int64)
    np.maximum.at(ends, lane, stop)
    order = np.argsort(-ends, kind="stable")  # [B] old number of each new lane
    number = np.empty(lanes, np.int64)
    number[order] = np.arange(lanes)
    widths = sorted({lanes, *(n for n in choices if n < lanes)}, reverse=True)
    # Lanes from the next smaller width on have nothing to do after this step.
    spans = [
        (width, int(ends[order[following]]))
        for width, following in zip(widths, [*widths[1:], 0], strict=True)
    ]
    return number[lane], spans


def _windows(spans: list[tuple[int, int]], limits: Limits) -> list[tuple[int, int, int]]:
    windows, first = [], 0
    for lanes, stop in spans:
        while first < stop:
            steps = min(limits.window, stop - first, max(1, limits.window_cells // lanes))
            windows.append((first, steps, lanes))
            first += steps
    return windows


def choose_lanes(lengths: IntArray, candidates: Sequence[int]) -> int:
    """The number of lanes that computes sequences of these lengths soonest.

    A step's time is taken as proportional to lanes + 24: reading the weights costs about as much as 24 lanes. What is left
    when the other lanes have ended is computed with the fewest.
    """
    total, longest = int(lengths.sum()), int(lengths.max(initial=0))
    fewest = min(candidates)

    def time(lanes: int) -> int:
        steps = -(-total // lanes)
        return steps * (lanes + 24) + max(0, longest - steps) * (fewest + 24)

    return min(candidates, key=lambda lanes: (time(lanes), lanes))


@dataclass(frozen=True, eq=False)
class PlannedDirection:
    """One direction of a group, or its short or its long sequences only, as its device runs it."""

    plan: DirectionPlan
    index: IntArray  # [wanted] where each state stands in the output [steps × lanes] of its window, in order of window
    row: IntArray  # [wanted] the row that it goes to
    bounds: IntArray  # [windows + 1] where each window's states begin in the two
    opening_row: IntArray  # rows that get the state after the boundary

    @classmethod
    def of(cls, side: Rows, lanes: int, limits: Limits) -> "PlannedDirection":
        plan = plan_direction(side.sequences, lanes, limits)
        windows = np.array(plan.windows, np.int64).reshape(-1, 3)
        cell = plan.cells[ranges(side.sequences.offsets[side.index] + side.first, side.count)]
        row = ranges(side.row * side.row_step, side.count) * side.row_step
        computed = cell != OPENING
        opening_row, cell, row = row[~computed], cell[computed], row[computed]
        step = cell // lanes
        window = np.repeat(np.arange(len(windows)), windows[:, 1])[step]
        # Sorted by counting, ten times as fast as numbers of eight bytes.
        order = np.argsort(
            window.astype(np.uint16) if len(windows) < 1 << 16 else window, kind="stable"
        )
        step, window = step[order], window[order]
        index = (step - windows[window, 0]) * windows[window, 2] + cell[order] - step * lanes
        bounds = np.searchsorted(window, np.arange(len(windows) + 1))
        return cls(plan, index, row[order], bounds, opening_row)
