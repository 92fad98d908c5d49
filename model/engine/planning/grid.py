"""Sequences of words → a grid of lanes × steps that wastes next to nothing.

One direction of a biLM reads every sentence as a sequence of word ids, boundary first (forward: BOS, words…; backward:
EOS, words reversed…). This module decides which lane computes which sequence from which step on:

- All sequences begin with the same boundary. One of them, the root, computes it; the state after it is saved into a slot, from
  which the others start with their second token.
- Sequences are laid end to end in B lanes, longest first, into the lane that is free first (list scheduling: Graham 1969).
- Lanes are numbered by when they end, the last one first, so that those with work left are always the first ones, and
  the end of a grid can be computed with fewer.

Nothing here looks at values, so a plan is a pure function of the sequences and the number of lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.engine.planning.sequences import IntArray, Sequences, WordArray, ranges

START_SLOT, OPENING_SLOT = 0, 1  # the start state, and the state after the first token of all sequences
N_SLOTS = 2


class Moves(NamedTuple):
    """States that move between lanes and slots, each array [n] in order of step."""

    step: IntArray
    lane: IntArray
    slot: IntArray


@dataclass(frozen=True)
class DirectionPlan:
    """Everything the engine needs to run one direction.

    Within a step the engine first loads (state of a lane ← slot), then computes all lanes, then saves (slot ← state);
    no slot is loaded and saved in the same step.

    Attributes:
        lanes, steps: B and T, the grid's shape.
        words: int32 [T, B] word id of each cell; `idle_word` where a lane has nothing to do.
        loads: one for each segment.
        saves: of the opening, where it is shared.
        cells: [Σ lengths] step × B + lane of each token of the sequences, end to end; a shared opening is one cell.
        n_computed: cells in use.
        spans: (lanes, stop): how many of the lanes, the first ones, are enough up to which step; in order of step.
    """

    lanes: int
    steps: int
    words: npt.NDArray[np.int32]
    loads: Moves
    saves: Moves
    cells: IntArray
    n_computed: int
    spans: list[tuple[int, int]]

    @property
    def n_cells(self) -> int:
        """Lanes × steps that are computed."""
        begins = [0, *(stop for _, stop in self.spans)]
        return sum(lanes * (stop - begin) for begin, (lanes, stop) in zip(begins, self.spans, strict=False))

    def windows(self, steps: int, cells: int) -> list[tuple[int, int, int]]:
        """(first step, steps, lanes) of each window: so many steps at most, and so many cells where that is a step at least."""
        windows, first = [], 0
        for lanes, stop in self.spans:
            while first < stop:
                n = min(steps, stop - first, max(1, cells // lanes))
                windows.append((first, n, lanes))
                first += n
        return windows


def schedule(length: IntArray, lanes: int, root: int | None) -> tuple[IntArray, IntArray]:
    """Lane and first step of each piece of these lengths: longest first, into the lane that is free first.

    The root comes first of all, and the others wait for its first step.
    """
    if lanes < 1:
        raise ValueError(f"{lanes} lanes; a grid needs at least 1")
    lane, start = np.empty(len(length), np.int64), np.empty(len(length), np.int64)
    order = np.argsort(-length, kind="stable")
    free_at = np.zeros(lanes, np.int64)
    if root is not None:
        order = order[order != root]
        lane[root] = start[root] = 0
        free_at[:] = 1
        free_at[0] = length[root]
    lane[order], start[order] = _in_turn(length[order], free_at)
    return lane, start


def _in_turn(length: IntArray, free_at: IntArray) -> tuple[IntArray, IntArray]:
    """Segments in turn into the lane that is free first, the lowest of equals; their lanes and starts.

    In rounds: the lanes in the order in which they are free take a segment each, as long as the next lane is free before all
    that have taken one. Segments that come longest first make about as many rounds as a lane gets segments.
    """
    lanes = len(free_at)
    free = np.sort(free_at * lanes + np.arange(lanes))  # [B] step × B + lane
    taken = np.empty(len(length), np.int64)
    done = 0
    while done < len(length):
        part = length[done : done + lanes]
        after = free[: len(part)] + part * lanes
        too_late = free[1 : len(part)] > np.minimum.accumulate(after)[:-1]
        n = int(too_late.argmax()) + 1 if too_late.any() else len(part)
        taken[done : done + n] = free[:n]
        free[:n] = after[:n]
        free.sort()
        done += n
    start, lane = np.divmod(taken, lanes)
    return lane, start


def plan_direction(sequences: Sequences, lanes: int, *, idle_word: int = 0, narrower: Sequence[int] = ()) -> DirectionPlan:
    """Lay sequences out for one direction.

    Args:
        sequences: in reading order, none empty.
        lanes: B.
        idle_word: id that cells with nothing to do hold.
        narrower: numbers of lanes below B that the end of the grid may be computed with.
    """
    root = _root(sequences)
    skipped = np.zeros(len(sequences), np.int64)  # [n] tokens that another sequence computes
    if root is not None:
        skipped[:] = 1
        skipped[root] = 0
    length = sequences.lengths - skipped
    lane, start = schedule(length, lanes, root)
    steps = int((start + length).max(initial=0))
    lane, spans = _by_end(lane, start + length, lanes, steps, narrower)
    words = np.full(steps * lanes, idle_word, np.int32)
    cells = _cells(sequences, skipped, lane, start, lanes, words)
    order = np.argsort(start, kind="stable")
    loads = Moves(start[order], lane[order], np.where(skipped, OPENING_SLOT, START_SLOT)[order])
    saving = np.array([] if root is None else [root], np.int64)
    saves = Moves(start[saving], lane[saving], np.full(len(saving), OPENING_SLOT, np.int64))
    return DirectionPlan(lanes, steps, words.reshape(steps, lanes), loads, saves, cells, int(length.sum()), spans)


def _root(sequences: Sequences) -> int | None:
    """Which sequence computes the first token of all; None where they begin differently, or are too few or short to share it."""
    length = sequences.lengths
    opening = sequences.words[sequences.offsets[:-1]]  # [n]
    if len(length) < 2 or (opening != opening[0]).any():
        return None
    # A sequence of the boundary alone has no token of its own to go on with.
    n_alone = np.count_nonzero(length == 1)
    return None if n_alone > 1 else int(length.argmin() if n_alone else length.argmax())


def _by_end(
    lane: IntArray, stop: IntArray, lanes: int, steps: int, narrower: Sequence[int]
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Lanes numbered anew, the last to end first, and the plan's spans; lane, stop [n] of each segment."""
    ends = np.zeros(lanes, np.int64)
    np.maximum.at(ends, lane, stop)
    order = np.argsort(-ends, kind="stable")  # [B] old number of each new lane
    number = np.empty(lanes, np.int64)
    number[order] = np.arange(lanes)
    widths = sorted({lanes, *(n for n in narrower if n < lanes)}, reverse=True)
    spans: list[tuple[int, int]] = []
    for width, following in zip(widths, [*widths[1:], 0], strict=True):
        until = int(ends[order[following]])  # lanes from `following` on have nothing to do after it
        if until > (spans[-1][1] if spans else 0):
            spans.append((width, until))
    return number[lane], spans


def _cells(sequences: Sequences, skipped: IntArray, lane: IntArray, start: IntArray, lanes: int, words: WordArray) -> IntArray:
    """Step × B + lane of each token of the sequences, end to end; puts their words into the grid, words [T × B]."""
    offsets, length = sequences.offsets, sequences.lengths - skipped
    cells = np.empty(len(sequences.words), np.int64)
    token = ranges(offsets[:-1] + skipped, length)
    cells[token] = ranges(start, length) * lanes + np.repeat(lane, length)
    words[cells[token]] = sequences.words[token]
    cells[offsets[:-1][skipped > 0]] = cells[offsets[:-1][skipped == 0][:1]]  # the root's
    return cells


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
