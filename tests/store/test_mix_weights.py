"""Weight files: every layout is read, everything ambiguous is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import elmo_store
from elmo_store.errors import WeightSetError
from elmo_store.format.manifest import WeightSet
from elmo_store.mixing.weights import check_layers, read_weight_sets
from tests.store.support import make_store

THIRD = 1 / 3


def _json(folder: Path, value: Any) -> str:
    path = folder / "weights.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def _tensors(folder: Path, tensors: dict[str, Any]) -> str:
    path = folder / "weights.safetensors"
    save_file(
        {name: np.atleast_1d(np.array(value, np.float32)) for name, value in tensors.items()}, path
    )
    return str(path)


def test_json_with_one_set(tmp_path: Path) -> None:
    (found,) = read_weight_sets(_json(tmp_path, {"w": [0, 0, 0], "gamma": 2}))
    assert (found.name, found.w, found.gamma) == ("elmo", (0.0, 0.0, 0.0), 2.0)
    assert found.s == pytest.approx((THIRD,) * 3)


def test_json_with_several_sets(tmp_path: Path) -> None:
    value = {
        "in": {"w": [0.0, math.log(3)], "gamma": 1.0},
        "out": {"s": [0.25, 0.75], "gamma": 0.5},
    }
    first, second = read_weight_sets(_json(tmp_path, value))
    assert first.name == "in"
    assert first.s == pytest.approx((0.25, 0.75))
    assert second == WeightSet("out", (0.25, 0.75), 0.5, None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "can't be read"),
        ("[]", "not an object"),
        ("{}", "not an object"),
        ('{"w": [0], "w": [1], "gamma": 1}', "occurs twice"),
        ('{"w": [NaN], "gamma": 1}', "nan.*finite"),
        ({"w": [0, 0]}, "gamma and either w"),
        ({"gamma": 1.0}, "neither w nor s; .* gamma and either w"),
        ({"w": [0, 0], "s": [0.5, 0.5], "gamma": 1}, "gamma and either w"),
        ({"w": [0, 0], "gamma": 1, "layer_norm": True}, "unknown field"),
        ({"w": [0, "1"], "gamma": 1}, "Expected `float`, got `str`"),
        ({"w": [], "gamma": 1}, "one finite number or more"),
        ({"w": 0, "gamma": 1}, "got `int` - at `\\$.w`"),
        ({"w": [0, True], "gamma": 1}, "Expected `float`, got `bool`"),
        ({"w": [0, 0], "gamma": None}, "Expected `float`, got `null` - at `\\$.gamma`"),
        ({"s": [1, 2, 3], "gamma": 1}, "sums to 6: weights s are normalised"),
        ({"a": {"w": [0], "gamma": 1}, "gamma": 1}, "unknown field"),
        ({"row": {"w": [0], "gamma": 1}}, "can't be called 'row'"),
        ({"a/b": {"w": [0], "gamma": 1}}, "can't be called 'a/b'"),
        ({"": {"w": [0], "gamma": 1}}, "can't be called ''"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    path = _json(tmp_path, value)
    with pytest.raises(WeightSetError, match=message) as found:
        read_weight_sets(path)
    assert path in str(found.value)


ALLENNLP = {
    "_elmo.scalar_mix_0.scalar_parameters.0": 0.0,
    "_elmo.scalar_mix_0.scalar_parameters.1": 0.0,
    "_elmo.scalar_mix_0.gamma": 1.5,
    "_elmo.scalar_mix_1.scalar_parameters.1": math.log(4),
    "_elmo.scalar_mix_1.scalar_parameters.0": 0.0,
    "_elmo.scalar_mix_1.gamma": 1.0,
}


def assert_allennlp_sets(sets: tuple[WeightSet, ...]) -> None:
    by_name = {one.name: one for one in sets}
    assert sorted(by_name) == ["scalar_mix_0", "scalar_mix_1"]
    assert by_name["scalar_mix_0"].s == (0.5, 0.5)
    assert by_name["scalar_mix_0"].gamma == 1.5
    assert by_name["scalar_mix_1"].s == pytest.approx((0.2, 0.8))


def test_allennlp_names_in_safetensors(tmp_path: Path) -> None:
    assert_allennlp_sets(
        read_weight_sets(
            _tensors(tmp_path, {**ALLENNLP, "encoder.weight": [1, 2], "norm.gamma": [1, 1]})
        )
    )


def test_allennlp_names_without_a_prefix(tmp_path: Path) -> None:
    (one,) = read_weight_sets(
        _tensors(tmp_path, {"scalar_parameters.0": 1, "scalar_parameters.1": 1, "gamma": 2})
    )
    assert one == WeightSet("elmo", (0.5, 0.5), 2.0, (1.0, 1.0))


def test_equal_last_names_keep_their_prefixes(tmp_path: Path) -> None:
    tensors = {f"{side}.mix.{key}": 0 for side in "ab" for key in ("scalar_parameters.0", "gamma")}
    assert sorted(one.name for one in read_weight_sets(_tensors(tmp_path, tensors))) == [
        "a.mix",
        "b.mix",
    ]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"bias": [1]}, "holds no scalar mix"),
        ({"scalar_parameters.0": 0, "gamma": [1, 2]}, "gamma has 2 numbers, not 1"),
        ({"scalar_parameters.0": 0}, "no gamma"),
        ({"m.scalar_parameters.0": 0, "gamma": 1}, r"no m\.gamma"),
        ({"scalar_parameters.1": 0, "gamma": 1}, r"has layers \[1\], not 0, 1"),
        ({"scalar_parameters.0": [0, 0], "gamma": 1}, "has 2 numbers, not 1"),
        ({"scalar_parameters.0": float("inf"), "gamma": 1}, "finite"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightSetError, match=message):
        read_weight_sets(_tensors(tmp_path, tensors))


def test_damaged_and_unknown_files(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"junk")
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(WeightSetError, match="not a safetensors file"):
        read_weight_sets(str(tmp_path / "a.safetensors"))
    with pytest.raises(WeightSetError, match=r"known are \.json, \.safetensors"):
        read_weight_sets(str(tmp_path / "a.txt"))
    with pytest.raises(FileNotFoundError):
        read_weight_sets(str(tmp_path / "b.json"))


def test_any_url_and_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    with fsspec.open("memory://weights/a.json", "w") as file:
        file.write('{"w": [0], "gamma": 1}')
    assert read_weight_sets("memory://weights/a.json")[0].s == (1.0,)
    _json(tmp_path, {"w": [0, 0], "gamma": 1})
    monkeypatch.chdir(tmp_path)
    assert read_weight_sets("weights.json")[0].s == (0.5, 0.5)


def test_layers_must_be_the_stores() -> None:
    check_layers([WeightSet("a", (0.5, 0.25, 0.25), 1.0)], 2)
    with pytest.raises(
        WeightSetError, match=r"the store has 3 layers .* weight set a has 2 weights: s = 0.5, 0.5"
    ):
        check_layers([WeightSet("a", (0.5, 0.5), 1.0)], 2)


class _Sprung:
    """Its pickle would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


def test_torch_state_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    state = {name: torch.tensor([value]) for name, value in ALLENNLP.items()}
    state["lstm.weight"] = torch.zeros(3, 3)
    torch.save(state, tmp_path / "weights.th")
    assert_allennlp_sets(read_weight_sets(str(tmp_path / "weights.th")))
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "model.ckpt")
    assert_allennlp_sets(read_weight_sets(str(tmp_path / "model.ckpt")))
    torch.save({"lstm.weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(WeightSetError, match="holds no scalar mix"):
        read_weight_sets(str(tmp_path / "other.pt"))
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(WeightSetError, match="holds a list"):
        read_weight_sets(str(tmp_path / "list.pt"))
    (tmp_path / "junk.pt").write_bytes(b"junk")
    monkeypatch.chdir(tmp_path)
    torch.save({"a": _Sprung()}, tmp_path / "code.pt")
    for name in ("junk.pt", "code.pt"):
        with pytest.raises(WeightSetError, match="can't be read as a torch state dict"):
            read_weight_sets(str(tmp_path / name))
    assert not (tmp_path / "sprung").exists()


def test_a_mix_and_a_sentence_say_what_they_hold(tmp_path: Path) -> None:
    torch_mix = pytest.importorskip("elmo_store.torch").ScalarMix([0.0, 1.0, 0.0], gamma=2.0)
    assert "s=[0.2119, 0.5761, 0.2119], gamma=2.0000" in repr(torch_mix)
    make_store(str(tmp_path / "store"), lengths=(3, 9, 0), parts=(3,))
    first, second, blank = elmo_store.open(tmp_path / "store").sentences()
    assert f"{' '.join(first.tokens)!r}, rows 0 … 3>" in repr(first)
    assert f"{' '.join(second.tokens[:6]) + ' …'!r}, rows 3 … 12>" in repr(second)
    assert "'', rows 12 … 12>" in repr(blank)
    with pytest.raises(
        WeightSetError,
        match=r"the mix has 2 weights, for states of shape \[\.\.\., 3, width\]; the states given are \(3, 5, ",
    ):
        elmo_store.ScalarMix([0.0, 0.0])(states=first.read())
