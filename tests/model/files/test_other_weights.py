"""Weights that people have, in the layouts that they have them in: NLPL's, and checkpoints of bilm-tf's training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from model.errors import OptionsError, WeightsError
from model.files import tf_checkpoint
from model.files.registry import load_any, load_model, random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from pipeline.main import main
from tests.examples import examples
from tests.model.files.write_checkpoint import FOLDER as CHECKPOINT

# Of the checkpoint in tests/model/files/checkpoint, which TensorFlow wrote (write_checkpoint.py): random_weights(OPTIONS, 3).
OPTIONS = BiLMOptions(
    cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=4, dim=6, n_layers=2, activation="relu",
    filters=((1, 3), (2, 4)), n_highway=1, char_embedding_dim=3,
)  # fmt: skip


@pytest.mark.parametrize("url", ["{}/216.zip", "memory://nlpl/216.zip"])
def test_a_zip_is_to_be_unpacked_into_a_folder_which_is_read(
    tiny: BiLMWeights, tmp_path: Path, url: str
) -> None:
    with pytest.raises(WeightsError, match=r"216\.zip is a zip: unpack it and name the folder"):
        load_model(url.format(tmp_path))
    tiny.save_hdf5(tmp_path / "216")  # as the NLPL repository lays one out
    (tmp_path / "216" / "weights.hdf5").rename(tmp_path / "216" / "model.hdf5")
    (tmp_path / "216" / "meta.json").write_text("{}")
    name, loaded = load_model(str(tmp_path / "216"))
    assert (name, loaded.fingerprint) == ("216", tiny.fingerprint)


# --- checkpoints of TensorFlow ------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))


def test_a_checkpoint_that_tensorflow_wrote() -> None:
    """Bit for bit the weights that were given to TensorFlow; options of training, softmax and optimiser are no hindrance."""
    name, loaded = load_any(str(CHECKPOINT))
    assert name == "checkpoint"
    assert loaded.options == OPTIONS
    assert loaded.fingerprint == random_weights(OPTIONS, 3).fingerprint


def test_of_a_folder_the_checkpoint_of_the_highest_step_is_read(checkpoint: Path) -> None:
    for name in ("model.ckpt-42.index", "model.ckpt-42.data-00000-of-00001"):
        shutil.copy(checkpoint / name, checkpoint / name.replace("42", "1007"))
    assert tf_checkpoint.latest(checkpoint).name == "model.ckpt-1007.index"
    assert load_any(str(checkpoint))[1].fingerprint == random_weights(OPTIONS, 3).fingerprint


def test_a_checkpoint_is_to_be_converted_first(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError,
        match=rf"a checkpoint of bilm-tf's training: .*models convert {checkpoint} FOLDER",
    ):
        BiLMWeights.load(str(checkpoint))
    with pytest.raises(WeightsError, match="holds no checkpoint"):
        tf_checkpoint.latest(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("variable", "dataset"),
    [
        ("lm/char_embed", "char_embed"),
        ("lm/CNN_high_0/W_carry", "CNN_high_0/W_carry"),
        (
            "lm/RNN_1/rnn/multi_rnn_cell/cell_0/lstm_cell/projection/kernel",
            "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0",
        ),
        (
            "lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel",
            "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0",
        ),
        ("lm/RNN_0/rnn/lstm_cell/bias", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"),
    ],
)
def test_names_are_those_of_dump_weights(variable: str, dataset: str) -> None:
    assert tf_checkpoint.dataset_name(variable) == dataset


def test_damaged_data_is_told(checkpoint: Path) -> None:
    data = checkpoint / "model.ckpt-42.data-00000-of-00001"
    good = data.read_bytes()
    data.write_bytes(good[:2000] + bytes([good[2000] ^ 1]) + good[2001:])
    with pytest.raises(WeightsError, match="are cut or damaged"):
        load_any(str(checkpoint))
    data.write_bytes(good[:100])
    with pytest.raises(WeightsError, match="are cut or damaged"):
        load_any(str(checkpoint))
    data.unlink()
    with pytest.raises(
        WeightsError, match=r"0 files model\.ckpt-42\.data-00000-of-… are beside it, not 1"
    ):
        load_any(str(checkpoint))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_index_is_more_than_an_error(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "spoilt"
    shutil.copytree(CHECKPOINT, folder, dirs_exist_ok=True)
    index = folder / "model.ckpt-42.index"
    spoilt = bytearray(index.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] ^= data.draw(st.integers(1, 255))
    index.write_bytes(
        spoilt[: data.draw(st.integers(0, len(spoilt)))] if data.draw(st.booleans()) else spoilt
    )
    try:
        _, found = load_any(str(folder))
    except WeightsError as error:
        assert "model.ckpt-42" in str(error)  # noqa: PT017 (damage may fall where nothing is read)
    else:
        assert found.fingerprint == random_weights(OPTIONS, 3).fingerprint


def test_options_of_another_shape(checkpoint: Path) -> None:
    options = json.loads((checkpoint / "options.json").read_text())
    options["lstm"]["dim"] = 7
    (checkpoint / "options.json").write_text(json.dumps(options))
    with pytest.raises(WeightsError, match="same model"):
        load_any(str(checkpoint))
    del options["char_cnn"]
    (checkpoint / "options.json").write_text(json.dumps(options))
    with pytest.raises(OptionsError, match="a word-level biLM"):
        load_any(str(checkpoint))


def test_a_number_of_more_than_64_bits_ends() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        tf_checkpoint._varint(b"\xff" * 20, 0)


# --- models convert -----------------------------------------------------------------------------------------------


def test_convert_writes_a_folder_that_embeds(
    tiny: BiLMWeights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.save_hdf5(tmp_path / "hdf5")
    sources: dict[str, tuple[Any, BiLMWeights]] = {
        "published": (tmp_path / "hdf5", tiny),
        "checkpoint": (CHECKPOINT, random_weights(OPTIONS, 3)),
    }
    for name, (source, wanted) in sources.items():
        output = tmp_path / name
        assert main(["models", "convert", str(source), str(output)]) == 0
        assert wanted.fingerprint in capsys.readouterr().out
        assert sorted(path.name for path in output.iterdir()) == [
            "options.json",
            "weights.safetensors",
        ]
        assert BiLMWeights.load(str(output)).fingerprint == wanted.fingerprint
        assert json.loads((output / "options.json").read_text())["char_cnn"]["n_characters"] == 262
        assert main(["models", "convert", str(source), str(output)]) == 5
        assert (
            main(
                ["models", "convert", str(source), str(output), "--overwrite", "--dtype", "float16"]
            )
            == 0
        )
        half = BiLMWeights.load(str(output)).tensors["proj.weight"]
        assert torch.equal(half, wanted.tensors["proj.weight"].half().float())


def test_convert_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "convert", str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert (
        f"there is no folder or file {tmp_path / 'none'}; `elmo-store models` lists names"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
