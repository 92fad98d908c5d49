"""The planner against a brute-force oracle that walks the grid cell by cell."""

import heapq
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.planning.grid import N_SLOTS, START_SLOT, DirectionPlan, choose_lanes, plan_direction, schedule
from tests.model.listed import sequences_of

Listed = list[tuple[int, ...]]

# Every sequence begins with the boundary 1, as the engine's do.
sequence = st.lists(st.integers(2, 4), max_size=9).map(lambda words: (1, *words))


def walk(plan: DirectionPlan) -> dict[int, tuple[int, ...]]:
    """What each cell's state has read, by doing what an engine does: load, compute, save.

    A state is the tuple of words read since the start state; None is a state nobody may use.
    """
    lanes: list[tuple[int, ...] | None] = [None] * plan.lanes
    slots: list[tuple[int, ...] | None] = [None] * N_SLOTS
    slots[START_SLOT] = ()
    read = {}
    loads = {(int(step), int(slot)) for step, _, slot in zip(*plan.loads, strict=True)}
    assert not loads & {(int(step), int(slot)) for step, _, slot in zip(*plan.saves, strict=True)}
    for step in range(plan.steps):
        for at, lane, slot in zip(*plan.loads, strict=True):
            if at == step:
                lanes[lane] = slots[slot]
                assert lanes[lane] is not None, "a slot was loaded before it was saved"
        for lane in range(plan.lanes):
            state = lanes[lane]
            if state is not None:
                state = (*state, int(plan.words[step, lane]))
                lanes[lane] = state
                read[step * plan.lanes + lane] = state
        for at, lane, slot in zip(*plan.saves, strict=True):
            if at == step:
                assert slot != START_SLOT
                slots[slot] = lanes[lane]
    return read


def assert_right(plan: DirectionPlan, sequences: Listed) -> None:
    """Every token of every sequence is computed in its cell from exactly the words before it, in order."""
    read = walk(plan)
    cells_of_each = np.split(plan.cells, np.cumsum([len(words) for words in sequences])[:-1])
    for words, cells in zip(sequences, cells_of_each, strict=True):
        assert len(cells) == len(words)
        assert (np.diff(cells // plan.lanes) > 0).all()
        for position, cell in enumerate(cells.tolist()):
            assert read[cell] == words[: position + 1]


@settings(max_examples=300, deadline=None)
@given(st.lists(sequence, min_size=1, max_size=30), st.integers(1, 7))
def test_every_token_follows_exactly_the_words_before_it(sequences: Listed, lanes: int) -> None:
    """Repeated sequences are welcome too; only their first token is shared, unless two have no other."""
    plan = plan_direction(sequences_of(sequences), lanes)
    assert_right(plan, sequences)
    assert plan.n_computed == len(np.unique(plan.cells))
    shared = len(sequences) > 1 and sum(len(words) == 1 for words in sequences) <= 1
    n_tokens = sum(map(len, sequences))
    assert plan.n_computed == (n_tokens - len(sequences) + 1 if shared else n_tokens)
    assert len(plan.saves.step) == shared
    assert len(plan.loads.step) == len(sequences)  # at the beginning of each, nowhere else


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=9).map(tuple), min_size=1, max_size=30), st.integers(1, 7))
def test_sequences_that_begin_differently_share_nothing(sequences: Listed, lanes: int) -> None:
    plan = plan_direction(sequences_of(sequences), lanes)
    assert_right(plan, sequences)
    if len({words[0] for words in sequences}) > 1:
        assert plan.n_computed == sum(map(len, sequences)) == len(np.unique(plan.cells))
        assert len(plan.saves.step) == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 6), st.booleans())
def test_lanes_hold_one_sequence_at_a_time(lengths: list[int], lanes: int, with_root: bool) -> None:
    length = np.array(lengths)
    root = int(length.argmax()) if with_root else None
    lane, start = schedule(length, lanes, root)
    for b in range(lanes):
        of_lane = np.flatnonzero(lane == b)
        of_lane = of_lane[np.argsort(start[of_lane])]
        assert (start[of_lane][1:] >= (start + length)[of_lane][:-1]).all()
    if root is not None:
        assert start[root] == 0
        assert (np.delete(start, root) > 0).all()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=60), st.integers(1, 9), st.booleans())
def test_each_segment_goes_into_the_lane_that_is_free_first(lengths: list[int], lanes: int, with_root: bool) -> None:
    length = np.array(lengths, np.int64)
    root = int(length.argmax()) if with_root and lengths else None
    free = [(0 if root is None else 1, b) for b in range(lanes)]
    want = np.zeros((len(lengths), 2), np.int64)
    if root is not None:
        free[0] = (lengths[root], 0)
    heapq.heapify(free)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if i != root:
            step, b = free[0]
            want[i] = b, step
            heapq.heapreplace(free, (step + lengths[i], b))
    lane, start = schedule(length, lanes, root)
    np.testing.assert_array_equal(np.stack([lane, start], axis=1), want)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 8))
def test_length_stays_within_grahams_bound(lengths: list[int], lanes: int) -> None:
    """Longest-first list scheduling takes at most 4/3 - 1/(3B) of the best, which is at least these two bounds."""
    plan = plan_direction(sequences_of((k, *[1] * (n - 1)) for k, n in enumerate(lengths)), lanes)
    ordered = sorted(lengths, reverse=True)
    pair = ordered[lanes - 1] + ordered[lanes] if len(ordered) > lanes else 0
    best = max(-(-sum(lengths) // lanes), ordered[0], pair)
    assert plan.steps >= max(-(-sum(lengths) // lanes), ordered[0])
    assert plan.steps <= best * (4 / 3) + ordered[-1]


def test_one_endless_sentence_takes_one_lane_and_linear_time() -> None:
    words = tuple(range(1, 100_001))
    plan = plan_direction(sequences_of([words, (1, 5, 6)]), 4)
    assert plan.steps == 100_000
    np.testing.assert_array_equal(plan.words.reshape(-1)[plan.cells[:100_000]], words)
    np.testing.assert_array_equal(np.diff(plan.cells[:100_000]), 4)


def test_no_sequences_make_an_empty_grid() -> None:
    plan = plan_direction(sequences_of([]), 3)
    assert (plan.steps, plan.n_computed, len(plan.cells)) == (0, 0, 0)


def test_no_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 lanes"):
        schedule(np.array([1]), 0, None)


def test_plans_are_the_same_each_time() -> None:
    rng = np.random.default_rng(3)
    sequences = list({(1, *map(int, rng.integers(2, 6, int(rng.integers(0, 12))))) for _ in range(200)})
    sequences.sort(key=lambda words: (len(words), words))
    a, b = plan_direction(sequences_of(sequences), 8), plan_direction(sequences_of(sequences), 8)
    np.testing.assert_array_equal(a.words, b.words)
    np.testing.assert_array_equal(a.cells, b.cells)
    np.testing.assert_array_equal(a.loads.slot, b.loads.slot)


def test_real_text_fills_the_grid(shared_dir: Path) -> None:
    """A shard's worth of running text, both directions: at least 97% of the cells compute something."""
    path = shared_dir / "corpus" / "tokenised" / "heldout" / "wikipedia.txt.xz"
    if not path.is_file():
        pytest.skip(f"no real text: {path} is absent")
    numbers: dict[str, int] = {}
    sentences: Listed = []
    n_tokens = 0
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            sentences.append(tuple(numbers.setdefault(word, len(numbers) + 2) for word in line.split()))
            n_tokens += len(sentences[-1])
            if n_tokens >= 65_536:
                break
    for read in ([(0, *s) for s in sentences], [(1, *s[::-1]) for s in sentences]):
        distinct_read = sequences_of(dict.fromkeys(read))
        plan = plan_direction(distinct_read, choose_lanes(distinct_read.lengths, (16, 32, 64, 128)))
        assert plan.lanes == 128
        assert plan.n_computed / plan.n_cells >= 0.97
        assert plan.n_computed <= 0.97 * sum(map(len, read))


def test_few_sentences_get_few_lanes() -> None:
    assert choose_lanes(np.array([5]), (16, 32, 128)) == 16
    assert choose_lanes(np.array([20] * 1000), (16, 32, 128)) == 128
    assert choose_lanes(np.array([100_000, 20, 20]), (16, 32, 128)) == 16
