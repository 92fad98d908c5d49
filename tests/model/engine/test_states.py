"""A call's states as stores have them: which, in which dtype."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elmo_store.format.numbers import Int8Rows, quantized
from elmo_store.forms import zarr_shard
from elmo_store.storage.data import joined, pieces_of
from model.engine import embedder
from model.engine import states as states_module
from model.engine.cuda import CudaDevice
from model.engine.embedder import Embedder, EngineSettings
from model.engine.states import States, Wanted, quantised
from model.files.weights import BiLMWeights
from model.start_state import StartState

SENTENCES = [[f"w{(i * j) % 11}" for j in range(i % 7 + 1)] for i in range(30)]
REQUESTS = SENTENCES
MEMORY = partial(torch.empty, dtype=torch.uint8)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture(params=["cpu", "cuda without a GPU"])
def model(
    request: pytest.FixtureRequest, tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> Embedder:
    if request.param != "cpu":
        monkeypatch.setattr(
            embedder, "_device", lambda *of: CudaDevice(of[0], of[1], of[2], torch.device("cpu"))
        )
        monkeypatch.setattr("model.engine.cuda.GROUP_ROWS", 50)
    return Embedder(tiny, StartState.zero(tiny.options), EngineSettings(device="cpu", lanes=16))


def run(model: Embedder, **wanted: Any) -> Any:
    return model.run(model.prepare(REQUESTS, boundaries=True), **wanted).result()


@given(arrays.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=FLOATS))
def test_int8_has_the_bytes_of_the_format_s_own(rows: Any) -> None:
    want = quantized(rows[:, None])
    levels, scale = quantised(torch.from_numpy(rows))
    assert levels.numpy().tobytes() == want.values.tobytes()
    assert scale.numpy().tobytes() == want.scale.tobytes()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_the_scale_of_what_is_not_finite_says_so(number: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = number
    assert quantised(rows)[1].isnan().tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("states", [None, (5, 0, 3)])
def test_a_result_holds_the_states_wanted_as_they_are_stored(
    model: Embedder, monkeypatch: pytest.MonkeyPatch, dtype: str, states: tuple[int, ...] | None
) -> None:
    monkeypatch.setattr(states_module, "CPU_ROWS_AT_ONCE", 7)
    full = model.embed(REQUESTS, boundaries=True, dtype="float32")
    assert full.flags.c_contiguous
    kept = full[:, list(states or range(7))]
    found = run(model, dtype=dtype, states=states)
    want = (*quantized(kept),) if dtype == "int8" else (kept.astype(dtype),)
    got = (*found,) if isinstance(found, Int8Rows) else (found,)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert got[0].transpose(1, 0, 2).flags.c_contiguous


def test_what_a_device_copies_has_no_gaps() -> None:
    states = States.empty(Wanted((0, 2), "int8"), 9, 4, MEMORY)
    assert sum(run.numel() for run in states.rows(2, 5).runs()) == 5 * 2 * 5
    assert all(run.is_contiguous() for run in states.rows(2, 5).runs())


def test_an_unknown_dtype_is_refused(model: Embedder) -> None:
    with pytest.raises(ValueError, match=r"dtype is .* known are"):
        run(model, dtype="float64")


def test_a_shard_is_the_engine_s_own_memory(model: Embedder) -> None:
    states, again = run(model), model.embed(REQUESTS, boundaries=True)
    shard, want = (
        zarr_shard.encode(rows, shard_rows=192, chunk_rows=8, compression="none")
        for rows in (states, again)
    )
    assert bytes(joined(shard)) == bytes(joined(want))
    assert np.frombuffer(pieces_of(shard)[0], np.uint8).ctypes.data == states.ctypes.data


@pytest.mark.parametrize("width", [3, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("n", [0, 5])
def test_rows_of_any_width_are_put_where_they_belong(width: int, dtype: Any, n: int) -> None:
    numbers = np.random.default_rng(width).standard_normal((9, width)).astype(np.float32)
    states = States.empty(Wanted((4, 1), dtype), n, width, MEMORY)
    row, index = torch.arange(n).flip(0), torch.arange(n) + 2
    for state in (1, 4, 3):
        states.put(state, row, torch.from_numpy(numbers * state), index)
    want = (numbers[2 : 2 + n][::-1, None] * np.array([4, 1], np.float32)[:, None]).astype(
        np.float32
    )
    found, stored = states.result(), [*quantized(want)] if dtype == "int8" else [want]
    for one, other in zip(
        [*found] if isinstance(found, Int8Rows) else [found], stored, strict=True
    ):
        np.testing.assert_array_equal(one, other.astype(one.dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_int8_has_the_same_bytes(tiny: BiLMWeights) -> None:
    random = np.random.default_rng(0)
    rows = (random.standard_normal((512, 64)) * 10.0 ** random.integers(-44, 38, (512, 1))).astype(
        np.float32
    )
    want = quantized(rows[:, None])
    levels, scale = quantised(torch.from_numpy(rows).cuda())
    assert levels.cpu().numpy().tobytes() == want.values.tobytes()
    assert scale.cpu().numpy().tobytes() == want.scale.tobytes()
    model = Embedder(tiny, StartState.zero(tiny.options), EngineSettings(device="cuda", lanes=64))
    kept = model.embed(REQUESTS, boundaries=True, dtype="float32")[:, [5, 0]]
    for one, other in zip(run(model, dtype="int8", states=(5, 0)), quantized(kept), strict=True):
        np.testing.assert_array_equal(one, other)
