"""Files of weights: round trips to the bit, and one typed error per way to be wrong."""

import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from model.errors import OptionsError, WeightsError
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from tests.examples import examples

OPTIONS = st.builds(
    BiLMOptions,
    cell_clip=st.sampled_from([3.0, 0.5, float("inf")]),
    proj_clip=st.sampled_from([3.0, 1.25, float("inf")]),
    use_skip_connections=st.booleans(),
    projection_dim=st.integers(1, 9),
    dim=st.integers(1, 9),
    n_layers=st.integers(1, 4),
    activation=st.sampled_from(["relu", "tanh"]),
    filters=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=4).map(
        tuple
    ),
    n_highway=st.integers(0, 3),
    char_embedding_dim=st.integers(1, 6),
)


def _same(a: BiLMWeights, b: BiLMWeights) -> bool:
    return a.options == b.options and all(
        torch.equal(a.tensors[n], b.tensors[n]) for n in a.tensors | b.tensors
    )


@pytest.mark.slow
@examples(25)
@given(OPTIONS, st.integers(0, 5))
def test_any_model_round_trips_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, options: BiLMOptions, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("model")
    weights = random_weights(options, seed)
    weights.save_hdf5(folder)
    weights.save_safetensors(folder / "alone.safetensors")
    from_hdf5 = BiLMWeights.load(str(folder / "weights.hdf5"))
    from_safetensors = BiLMWeights.load(str(folder / "alone.safetensors"))
    assert _same(weights, from_hdf5)
    assert _same(weights, from_safetensors)
    assert weights.fingerprint == from_hdf5.fingerprint == from_safetensors.fingerprint


def test_the_golden_file_is_written_back_dataset_by_dataset(
    shared_dir: Path, golden_weights: BiLMWeights, tmp_path: Path
) -> None:
    golden_weights.save_hdf5(tmp_path)
    found: dict[str, bool] = {}
    with (
        h5py.File(shared_dir / "golden" / "lm_weights.hdf5") as want,
        h5py.File(tmp_path / "weights.hdf5") as have,
    ):

        def compare(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = name in have and item[()].tobytes() == have[name][()].tobytes()

        want.visititems(compare)
        names: list[str] = []
        have.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
    assert found
    assert all(found.values()), found
    assert sorted(names) == sorted(found)


def test_the_fingerprint_tells_models_apart(tiny: BiLMWeights, tiny_options: BiLMOptions) -> None:
    changed = {name: tensor.clone() for name, tensor in tiny.tensors.items()}
    changed["proj.bias"][0] += 1
    prints = {
        tiny.fingerprint,
        BiLMWeights(tiny_options, changed).fingerprint,
        random_weights(tiny_options, seed=8).fingerprint,
    }
    assert len(prints) == 3
    assert all(p.startswith("sha256:") and len(p) == 71 for p in prints)
    assert (
        BiLMWeights(tiny_options, dict(reversed(tiny.tensors.items()))).fingerprint
        == tiny.fingerprint
    )


def test_float16_is_close_half_the_size_and_another_model(
    tiny: BiLMWeights, tmp_path: Path
) -> None:
    tiny.save_safetensors(tmp_path / "half.safetensors", dtype="float16")
    half = BiLMWeights.load(str(tmp_path / "half.safetensors"))
    assert half.fingerprint != tiny.fingerprint
    for name, tensor in half.tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, tiny.tensors[name].half().float())


def test_equal_models_are_equal_safetensors_files(tiny: BiLMWeights, tmp_path: Path) -> None:
    tiny.save_safetensors(tmp_path / "a.safetensors")
    reordered = BiLMWeights(tiny.options, dict(reversed(tiny.tensors.items())))
    reordered.save_safetensors(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_value_that_float16_cannot_hold_is_refused_and_leaves_no_file(
    tiny: BiLMWeights, tmp_path: Path
) -> None:
    tensors = {**tiny.tensors, "proj.bias": torch.full((8,), 1e6)}
    with pytest.raises(WeightsError, match=r"'proj\.bias'.*float16"):
        BiLMWeights(tiny.options, tensors).save_safetensors(
            tmp_path / "x.safetensors", dtype="float16"
        )
    assert list(tmp_path.iterdir()) == []


def test_filters_as_many_as_the_projection_is_wide_need_no_projection(
    tmp_path: Path, tiny_options: BiLMOptions
) -> None:
    options = BiLMOptions.from_dict(
        {**tiny_options.to_dict(), "char_cnn": _filters(tiny_options, [[1, 3], [2, 5]])}
    )
    random_weights(options).save_hdf5(tmp_path)
    with h5py.File(tmp_path / "weights.hdf5", "a") as file:
        del file["CNN_proj"]
    loaded = BiLMWeights.load(str(tmp_path))
    assert torch.equal(loaded.tensors["proj.weight"], torch.eye(8))
    assert not loaded.tensors["proj.bias"].any()


def _filters(options: BiLMOptions, filters: list[list[int]]) -> dict[str, object]:
    return {**options.to_dict()["char_cnn"], "filters": filters}


# --- ways to be wrong ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tiny: BiLMWeights, tmp_path: Path) -> Path:
    """A good folder for a test to spoil."""
    tiny.save_hdf5(tmp_path)
    return tmp_path


def test_a_missing_dataset_is_named(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "a") as file:
        del file["RNN_1/RNN/MultiRNNCell/Cell2/LSTMCell/W_P_0"]
    with pytest.raises(WeightsError, match="RNN_1/RNN/MultiRNNCell/Cell2/LSTMCell/W_P_0"):
        BiLMWeights.load(str(folder))


def test_a_group_in_place_of_a_dataset_is_refused(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "a") as file:
        del file["char_embed"]
        file.create_group("char_embed")
    with pytest.raises(WeightsError, match="lacks the dataset 'char_embed'"):
        BiLMWeights.load(str(folder))


def test_a_wrong_shape_shows_both_shapes(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "a") as file:
        del file["CNN_proj/b_proj"]
        file["CNN_proj/b_proj"] = np.zeros(9, np.float32)
    with pytest.raises(WeightsError, match=r"b_proj.*\(9,\).*\(8,\)"):
        BiLMWeights.load(str(folder))


def test_integers_are_no_weights(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "a") as file:
        del file["CNN_proj/b_proj"]
        file["CNN_proj/b_proj"] = np.zeros(8, np.int32)
    with pytest.raises(WeightsError, match="int32, not floating point"):
        BiLMWeights.load(str(folder))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(folder: Path, bad: float) -> None:
    with h5py.File(folder / "weights.hdf5", "a") as file:
        file["CNN/b_cnn_1"][0] = bad
    with pytest.raises(WeightsError, match=r"'conv1\.bias' holds NaN or infinity"):
        BiLMWeights.load(str(folder))


@pytest.mark.parametrize(
    "content", [b"", b"no such format", pickle.dumps({"a": 1}), b"\x89HDF\r\n\x1a\n" + b"\0" * 64]
)
def test_a_file_that_is_not_hdf5_is_refused(folder: Path, content: bytes) -> None:
    (folder / "weights.hdf5").write_bytes(content)
    with pytest.raises(WeightsError, match=r"weights\.hdf5 can't be opened as HDF5"):
        BiLMWeights.load(str(folder))


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 16, pickle.dumps({"a": 1})])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"m\.safetensors can't be read as safetensors"):
        BiLMWeights.load(str(path))


@pytest.mark.parametrize(
    "name", ["model.pt", "token_embedder.pkl", "pytorch_model.bin", "model.ckpt"]
)
def test_formats_that_can_hold_code_are_never_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    torch.save({"x": torch.ones(1)}, path)
    with pytest.raises(WeightsError, match="can hold code"):
        BiLMWeights.load(str(path))


def test_options_of_another_model_are_noticed(tiny: BiLMWeights, folder: Path) -> None:
    options = tiny.options.to_dict()
    options["lstm"]["dim"] = 13
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(WeightsError, match="same model"):
        BiLMWeights.load(str(folder))


def test_safetensors_needs_options_from_somewhere(tiny: BiLMWeights, tmp_path: Path) -> None:
    save_file(dict(tiny.tensors), tmp_path / "weights.safetensors")
    with pytest.raises(OptionsError, match=r"no 'options' in its metadata"):
        BiLMWeights.load(str(tmp_path / "weights.safetensors"))
    (tmp_path / "options.json").write_text(json.dumps(tiny.options.to_dict()))
    assert BiLMWeights.load(str(tmp_path)).fingerprint == tiny.fingerprint


def test_options_inside_and_beside_must_agree(tiny: BiLMWeights, tmp_path: Path) -> None:
    tiny.save_safetensors(tmp_path / "weights.safetensors")
    options = tiny.options.to_dict()
    options["lstm"]["cell_clip"] = 2.0
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(OptionsError, match="other options than"):
        BiLMWeights.load(str(tmp_path))


def test_options_in_the_metadata_can_be_wrong_too(tiny: BiLMWeights, tmp_path: Path) -> None:
    save_file(dict(tiny.tensors), tmp_path / "m.safetensors", metadata={"options": "{"})
    with pytest.raises(OptionsError, match="'options' of its metadata"):
        BiLMWeights.load(str(tmp_path / "m.safetensors"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proj.bias": None}, r"lack 1 tensor.*proj\.bias"),
        ({"extra": torch.zeros(1)}, "don't know: extra"),
        ({"proj.bias": torch.zeros(9)}, r"'proj\.bias' has shape \(9,\), the options say \(8,\)"),
        ({"proj.bias": torch.zeros(8, dtype=torch.float64)}, "float64"),
        ({"char_embed": torch.ones(262, 5)}, "row 0"),
    ],
)
def test_tensors_are_checked_against_the_options(
    tiny: BiLMWeights, change: dict[str, torch.Tensor | None], message: str
) -> None:
    tensors = {name: t for name, t in {**tiny.tensors, **change}.items() if t is not None}
    with pytest.raises(WeightsError, match=message):
        BiLMWeights(tiny.options, tensors)


def test_one_layer_by_itself_and_the_count_of_parameters(tiny: BiLMWeights) -> None:
    layer = tiny.direction("bwd", 2)
    assert {name: tuple(t.shape) for name, t in layer.items()} == {
        "weight_ih": (48, 8),
        "weight_hh": (48, 8),
        "bias": (48,),
        "weight_proj": (8, 12),
    }
    assert tiny.n_parameters == sum(t.numel() for t in tiny.tensors.values()) - 5
