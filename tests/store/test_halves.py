"""Every half there is, in every shape that readers give, has the bits of NumPy's own cast."""

import numpy as np
import pytest
import torch

from elmo_store.format.numbers import ROWS_AT_ONCE, assign, widened

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def test_every_half() -> None:
    wanted = EVERY.astype(np.float32)
    assert same(widened(EVERY), wanted)
    finite = np.isfinite(EVERY)
    assert same(widened(EVERY[finite]), wanted[finite])
    assert same(widened(EVERY[5]), wanted[5])


@pytest.mark.parametrize("n", [0, 1, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 5])
def test_views(n: int) -> None:
    states = np.random.default_rng(0).standard_normal((5, n, 16)).astype(np.float16).transpose(1, 0, 2)
    for one in (states, states[:, 3], states[::-1, [0, 0]], states.astype(np.float32)):
        assert same(widened(one), one.astype(np.float32))
        out = np.full((*one.shape[:-1], 40), 7, np.float32)
        assign(out[..., 8:24], one)
        assert np.array_equal(out[..., 8:24], one.astype(np.float32))
        assert (out[..., :8] == 7).all()
    half = np.empty(states.shape, np.float16)
    assign(half, states.astype(np.float32))
    assert np.array_equal(half, states)


def test_where_small_numbers_are_flushed() -> None:
    """torch.set_flush_denormal makes the processor take them for zero, in this thread."""
    small = EVERY[1:1024]
    wanted = small.astype(np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't")
    try:
        found = widened(small)
    finally:
        torch.set_flush_denormal(False)
    assert same(found, wanted)
