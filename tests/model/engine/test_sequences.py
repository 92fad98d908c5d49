"""Sequences as arrays against the same thing said in lists."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from model.engine.planning.grid import OPENING, Limits, PlannedDirection
from model.engine.planning.sequences import Rows, Sequences, bounded, ranges, sentence_rows
from tests.examples import examples
from tests.model.lanes import carried_rows

BOS, EOS = 0, 1
sentence = st.lists(st.integers(2, 5), max_size=5)


@st.composite
def sentences_and_wanted(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Sentences, and which of their tokens are wanted, boundaries included."""
    sentences = draw(st.lists(sentence, max_size=12))
    wanted = []
    for words in sentences:
        bounds = sorted(
            draw(st.tuples(st.integers(0, len(words) + 2), st.integers(0, len(words) + 2)))
        )
        wanted.append((bounds[0], bounds[1]) if words else (0, 0))
    return sentences, wanted


def made(sentences: list[list[int]]) -> Sequences:
    """As the embedder makes them."""
    words = np.array([word for words in sentences for word in words], np.int32)
    return bounded(words, np.array([len(words) for words in sentences], np.int64), BOS, EOS)


def listed(sequences: Sequences) -> list[tuple[int, ...]]:
    """Back to tuples."""
    words, bounds = sequences.words.tolist(), sequences.offsets.tolist()
    return [tuple(words[low:high]) for low, high in pairwise(bounds)]


def read_by_row(side: Rows, lanes: int) -> dict[int, tuple[int, ...]]:
    """What stands before each row's state, its own word last, by way of the plan's cells."""
    planned = PlannedDirection.of(side, lanes, Limits([lanes], window=2, window_cells=2 * lanes))
    plan, position, beginnings = planned.plan, 0, {}
    for words in listed(side.sequences):
        for n in range(len(words)):
            beginnings[int(plan.cells[position])] = words[: n + 1]
            position += 1
    assert planned.bounds[0] == 0
    assert planned.bounds[-1] == len(planned.index)
    windows = np.array(plan.windows, np.int64).reshape(-1, 3)  # first step, steps and lanes
    assert (windows[:, 1] <= 2).all()
    window = np.repeat(np.arange(len(windows)), np.diff(planned.bounds))
    cells = windows[window, 0] * lanes + planned.index
    rows = [*planned.row.tolist(), *planned.opening_row.tolist()]
    assert len(set(rows)) == len(rows)
    cell_of_row = [*cells.tolist(), *[OPENING] * len(planned.opening_row)]
    return {row: beginnings[cell] for row, cell in zip(rows, cell_of_row, strict=True)}


@examples(200)
@given(sentences_and_wanted(), st.integers(1, 4))
def test_each_row_gets_the_state_of_its_own_token_from_either_side(
    case: tuple[list[list[int]], list[tuple[int, int]]], lanes: int
) -> None:
    sentences, wanted = case
    first, stop = np.array(wanted, np.int64).reshape(-1, 2).T
    forward, backward, words = sentence_rows(made(sentences), first, stop)
    ahead, behind = [], []
    own: list[int] = []
    for tokens, (low, high) in zip(sentences, wanted, strict=True):
        full = (BOS, *tokens, EOS)
        ahead += [full[: k + 1] for k in range(low, high)]
        behind += [full[k:][::-1] for k in range(low, high)]
        own += full[low:high]
    assert words.tolist() == own
    assert read_by_row(forward, lanes) == dict(enumerate(ahead))
    assert read_by_row(backward, lanes) == dict(enumerate(behind))
    for side in (forward, backward):
        assert all(listed(side.sequences))
        assert len(set(listed(side.sequences))) == len(side.sequences)
        # In two grids: each row is asked of one of them, and reads the same.
        long = side.sequences.lengths > 3
        parts = [side.only(some) for some in (long, ~long) if some.any()]
        read = [read_by_row(part, lanes) for part in parts]
        assert {row: words for one in read for row, words in one.items()} == read_by_row(
            side, lanes
        )
        assert sum(map(len, read)) == len(read_by_row(side, lanes))


@examples(150)
@given(st.lists(st.lists(sentence, max_size=4), max_size=5), st.integers(1, 3))
def test_carried_states_run_along_their_lane(lanes: list[list[list[int]]], grid: int) -> None:
    flat = [words for lane in lanes for words in lane]
    forward, backward, words = carried_rows(made(flat), [len(lane) for lane in lanes])
    ahead, behind = [], []
    own: list[int] = []
    for lane in lanes:
        read: tuple[int, ...] = ()
        read_back: tuple[int, ...] = ()
        for tokens in lane:
            full = (BOS, *tokens, EOS)
            ahead += [read + full[: k + 2] for k in range(len(tokens))]
            behind += [read_back + full[k + 1 :][::-1] for k in range(len(tokens))]
            own += tokens
            read, read_back = read + full, read_back + full[::-1]
    assert words.tolist() == own
    assert read_by_row(forward, grid) == dict(enumerate(ahead))
    assert read_by_row(backward, grid) == dict(enumerate(behind))


def test_ranges_stand_one_after_the_other() -> None:
    np.testing.assert_array_equal(ranges(np.array([3, 9]), np.array([2, 0])), [3, 4])
