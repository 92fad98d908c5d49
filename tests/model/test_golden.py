"""The plain model (`model.bilm`) and the float64 reference against the original TensorFlow code, and against each other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from model.bilm import bilm
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState
from model.warm import compute_warm
from tests.model.lanes import golden_lanes, golden_top_layers, plain_lane
from tests.model.reference import ReferenceBiLM, reference_of

SENTENCES = [
    ["The", "cat", "sat", "."],
    ["Ünïcode", "日本語", "a" * 60, "", "<S>", "naïve" * 12],
    ["one"],
]


def _top(states: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The last layer as the goldens keep it: [n+2, 2L+1, p] → [2, n, p]."""
    return states[1:-1, -2:].transpose(1, 0, 2)


@pytest.mark.slow
def test_reference_agrees_with_all_goldens(
    shared_dir: Path, golden_reference: ReferenceBiLM
) -> None:
    computed = golden_reference.carry(golden_lanes(shared_dir))
    errors = [
        np.abs(_top(states) - want).max()
        for lane, wanted in zip(computed, golden_top_layers(shared_dir), strict=True)
        for states, want in zip(lane, wanted, strict=True)
    ]
    assert len(errors) == 30
    assert max(errors) < 1e-5


def test_plain_torch_agrees_with_all_goldens(shared_dir: Path, golden_weights: BiLMWeights) -> None:
    errors = []
    for lane, wanted in zip(golden_lanes(shared_dir), golden_top_layers(shared_dir), strict=True):
        computed = plain_lane(golden_weights, lane, carry=True)
        errors += [
            np.abs(_top(s.numpy()) - want).max() for s, want in zip(computed, wanted, strict=True)
        ]
    assert len(errors) == 30
    assert max(errors) < 1e-5


def test_the_first_of_a_lane_is_the_golden_of_the_zero_start(
    shared_dir: Path, golden_weights: BiLMWeights
) -> None:
    start = StartState.zero(golden_weights.options)
    for lane, wanted in zip(golden_lanes(shared_dir), golden_top_layers(shared_dir), strict=True):
        states = bilm(golden_weights, lane[0], start)
        assert states.shape == (len(lane[0]) + 2, 5, 16)
        np.testing.assert_allclose(_top(states.numpy()), wanted[0], atol=1e-5)


@pytest.mark.slow
def test_every_state_agrees_with_the_reference_carried(
    shared_dir: Path, golden_weights: BiLMWeights, golden_reference: ReferenceBiLM
) -> None:
    lanes = golden_lanes(shared_dir)
    for lane, wanted in zip(lanes, golden_reference.carry(lanes), strict=True):
        for states, want in zip(plain_lane(golden_weights, lane, carry=True), wanted, strict=True):
            np.testing.assert_allclose(states.numpy(), want, atol=1e-5)


def test_every_state_agrees_with_the_reference_from_zero_and_warm(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM
) -> None:
    for start in (StartState.zero(tiny.options), compute_warm(tiny)):
        for words, states in zip(
            SENTENCES, plain_lane(tiny, SENTENCES, start, dtype=torch.float64), strict=True
        ):
            want = tiny_reference.states(words, start.h.numpy(), start.c.numpy())
            assert want.shape == (len(words) + 2, 7, 8)
            np.testing.assert_allclose(states.numpy(), want, atol=1e-12)


def test_the_clips_of_the_tiny_model_do_bite(tiny: BiLMWeights) -> None:
    unclipped = BiLMWeights(
        replace(tiny.options, cell_clip=float("inf"), proj_clip=float("inf")), tiny.tensors
    )
    assert not torch.allclose(
        plain_lane(tiny, SENTENCES)[0], plain_lane(unclipped, SENTENCES)[0], atol=1e-2
    )


@pytest.mark.parametrize(
    "change", [{"cell_clip": float("inf")}, {"use_skip_connections": False}, {"n_highway": 0}]
)
def test_variants_of_the_options_agree_with_the_reference(
    tiny_options: BiLMOptions, change: dict[str, float | bool | int], tmp_path: Path
) -> None:
    weights = random_weights(replace(tiny_options, **change), seed=3)  # type: ignore[arg-type]
    reference = reference_of(weights, tmp_path)
    for words, states in zip(
        SENTENCES, plain_lane(weights, SENTENCES, dtype=torch.float64), strict=True
    ):
        np.testing.assert_allclose(states.numpy(), reference.states(words), atol=1e-12)
