"""The layout in C against the same in NumPy: equal arrays, not only equally good ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine import layout_c
from model.engine.planner import plan_direction
from model.engine.sequences import Rows, Sequences, bounded, sentence_rows

pytestmark = pytest.mark.skipif(not layout_c.compiled(), reason="the C extension was not built")
SENTENCES = st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=7), min_size=1, max_size=40)


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """What a function gives with the extension and without."""
    compiled = compute()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_c, "compiled", lambda: False)
        return compiled, compute()


def laid_out(sentences: list[list[int]], lanes: int) -> list[Any]:
    words = np.array([word for sentence in sentences for word in sentence], np.int32)
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    sides: tuple[Rows, Rows, Any] = sentence_rows(bounded(words, lengths, 0, 1), np.ones(len(lengths), np.int64), 1 + lengths)
    found: list[Any] = [sides[2]]
    for side in sides[:2]:
        plan = plan_direction(side.sequences, lanes, narrower=(1, 2))
        found += [plan.cells, plan.words, *plan.loads, *plan.saves, side.index, side.sequences.words]
    return found


@settings(max_examples=200, deadline=None)
@given(SENTENCES, st.integers(1, 9))
def test_every_array_is_the_same(sentences: list[list[int]], lanes: int) -> None:
    compiled, plain = both(lambda: laid_out(sentences, lanes))
    for a, b in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        layout_c.distinct(np.zeros(3, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64))


def test_many_equal_and_many_different_slices_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 3, 20_000).astype(np.int32)
    first, length = rng.integers(0, 19_000, 5_000), rng.integers(0, 9, 5_000)
    index, kept = layout_c.distinct(words, first, length)
    slices = [tuple(words[a : a + n].tolist()) for a, n in zip(first, length, strict=True)]
    seen: dict[tuple[int, ...], int] = {}
    assert index.tolist() == [seen.setdefault(one, len(seen)) for one in slices]
    assert [slices[k] for k in kept] == list(seen)
    assert len(Sequences.cut(words, first[kept], length[kept])) == len(seen)
