"""The planner against a brute-force oracle that walks the grid cell by cell."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.planner import (
    NO_PARENT,
    START_SLOT,
    DirectionPlan,
    choose_lanes,
    plan_direction,
    schedule,
    separate,
    share_beginnings,
)
from model.engine.sequences import Sequences

Listed = list[tuple[int, ...]]

# Few words, so that beginnings are shared all the time; every sequence begins with the boundary 1, as the engine's do.
sequence = st.lists(st.integers(2, 4), max_size=9).map(lambda words: (1, *words))
distinct = st.lists(sequence, min_size=1, max_size=30, unique=True)


def walk(plan: DirectionPlan) -> dict[int, tuple[int, ...]]:
    """What each cell's state has read, by doing what an engine does: load, compute, save.

    A state is the tuple of words read since the start state; None is a state nobody may use.
    """
    lanes: list[tuple[int, ...] | None] = [None] * plan.lanes
    slots: list[tuple[int, ...] | None] = [None] * plan.n_slots
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
@given(distinct, st.integers(1, 7))
def test_every_token_follows_exactly_the_words_before_it(sequences: Listed, lanes: int) -> None:
    plan = plan_direction(Sequences.of(sequences), lanes)
    assert_right(plan, sequences)
    assert plan.n_computed == len(np.unique(plan.cells))
    segments = share_beginnings(Sequences.of(sequences))
    _, start = schedule(segments, lanes)
    shared_steps, apart_steps = (
        (start + segments.length).max(initial=0),
        plan_direction(Sequences.of(sequences), lanes, share="none").steps,
    )
    assert plan.steps == min(shared_steps, apart_steps)
    if shared_steps <= apart_steps:
        # Nothing is computed twice: as many cells as there are distinct beginnings.
        assert plan.n_computed == len({words[:k] for words in sequences for k in range(1, len(words) + 1)})


@settings(max_examples=150, deadline=None)
@given(st.lists(sequence, min_size=1, max_size=30), st.integers(1, 7))
def test_without_sharing_every_token_has_its_own_cell_and_repeats_are_welcome(sequences: Listed, lanes: int) -> None:
    plan = plan_direction(Sequences.of(sequences), lanes, share="none")
    assert_right(plan, sequences)
    assert plan.n_computed == sum(map(len, sequences)) == len(np.unique(plan.cells))
    assert plan.n_slots == 1
    assert len(plan.saves.step) == 0
    assert len(plan.loads.step) == len(sequences)  # a reset exactly at each start, nowhere else
    starts = {int(plan.cells[low]) for low in Sequences.of(sequences).offsets[:-1]}
    assert {int(t) * lanes + int(b) for t, b in zip(plan.loads.step, plan.loads.lane, strict=True)} == starts


@settings(max_examples=100, deadline=None)
@given(distinct, st.integers(1, 5), st.integers(0, 3))
def test_forks_stay_under_their_limit(sequences: Listed, lanes: int, max_forks: int) -> None:
    plan = plan_direction(Sequences.of(sequences), lanes, max_forks=max_forks)
    assert_right(plan, sequences)
    assert len(plan.saves.step) <= max_forks
    assert plan.n_slots <= max_forks + 1


@settings(max_examples=150, deadline=None)
@given(distinct, st.integers(1, 6))
def test_lanes_hold_one_segment_at_a_time(sequences: Listed, lanes: int) -> None:
    segments = share_beginnings(Sequences.of(sequences))
    lane, start = schedule(segments, lanes)
    assert (segments.length >= 1).all()
    for b in range(lanes):
        mine = np.flatnonzero(lane == b)
        mine = mine[np.argsort(start[mine])]
        assert (start[mine][1:] >= (start + segments.length)[mine][:-1]).all()
    for i, up in enumerate(segments.parent.tolist()):
        if up != NO_PARENT:
            assert start[i] > start[up] + segments.first[i] - segments.first[up] - 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 8))
def test_length_stays_within_grahams_bound(lengths: list[int], lanes: int) -> None:
    """Longest-first list scheduling takes at most 4/3 - 1/(3B) of the best, which is at least these two bounds."""
    plan = plan_direction(Sequences.of((k, *[1] * (n - 1)) for k, n in enumerate(lengths)), lanes, share="none")
    ordered = sorted(lengths, reverse=True)
    pair = ordered[lanes - 1] + ordered[lanes] if len(ordered) > lanes else 0
    best = max(-(-sum(lengths) // lanes), ordered[0], pair)
    assert plan.steps >= max(-(-sum(lengths) // lanes), ordered[0])
    assert plan.steps <= best * (4 / 3) + ordered[-1]


def test_beginnings_are_not_shared_where_waiting_for_them_takes_longer() -> None:
    read = [(1, 1), (1, 2, 1, 1), (2, 2)]  # (1,) is common to two; their ends then start too late
    plan = plan_direction(Sequences.of(read), 2)
    assert_right(plan, read)
    assert (plan.steps, plan.n_computed) == (4, 8)
    assert plan_direction(Sequences.of(read), 1).n_computed == 7  # in one lane nothing waits


def test_one_endless_sentence_takes_one_lane_and_linear_time() -> None:
    words = tuple(range(1, 100_001))
    plan = plan_direction(Sequences.of([words, (1, 5, 6)]), 4)
    assert plan.steps == 100_000
    np.testing.assert_array_equal(plan.words.reshape(-1)[plan.cells[:100_000]], words)
    np.testing.assert_array_equal(np.diff(plan.cells[:100_000]), 4)


def test_no_sequences_make_an_empty_grid() -> None:
    plan = plan_direction(Sequences.of([]), 3)
    assert (plan.steps, plan.n_computed, len(plan.cells)) == (0, 0, 0)


def test_no_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 lanes"):
        schedule(separate(Sequences.of([(1,)])), 0)


def test_plans_are_the_same_each_time() -> None:
    rng = np.random.default_rng(3)
    sequences = list({(1, *map(int, rng.integers(2, 6, int(rng.integers(0, 12))))) for _ in range(200)})
    sequences.sort(key=lambda words: (len(words), words))
    a, b = plan_direction(Sequences.of(sequences), 8), plan_direction(Sequences.of(sequences), 8)
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
        distinct_read = Sequences.of(dict.fromkeys(read))
        plan = plan_direction(distinct_read, choose_lanes(distinct_read.lengths, (16, 32, 64, 128)))
        assert plan.lanes == 128
        assert plan.fill >= 0.97
        assert plan.n_computed <= 0.97 * sum(map(len, read))


def test_few_sentences_get_few_lanes() -> None:
    assert choose_lanes(np.array([5]), (16, 32, 128)) == 16
    assert choose_lanes(np.array([20] * 1000), (16, 32, 128)) == 128
    assert choose_lanes(np.array([100_000, 20, 20]), (16, 32, 128)) == 16
