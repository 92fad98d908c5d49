"""Quantising: how near it stays, that rows do not see each other, numbers of every size, and what can't be stored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elmo_store.format.numbers import GREATEST_SCALE, ROWS_AT_ONCE, Int8Rows, quantized

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
STATES = arrays.arrays(
    np.float32, st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9)), elements=FLOATS
)


@given(STATES)
def test_each_number_is_within_half_a_step(states: np.ndarray) -> None:
    raw = quantized(states)
    assert raw.values.dtype == np.int8
    assert raw.scale.dtype == np.float32
    assert raw.values.min(initial=0) >= -127
    assert (raw.scale >= 0).all()
    assert np.isfinite(raw.scale).all()
    most = np.abs(states.astype(np.float64)).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(raw.floats().astype(np.float64) - states)
    # Half a step, and what float32 adds; a scale below 2^-126 has fewer bits, and steps of 2^-149.
    assert (error <= most / 127 * (0.5 + 1e-5) + 127 * 2.0**-150).all()


@given(STATES)
def test_scale_and_values_are_those_of_the_page(states: np.ndarray) -> None:
    raw = quantized(states)
    for row, own in enumerate(states):
        for state, numbers in enumerate(own):
            scale = min(np.abs(numbers).max() / np.float32(127), GREATEST_SCALE)
            assert raw.scale[row, state] == scale
            wanted = [
                max(-127, min(127, round(float(number / scale)))) if scale else 0
                for number in numbers
            ]
            assert raw.values[row, state].tolist() == wanted


def test_the_scale_of_zeros_has_no_sign() -> None:
    assert not np.signbit(quantized(np.zeros((33, 3, 4), np.float32)).scale).any()


def test_rows_do_not_see_each_other() -> None:
    states = (
        np.random.default_rng(0).standard_normal((3 * ROWS_AT_ONCE + 7, 3, 4)).astype(np.float32)
    )
    whole = quantized(states)
    for rows in (slice(5, 6), slice(100, 300), slice(len(states) - 1, None)):
        part = quantized(states[rows])
        np.testing.assert_array_equal(part.values, whole.values[rows])
        np.testing.assert_array_equal(part.scale, whole.scale[rows])


def test_cosine_of_normal_numbers() -> None:
    states = np.random.default_rng(0).standard_normal((200, 5, 512)).astype(np.float32)
    found = quantized(states).floats()
    cosine = (states * found).sum(-1) / (
        np.linalg.norm(states, axis=-1) * np.linalg.norm(found, axis=-1)
    )
    assert cosine.min() > 0.9999


def test_floats_of_one_row_and_of_views() -> None:
    raw = quantized(np.random.default_rng(0).standard_normal((6, 3, 4)))
    np.testing.assert_array_equal(raw[2].floats(), raw.floats()[2])
    by_state = Int8Rows(
        np.ascontiguousarray(raw.values.transpose(1, 0, 2)).transpose(1, 0, 2), raw.scale
    )
    np.testing.assert_array_equal(by_state.floats(), raw.floats())
    assert raw.floats().dtype == np.float32


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(number: float) -> None:
    states = np.zeros((300, 2, 4), np.float32)
    states[200, 1, 3] = number
    with pytest.raises(ValueError, match="row 200 of these 300 holds a number that is not finite"):
        quantized(states)
