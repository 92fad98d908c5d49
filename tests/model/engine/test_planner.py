"""The planner against a brute-force oracle that walks the grid cell by cell."""

import heapq
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.engine.planning.grid import OPENING, DirectionPlan, Limits, choose_lanes, schedule
from model.engine.planning.grid import plan_direction as plan_within
from model.engine.planning.sequences import Sequences
from tests.examples import examples
from tests.model.lanes import sequences_of

Listed = list[tuple[int, ...]]

# Every sequence begins with the boundary 1, as the engine's do.
sequence = st.lists(st.integers(2, 4), max_size=9).map(lambda words: (1, *words))


def plan_direction(sequences: Sequences, lanes: int) -> DirectionPlan:
    """As for a device of windows of four steps, on which two lanes may do for a grid's end."""
    return plan_within(sequences, lanes, Limits([2, lanes], window=4, window_cells=4 * lanes))


def walk(plan: DirectionPlan) -> dict[int, tuple[int, ...]]:
    """What each cell's state has read since the boundary, by doing what an engine does in each window."""
    lanes: list[tuple[int, ...] | None] = [None] * plan.lanes  # None: nothing that may be used
    read = {}
    next_step = 0
    for first, steps, width in plan.windows:
        assert first == next_step
        assert 0 < steps <= 4
        for step in range(first, first + steps):
            for lane in range(width):
                state = () if plan.begins[step, lane] else lanes[lane]
                if state is not None:
                    lanes[lane] = read[step * plan.lanes + lane] = (
                        *state,
                        int(plan.words[step, lane]),
                    )
        next_step = first + steps
    assert next_step == len(plan.words)
    return read


def assert_right(plan: DirectionPlan, sequences: Listed) -> None:
    """Every token of every sequence but the boundary is computed in its cell from exactly the words before it, in order."""
    read = walk(plan)
    cells_of_each = np.split(plan.cells, np.cumsum([len(words) for words in sequences])[:-1])
    for words, cells in zip(sequences, cells_of_each, strict=True):
        assert len(cells) == len(words)
        assert cells[0] == OPENING
        assert (np.diff(cells[1:] // plan.lanes) > 0).all()
        for position, cell in enumerate(cells.tolist()[1:], 1):
            assert read[cell] == words[1 : position + 1]


@examples(300)
@given(st.lists(sequence, min_size=1, max_size=30), st.integers(1, 7))
def test_every_token_follows_exactly_the_words_before_it(sequences: Listed, lanes: int) -> None:
    """Repeated sequences are welcome too; only their first token is shared."""
    plan = plan_direction(sequences_of(sequences), lanes)
    assert_right(plan, sequences)
    assert (
        plan.n_computed
        == len(np.unique(plan.cells[plan.cells != OPENING]))
        == sum(map(len, sequences)) - len(sequences)
    )
    assert plan.n_computed <= plan.n_cells
    assert plan.begins.sum() == sum(
        len(words) > 1 for words in sequences
    )  # at the beginning of each, nowhere else


@examples(300)
@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 9))
def test_each_segment_goes_into_the_lane_that_is_free_first(lengths: list[int], lanes: int) -> None:
    free = [(0, b) for b in range(lanes)]
    want = np.zeros((len(lengths), 2), np.int64)
    heapq.heapify(free)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        step, b = free[0]
        want[i] = b, step
        heapq.heapreplace(free, (step + lengths[i], b))
    lane, start = schedule(np.array(lengths, np.int64), lanes)
    np.testing.assert_array_equal(np.stack([lane, start], axis=1), want)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 8))
def test_length_stays_within_grahams_bound(lengths: list[int], lanes: int) -> None:
    """Longest-first list scheduling takes at most 4/3 - 1/(3B) of the best, which is at least these two bounds."""
    plan = plan_direction(sequences_of((1, *[2] * n) for n in lengths), lanes)
    ordered = sorted(lengths, reverse=True)
    pair = ordered[lanes - 1] + ordered[lanes] if len(ordered) > lanes else 0
    best = max(-(-sum(lengths) // lanes), ordered[0], pair)
    steps = len(plan.words)
    assert steps >= max(-(-sum(lengths) // lanes), ordered[0])
    assert steps <= best * (4 / 3) + ordered[-1]


def test_one_endless_sentence_takes_one_lane_and_linear_time() -> None:
    words = tuple(range(1, 100_002))
    plan = plan_direction(sequences_of([words, (1, 5, 6)]), 4)
    assert len(plan.words) == 100_000
    np.testing.assert_array_equal(plan.words.reshape(-1)[plan.cells[1:100_001]], words[1:])
    np.testing.assert_array_equal(np.diff(plan.cells[1:100_001]), 4)


def test_no_sequences_make_an_empty_grid() -> None:
    plan = plan_direction(sequences_of([]), 3)
    assert (len(plan.words), plan.n_computed, plan.n_cells, len(plan.cells)) == (0, 0, 0, 0)


def test_plans_are_the_same_each_time() -> None:
    rng = np.random.default_rng(3)
    sequences = list(
        {(1, *map(int, rng.integers(2, 6, int(rng.integers(0, 12))))) for _ in range(200)}
    )
    sequences.sort(key=lambda words: (len(words), words))
    a, b = plan_direction(sequences_of(sequences), 8), plan_direction(sequences_of(sequences), 8)
    np.testing.assert_array_equal(a.words, b.words)
    np.testing.assert_array_equal(a.cells, b.cells)
    np.testing.assert_array_equal(a.begins, b.begins)


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
            sentences.append(
                tuple(numbers.setdefault(word, len(numbers) + 2) for word in line.split())
            )
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
