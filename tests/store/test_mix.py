"""The scalar mix against its formula in float64, written out; and mixed stores."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store import ScalarMix
from elmo_store.errors import WeightSetError
from elmo_store.format.manifest import MixInfo, WeightSet
from elmo_store.mixing.scalar_mix import layers_of_states
from tests.examples import examples
from tests.store.support import make_store


def formula(
    states: npt.NDArray[Any], s: list[float], gamma: float, layer_norm: bool
) -> npt.NDArray[np.float64]:
    """γ Σ_j s_j h_j in float64, token by token and layer by layer."""
    out = []
    for token in states.astype(np.float64):
        layers = [np.concatenate([token[0], token[0]])]
        layers += [np.concatenate([token[2 * j - 1], token[2 * j]]) for j in range(1, len(s))]
        if layer_norm:
            layers = [
                (h - h.mean()) / np.sqrt(((h - h.mean()) ** 2).mean() + 1e-12) for h in layers
            ]
        out.append(gamma * sum(weight * h for weight, h in zip(s, layers, strict=True)))
    return np.array(out).reshape(len(states), 2 * states.shape[2])


@examples(60)
@given(
    w=st.lists(st.floats(-8, 8), min_size=2, max_size=5),
    gamma=st.floats(-3, 3),
    rows=st.integers(0, 6),
    layer_norm=st.booleans(),
    dtype=st.sampled_from(["float16", "float32"]),
    seed=st.integers(0, 99),
)
def test_the_formula(
    w: list[float], gamma: float, rows: int, layer_norm: bool, dtype: str, seed: int
) -> None:
    states = np.random.default_rng(seed).standard_normal((rows, 2 * len(w) - 1, 16)).astype(dtype)
    powers = np.exp(np.array(w))
    s = (powers / powers.sum()).tolist()
    wanted = formula(states, s, gamma, layer_norm)
    norm: Literal["token", "none"] = "token" if layer_norm else "none"
    for mix in (
        ScalarMix(w, gamma=gamma, layer_norm=norm),
        ScalarMix(s=s, gamma=gamma, layer_norm=norm),
    ):
        found = mix(states=states)
        assert found.dtype == np.float32
        assert found.shape == (rows, 32)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * max(1, abs(gamma)) * 5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    states = np.random.default_rng(0).standard_normal((50, 5, 24)).astype(np.float16)
    mix = ScalarMix([0.3, -1.0, 2.0], gamma=0.7, layer_norm="token")
    together = mix(states=states)
    assert all(mix(states=states[i : i + 1]).tobytes() == together[i].tobytes() for i in range(50))


def test_one_layer_alone_is_that_layer() -> None:
    states = np.random.default_rng(0).standard_normal((5, 5, 8)).astype(np.float32)
    for layer in range(3):
        s = [float(layer == j) for j in range(3)]
        np.testing.assert_array_equal(
            ScalarMix(s=s)(states=states), layers_of_states(states)[:, layer]
        )


def test_huge_logits() -> None:
    assert ScalarMix([1000.0, 1000.0, -1000.0]).s == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "w .* s .* or n_layers .* not several"),
        ({"w": [0.0], "s": [1.0]}, "not several"),
        ({"n_layers": 0}, "n_layers=L\\+1, 1 or more"),
        ({"w": 3}, "n_layers=3 for as many layers"),
        ({"w": []}, "one finite number or more"),
        ({"w": [0.0, float("nan")]}, "finite"),
        ({"w": [0.0], "gamma": float("inf")}, "gamma"),
        ({"s": [2.0, 1.0]}, "sums to 3: weights s are normalised"),
        ({"s": [1.5, -0.5]}, "each 0 or more"),
    ],
)
def test_weights_that_are_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightSetError, match=message):
        ScalarMix(**arguments)


def test_weights_of_another_model() -> None:
    with pytest.raises(
        WeightSetError,
        match=r"3 weights, for states of shape \[\.\.\., 5, width\]; the states given are \(1, 7, 4\)",
    ):
        ScalarMix([0, 0, 0])(states=np.zeros((1, 7, 4), np.float32))


@pytest.mark.parametrize("shape", [(3, 4, 8), (3, 1, 8), (3, 8)])
def test_states_that_are_no_bilms(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"not \[rows, 2L\+1, width\]"):
        layers_of_states(np.zeros(shape, np.float32))


@pytest.mark.parametrize("url", ["", "memory://mixed"])
@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_mixed_store(tmp_path: Path, form: str, url: str) -> None:
    url = url or str(tmp_path / "store")
    sets = (
        WeightSet("ner", (0.5, 0.25, 0.25), 1.0),
        WeightSet("pos.v2", (1 / 3,) * 3, 2.0, (0.0, 0.0, 0.0)),
    )
    written = make_store(url, mix=MixInfo("s3://a/b", "4" * 64, True, sets), channels=16)
    store = elmo_store.open(url, form=form)
    assert store.states == ("ner", "pos.v2")
    assert store.manifest.mix == written.manifest.mix
    np.testing.assert_array_equal(store["pos.v2"][:], written.states[:, 1])
    np.testing.assert_array_equal(store.sentence(3)["ner"], written.states[written.rows(3), 0])
    assert store.verify().sentences == len(store)


def test_the_mix_of_a_store(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    mix = ScalarMix.of(WeightSet("a", (0.2, 0.3, 0.5), 2.0))
    found = mix(states=elmo_store.open(tmp_path / "store").sentence(3).read())
    np.testing.assert_allclose(
        found, formula(written.states[written.rows(3)], [0.2, 0.3, 0.5], 2.0, False), atol=1e-5
    )
