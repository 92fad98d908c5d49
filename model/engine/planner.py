"""Sequences of words → a grid of lanes × steps that wastes next to nothing.

Pure: may import NumPy and `model.engine.sequences`, never torch.

One direction of a biLM reads every sentence as a sequence of word ids, boundary first (forward: BOS, words…; backward:
EOS, words reversed…). This module decides which lane computes which piece of which sequence at which step:

- Sequences that begin alike share that beginning: it is computed once, the state at the fork is saved into a numbered
  slot, and each other sequence goes on from there. The piece that is left for a sequence is its *segment*. All
  sequences share their boundary, so boundaries cost nothing; backward, most sentences also share their full stop.
- Segments are laid end to end in B lanes, longest chain first, into the lane that is free first (list scheduling:
  Graham 1969; a segment may start once its fork has been computed).
- Lanes are numbered by when they end, the last one first, so that those with work left are always the first ones, and
  the end of a grid can be computed with fewer.

Nothing here looks at values, so a plan is a pure function of the sequences and the number of lanes.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from model.engine import layout_c
from model.engine.sequences import IntArray, Sequences, WordArray, ranges

START_SLOT = 0  # the slot that holds the start state; forks have slots from 1 on
NO_PARENT = -1
MAX_SLOTS = 4096  # forks alive at once; a slot of the published 2×4096 model takes 37 KB

__all__ = [
    "START_SLOT",
    "DirectionPlan",
    "Moves",
    "Segments",
    "choose_lanes",
    "plan_direction",
    "schedule",
    "separate",
    "share_beginnings",
    "share_first",
]


@dataclass(frozen=True)
class Segments:
    """What is left to compute of each sequence once beginnings are shared; segment i belongs to sequence i.

    Attributes:
        first: [n] position in the sequence at which its segment begins; what stands before it belongs to others.
        length: [n] tokens in the segment, at least 1.
        parent: [n] sequence whose segment computes position first-1 of this sequence; -1 = from the start state.
        order: [n] an order in which every parent stands before its children.
    """

    first: IntArray
    length: IntArray
    parent: IntArray
    order: IntArray

    @property
    def n_tokens(self) -> int:
        """Tokens that are really computed."""
        return int(self.length.sum())


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
        saves: one for each fork.
        n_slots: slots in use, the start state's included.
        cells: [Σ lengths] step × B + lane of each token of the sequences, end to end; tokens in a shared beginning share cells.
        n_computed: cells in use.
        spans: (lanes, stop): how many of the lanes, the first ones, are enough up to which step; in order of step.
    """

    lanes: int
    steps: int
    words: npt.NDArray[np.int32]
    loads: Moves
    saves: Moves
    n_slots: int
    cells: IntArray
    n_computed: int
    spans: list[tuple[int, int]]

    @property
    def n_cells(self) -> int:
        """Lanes × steps that are computed."""
        begins = [0, *(stop for _, stop in self.spans)]
        return sum(lanes * (stop - begin) for begin, (lanes, stop) in zip(begins, self.spans, strict=False))

    @property
    def fill(self) -> float:
        """Share of the cells that compute something."""
        return self.n_computed / max(1, self.n_cells)


def share_beginnings(sequences: Sequences, max_forks: int = MAX_SLOTS) -> Segments:
    """Cut sequences into segments so that no common beginning is computed twice.

    Args:
        sequences: distinct, none empty.
        max_forks: at most so many different forks; beginnings shorter than needed to stay under it are not shared.
    """
    keys = sequences.keys()
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = _common_beginnings(sequences, np.array(order, np.int64)).tolist()
    shortest = 1
    while True:
        segments, n_forks = _share(sequences.lengths, order, common, shortest)
        if n_forks <= max_forks:
            return segments
        shortest *= 2


def separate(sequences: Sequences) -> Segments:
    """Every sequence from the start state, nothing shared."""
    n = len(sequences)
    return Segments(np.zeros(n, np.int64), sequences.lengths, np.full(n, NO_PARENT, np.int64), np.arange(n))


def share_first(sequences: Sequences) -> Segments:
    """The first token of all sequences, their boundary, computed once; nothing else shared.

    Args:
        sequences: distinct, none empty; where they do not begin with the same token nothing is shared.
    """
    apart = separate(sequences)
    opening = sequences.words[sequences.offsets[:-1]]  # [n]
    if len(sequences) < 2 or (opening != opening[0]).any():
        return apart
    # The boundary alone may be a sequence, and then it has no token of its own to go on with.
    root = int(apart.length.argmin()) if apart.length.min() == 1 else int(apart.length.argmax())
    others = np.arange(len(sequences)) != root
    order = np.concatenate([[root], np.flatnonzero(others)])
    return Segments(others.astype(np.int64), apart.length - others, np.where(others, root, NO_PARENT), order)


def _common_beginnings(sequences: Sequences, order: IntArray) -> IntArray:
    """[n] how many tokens each sequence has in common with the one before it in this order; 0 for the first."""
    first, length = sequences.offsets[order], sequences.lengths[order]
    shorter = np.minimum(length[1:], length[:-1])
    differs = sequences.words[ranges(first[1:], shorter)] != sequences.words[ranges(first[:-1], shorter)]
    begin = np.cumsum(shorter) - shorter  # [n-1] where each pair's tokens begin in `differs`
    places = np.append(np.flatnonzero(differs), len(differs))
    until = places[np.searchsorted(places, begin)]  # the first difference from there on, of this pair or a later one
    return np.concatenate([[0], np.minimum(until - begin, shorter)]).astype(np.int64)


def _share(lengths: IntArray, order: list[int], common: list[int], shortest: int) -> tuple[Segments, int]:
    """Segments where beginnings of `shortest` tokens and more are shared, and the number of forks."""
    n = len(order)
    first = np.zeros(n, np.int64)
    parent = np.full(n, NO_PARENT, np.int64)
    forks: set[tuple[int, int]] = set()
    path: list[tuple[int, int]] = []  # (sequence, first) whose segments spell the last sequence, outermost first
    for i, shared in zip(order, common, strict=False):
        at = shared if shared >= shortest else 0
        while path and path[-1][1] >= at:
            path.pop()
        if at:
            first[i], parent[i] = at, path[-1][0]
            forks.add((path[-1][0], at))
        path.append((i, at))
    return Segments(first, lengths - first, parent, np.array(order, np.int64)), len(forks)


def schedule(segments: Segments, lanes: int) -> tuple[IntArray, IntArray]:
    """Lane and first step of each segment: longest chain first, into the lane that is free first.

    Returns:
        (lane [n], start [n]); no lane holds two segments at once, no segment starts before its fork is computed.
    """
    if lanes < 1:
        raise ValueError(f"{lanes} lanes; a grid needs at least 1")
    roots = np.flatnonzero(segments.parent == NO_PARENT)
    if len(roots) == len(segments.length):
        return _longest_first(segments.length, lanes, None)
    if len(roots) == 1 and segments.first.max() == 1:
        return _longest_first(segments.length, lanes, int(roots[0]))
    n = len(segments.length)
    length, first, parent = segments.length.tolist(), segments.first.tolist(), segments.parent.tolist()
    children: list[list[int]] = [[] for _ in range(n)]
    chain = list(length)  # steps from this segment's start to the end of the longest chain that hangs on it
    for i in reversed(segments.order.tolist()):
        if (up := parent[i]) != NO_PARENT:
            children[up].append(i)
            chain[up] = max(chain[up], first[i] - first[up] + chain[i])
    lane, start = [0] * n, [0] * n
    free = [(0, b) for b in range(lanes)]  # (step, lane), a heap
    ready = [(-chain[i], i) for i in range(n) if parent[i] == NO_PARENT]
    heapq.heapify(ready)
    later: list[tuple[int, int]] = []  # (step from which it may start, segment), a heap
    step = 0  # never goes back: what is ready is ready from the last step looked at on
    for _ in range(n):
        free_from, b = free[0]
        step = max(step, free_from)
        if not ready:
            step = max(step, later[0][0])
        while later and later[0][0] <= step:
            _, i = heapq.heappop(later)
            heapq.heappush(ready, (-chain[i], i))
        _, i = heapq.heappop(ready)
        lane[i], start[i] = b, step
        heapq.heapreplace(free, (step + length[i], b))
        for child in children[i]:
            heapq.heappush(later, (step + first[child] - first[i], child))
    return np.array(lane, np.int64), np.array(start, np.int64)


def _longest_first(length: IntArray, lanes: int, root: int | None) -> tuple[IntArray, IntArray]:
    """`schedule` where nothing waits for a fork, or all for the first step of one segment, the root."""
    lane, start = np.empty(len(length), np.int64), np.empty(len(length), np.int64)
    order = np.argsort(-length, kind="stable")
    free_at = np.zeros(lanes, np.int64)
    if root is not None:
        order = order[order != root]
        lane[root] = start[root] = 0
        free_at[:] = 1
        free_at[0] = length[root]
    in_turn = layout_c.longest_first if layout_c.compiled() else _in_turn
    lane[order], start[order] = in_turn(length[order], free_at)
    return lane, start


def _in_turn(length: IntArray, free_at: IntArray) -> tuple[IntArray, IntArray]:
    """Segments in turn into the lane that is free first, the lowest of equals; their lanes and starts."""
    free = [(step, b) for b, step in enumerate(free_at.tolist())]  # a heap
    heapq.heapify(free)
    taken = []
    for tokens in length.tolist():
        step, b = free[0]
        taken.append((b, step))
        heapq.heapreplace(free, (step + tokens, b))
    lane, start = np.array(taken, np.int64).reshape(-1, 2).T
    return lane, start


def plan_direction(
    sequences: Sequences,
    lanes: int,
    *,
    share: Literal["beginnings", "first", "none"] = "beginnings",
    idle_word: int = 0,
    max_forks: int = MAX_SLOTS,
    narrower: Sequence[int] = (),
) -> DirectionPlan:
    """Lay sequences out for one direction.

    Args:
        sequences: in reading order, distinct unless nothing is shared, none empty.
        lanes: B.
        share: compute common beginnings once, unless that takes more steps than computing each by itself; or the first
            token only, which is sooner planned.
        idle_word: id that cells with nothing to do hold.
        max_forks: see `share_beginnings`.
        narrower: numbers of lanes below B that the end of the grid may be computed with.
    """
    match share:
        case "beginnings":
            segments = share_beginnings(sequences, max_forks)
        case "first":
            segments = share_first(sequences)
        case _:
            segments = separate(sequences)
    lane, start = schedule(segments, lanes)
    steps = int((start + segments.length).max(initial=0))
    if share == "beginnings" and steps * lanes > len(sequences.words):
        # A branch waits for its fork: in short calls lanes stand idle for longer than sharing saves.
        apart = separate(sequences)
        its_lane, its_start = schedule(apart, lanes)
        its_steps = int((its_start + apart.length).max(initial=0))
        if its_steps < steps:
            segments, lane, start, steps = apart, its_lane, its_start, its_steps
    lane, spans = _by_end(lane, start + segments.length, lanes, steps, narrower)
    words = np.full(steps * lanes, idle_word, np.int32)
    cells = _cells(sequences, segments, lane, start, lanes, words)
    loads, saves, n_slots = _slots(segments, lane, start)
    return DirectionPlan(
        lanes,
        steps,
        words.reshape(steps, lanes),
        loads,
        saves,
        n_slots,
        cells,
        segments.n_tokens,
        spans,
    )


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


def _cells(sequences: Sequences, segments: Segments, lane: IntArray, start: IntArray, lanes: int, words: WordArray) -> IntArray:
    """Step × B + lane of each token of the sequences, end to end; puts their words into the grid, words [T × B]."""
    first, length, parent = segments.first, segments.length, segments.parent
    offsets = sequences.offsets
    if layout_c.compiled():
        cells = layout_c.lay(offsets[:-1] + first, length, lane, start, lanes, sequences.words, words)
    else:
        cells = np.empty(len(sequences.words), np.int64)
        own = ranges(np.zeros(len(length), np.int64), length)  # place within the segment
        mine = ranges(offsets[:-1] + first, length)
        cells[mine] = np.repeat(start * lanes + lane, length) + own * lanes
        words[cells[mine]] = sequences.words[mine]
    shared = np.flatnonzero(first == 1)
    cells[offsets[shared]] = cells[offsets[parent[shared]]]
    for i in segments.order[first[segments.order] > 1].tolist():  # parents first
        low, up = offsets[i], offsets[parent[i]]
        cells[low : low + first[i]] = cells[up : up + first[i]]
    return cells


def _slots(segments: Segments, lane: IntArray, start: IntArray) -> tuple[Moves, Moves, int]:
    """Give each fork a slot from its save to its last load, reusing slots; loads, saves, slots."""
    n = len(start)
    branches = np.flatnonzero(segments.parent != NO_PARENT)
    up = segments.parent[branches]
    # A fork is a segment and its step, here as one number that sorts by step.
    forks, fork_of = np.unique((start[up] + segments.first[branches] - segments.first[up] - 1) * n + up, return_inverse=True)
    last_load = np.zeros(len(forks), np.int64)
    np.maximum.at(last_load, fork_of, start[branches])
    save_step, save_lane = forks // max(1, n), lane[forks % max(1, n)]
    # A slot is free again after the step of its last load, so that no step both loads and saves it: on a GPU the two
    # happen at once.
    slot_of = np.empty(len(forks), np.int64)
    busy: list[tuple[int, int]] = []  # (step from which it is free, slot), a heap
    idle: list[int] = []  # slots, a heap
    n_slots = START_SLOT + 1
    for k, (step, until) in enumerate(zip(save_step.tolist(), last_load.tolist(), strict=True)):
        while busy and busy[0][0] < step:
            heapq.heappush(idle, heapq.heappop(busy)[1])
        if idle:
            slot = heapq.heappop(idle)
        else:
            slot, n_slots = n_slots, n_slots + 1
        slot_of[k] = slot
        heapq.heappush(busy, (until, slot))
    load_slots = np.full(n, START_SLOT, np.int64)
    load_slots[branches] = slot_of[fork_of]
    load_order = np.argsort(start, kind="stable")
    loads = Moves(start[load_order], lane[load_order], load_slots[load_order])
    return loads, Moves(save_step, save_lane, slot_of), n_slots


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
