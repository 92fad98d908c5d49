"""Start states: zero, warm, their bytes and hashes."""

import numpy as np
import pytest
import torch

from model.engine.loaded import LoadedModel
from model.errors import WeightsError
from model.files.registry import load_model, packaged_folders, random_weights
from model.files.weights import BiLMWeights
from model.start_state import StartState
from model.warm import WARM_TEXT, compute_warm, file_name, warm_state
from tests.model.reference import ReferenceBiLM


@pytest.fixture(scope="module")
def warm(tiny: BiLMWeights) -> StartState:
    return compute_warm(tiny)


def test_zero_has_the_models_shape(tiny: BiLMWeights) -> None:
    zero = StartState.zero(tiny.options)
    assert (zero.kind, tuple(zero.h.shape), tuple(zero.c.shape)) == ("zero", (2, 3, 8), (2, 3, 12))
    assert not zero.h.any()
    assert not zero.c.any()


def test_warm_is_what_the_text_leaves_behind(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM, warm: StartState
) -> None:
    sentence = ["What", "comes", "after", "."]
    carried = tiny_reference.carry([[*(line.split(" ") for line in WARM_TEXT), sentence]])[0][-1]
    started = tiny_reference.states(sentence, warm.h.numpy(), warm.c.numpy())
    np.testing.assert_allclose(started, carried, atol=1e-6)
    assert np.abs(carried - tiny_reference.states(sentence)).max() > 1e-3  # and it matters


def test_warm_is_a_function_of_the_model_alone(tiny: BiLMWeights, warm: StartState) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        again = compute_warm(tiny)
    finally:
        torch.set_num_threads(threads)
    assert again.sha256 == warm.sha256
    assert compute_warm(random_weights(tiny.options, seed=1)).sha256 != warm.sha256
    assert not warm.h.requires_grad


def test_bytes_round_trip(tiny: BiLMWeights, warm: StartState) -> None:
    for state in (warm, StartState.zero(tiny.options)):
        data = state.to_bytes()
        back = StartState.from_bytes(data)
        assert (back.kind, back.sha256) == (state.kind, state.sha256)
        assert torch.equal(back.h, state.h)
        assert torch.equal(back.c, state.c)
        assert back.to_bytes() == data


def test_the_hash_sees_kind_and_values(tiny: BiLMWeights, warm: StartState) -> None:
    zero = StartState.zero(tiny.options)
    named_warm = StartState("warm", zero.h, zero.c)
    assert len({zero.sha256, named_warm.sha256, warm.sha256}) == 3
    assert len(zero.sha256) == 64


@pytest.mark.parametrize("data", [b"", b"x" * 40, b"\x02\0\0\0\0\0\0\0{}"])
def test_bytes_that_are_no_start_state(data: bytes) -> None:
    with pytest.raises(WeightsError, match="start state can't be read"):
        StartState.from_bytes(data)


def test_a_state_of_another_model_is_noticed(tiny: BiLMWeights, warm: StartState) -> None:
    warm.check(tiny.options)
    with pytest.raises(WeightsError, match=r"\(2, 1, 8\).*another model"):
        StartState("zero", torch.zeros(2, 1, 8), torch.zeros(2, 1, 12)).check(tiny.options)


def test_packaged_models_bring_their_warm_state_along() -> None:
    """After another default model: write `compute_warm(weights).to_bytes()` to its `file_name`."""
    for folder in packaged_folders():
        _, weights = load_model(folder.name)
        state = warm_state(weights)
        assert state.to_bytes() == (folder / file_name(weights)).read_bytes()
        torch.testing.assert_close(state.c, compute_warm(weights).c, rtol=0, atol=1e-6)


def test_a_model_in_memory_starts_from_the_state_that_a_job_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute(weights: BiLMWeights) -> StartState:
        raise AssertionError("computed here, where a last bit may differ")

    for module in ("model.warm", "model.engine.loaded"):
        monkeypatch.setattr(f"{module}.compute_warm", compute, raising=False)
    assert LoadedModel("default", "warm").embed([["One"]], "float16")[0].shape == (1, 5, 128)
