"""A model of ELMoForManyLangs against what its own code computed (tests/model/files/manylangs), and its ways to be wrong."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

import elmo_store
from elmo_store.mixing.scalar_mix import layers_of_states
from model.bilm import bilm
from model.characters import Lexicon
from model.engine import embedder, word_vectors
from model.engine.cuda import CudaDevice
from model.engine.embedder import Embedder, EngineSettings
from model.errors import ModelError, OptionsError, WeightsError
from model.files.registry import load_any
from model.files.weights import BiLMWeights
from model.start_state import StartState
from pipeline.main import main
from tests.model.files.write_manylangs import FOLDER, SENTENCES

GOLDEN = np.load(FOLDER / "golden.npz")


@pytest.fixture(scope="module")
def weights() -> BiLMWeights:
    return load_any(str(FOLDER))[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(FOLDER, tmp_path / "model"))


def layers(states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return layers_of_states(states).transpose(1, 0, 2)  # [L+1, n, 2p], as theirs


@pytest.mark.parametrize("i", range(len(SENTENCES)))
def test_the_plain_model_gives_what_their_code_gives(weights: BiLMWeights, i: int) -> None:
    states = bilm(weights, SENTENCES[i], StartState.zero(weights.options)).numpy()[1:-1]
    np.testing.assert_allclose(layers(states), GOLDEN[str(i)], atol=2e-6)


@pytest.mark.parametrize("width_step", [4, 50])
def test_the_engine_gives_what_their_code_gives(
    weights: BiLMWeights, width_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_vectors, "WIDTH_STEP", width_step)
    embedder = Embedder(weights, StartState.zero(weights.options), EngineSettings(device="cpu"))
    rows = embedder.embed(SENTENCES, dtype="float32")
    start = 0
    for i, sentence in enumerate(SENTENCES):
        np.testing.assert_allclose(
            layers(rows[start : start + len(sentence)]), GOLDEN[str(i)], atol=2e-6
        )
        start += len(sentence)


def test_the_device_of_gpus_gives_it_too(
    weights: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own blocks of words and table, on the CPU: a GPU runs the same steps."""

    def device(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> CudaDevice:
        return CudaDevice(weights, start, settings, torch.device("cpu"))

    monkeypatch.setattr(embedder, "_device", device)
    model = embedder.Embedder(
        weights, StartState.zero(weights.options), EngineSettings(device="cpu", lanes=16)
    )
    rows = model.embed([SENTENCES[1]], dtype="float32")
    np.testing.assert_allclose(layers(rows), GOLDEN["1"], atol=2e-6)


def test_clips_bite_and_gates_matter(weights: BiLMWeights) -> None:
    """The goldens are no accident: without a clip, with another sign or bias they are others."""
    clipped = np.abs(GOLDEN["1"]).max()
    assert clipped > 0.39
    for name, change in (("highway0.carry.weight", -1.0), ("highway0.carry.bias", -1.0)):
        spoilt = BiLMWeights(
            weights.options,
            weights.tensors | {name: weights.tensors[name] * change},
            weights.lexicon,
        )
        states = bilm(spoilt, SENTENCES[1], StartState.zero(weights.options)).numpy()[1:-1]
        assert np.abs(layers(states) - GOLDEN["1"]).max() > 1e-3


def test_as_safetensors_and_converted(weights: BiLMWeights, tmp_path: Path) -> None:
    assert main(["models", "convert", str(FOLDER), str(tmp_path / "converted")]) == 0
    loaded = BiLMWeights.load(str(tmp_path / "converted"))
    assert loaded.fingerprint == weights.fingerprint
    assert loaded.lexicon == weights.lexicon
    assert loaded.options == weights.options
    other = dict(weights.lexicon.words) if weights.lexicon else {}
    other["cat"], other["the"] = other["the"], other["cat"]
    assert weights.lexicon is not None
    changed = BiLMWeights(
        weights.options, weights.tensors, Lexicon(weights.lexicon.characters, other)
    )
    assert changed.fingerprint != weights.fingerprint
    with pytest.raises(WeightsError, match="write safetensors"):
        weights.save_hdf5(tmp_path / "hdf5")


def test_such_a_model_is_to_be_converted_first() -> None:
    fsspec.filesystem("memory").put(str(FOLDER) + "/", "/manylangs/", recursive=True)
    with pytest.raises(
        WeightsError,
        match=rf"a model of ELMoForManyLangs: .*models convert {re.escape(str(FOLDER))} FOLDER",
    ):
        BiLMWeights.load(str(FOLDER))
    with pytest.raises(
        WeightsError, match=r"a model of ELMoForManyLangs: .*convert LOCAL_COPY FOLDER`"
    ):
        BiLMWeights.load("memory://manylangs")


@pytest.mark.slow
def test_a_store_of_such_a_model(
    weights: BiLMWeights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole job, its warm state too; sentences by text are told apart by all their characters."""
    assert main(["models", "convert", str(FOLDER), str(tmp_path / "model")]) == 0
    (tmp_path / "in.txt").write_text(
        f"the cat sat\nnaïve 東京 cat {'a' * 9} {'東' * 8} {'東' * 20}\n", encoding="utf-8"
    )
    command = [
        "embed",
        str(tmp_path / "in.txt"),
        "--model",
        str(tmp_path / "model"),
        "--output",
        str(tmp_path / "out"),
    ]
    assert (
        main(
            [
                *command,
                "--input-format",
                "lines",
                "--dtype",
                "float32",
                "--start-state",
                "zero",
                "--shard-rows",
                "64",
            ]
        )
        == 0
    )
    store = elmo_store.open(tmp_path / "out")
    assert store.manifest.sizes.words_cut == 2  # of more than 8 characters
    assert "2 words truncated at 8 characters" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "out"), "--output", str(tmp_path / "report.html")]) == 0
    assert "words truncated at 8 characters" in (tmp_path / "report.html").read_text("utf-8")
    np.testing.assert_allclose(layers(store.sentence(0).read()), GOLDEN["0"], atol=2e-6)
    assert store.manifest.model.fingerprint == weights.fingerprint
    assert store.find_text([["the", "cat", "sat"]]) == [0]


def test_the_usual_configuration_need_not_be_in_the_folder(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({"config_path": "../configs/cnn_50_100_512_4096_sample.json"})
    )
    with pytest.raises(
        ModelError, match=r"state dicts lack 'convolutions\.3\.weight'|the options say"
    ):
        load_any(str(folder))  # it is found, and is not this tiny model's
    (folder / "config.json").write_text(json.dumps({"config_path": "mine.json"}))
    with pytest.raises(
        OptionsError, match=r"names the configuration mine\.json, which is not in the folder"
    ):
        load_any(str(folder))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("encoder", {"name": "lstm"}, "its encoder is 'lstm'; only 'elmo'"),
        ("token_embedder", {"name": "lstm"}, "its token_embedder is 'lstm'; only 'cnn'"),
        ("token_embedder", {"char_dim": 0}, "words alone have no character CNN"),
        ("token_embedder", {"activation": "gelu"}, "activation"),
        ("encoder", {"dim": 10}, "the options say"),
    ],
)
def test_configurations_of_other_equations(
    folder: Path, part: str, change: dict[str, Any], message: str
) -> None:
    config = json.loads((folder / "tiny.json").read_text())
    config[part] |= change
    (folder / "tiny.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_any(str(folder))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/tmp/elmo-store-was-here"),)


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({"a": Evil()}), pickle.dumps([1])]
)
def test_a_pickle_that_is_no_state_dict_runs_nothing(folder: Path, content: bytes) -> None:
    (folder / "encoder.pkl").write_bytes(content)
    with pytest.raises(WeightsError, match=r"encoder\.pkl"):
        load_any(str(folder))
    assert not Path("/tmp/elmo-store-was-here").exists()


def test_dictionaries_that_are_none(folder: Path) -> None:
    (folder / "char.dic").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(WeightsError, match=r"char\.dic is not a dictionary"):
        load_any(str(folder))
    (folder / "char.dic").write_text("a\t1\n", encoding="utf-8")
    with pytest.raises(WeightsError, match="dictionaries lack '<eow>'"):
        load_any(str(folder))
    text = (FOLDER / "char.dic").read_text("utf-8")
    (folder / "char.dic").write_text(text + "q\t99\n", encoding="utf-8")
    with pytest.raises(WeightsError, match="character dictionary gives rows up to 99"):
        load_any(str(folder))
    (folder / "char.dic").unlink()
    with pytest.raises(WeightsError, match=r"without char\.dic"):
        load_any(str(folder))


def test_a_lexicon_that_was_not_written_here(weights: BiLMWeights, tmp_path: Path) -> None:
    assert weights.lexicon is not None
    assert Lexicon.from_bytes(weights.lexicon.to_bytes()) == weights.lexicon
    for data in (
        b"",
        b"[]",
        b'{"characters": {}, "words": []}',
        b'{"characters": {"a": "b"}, "words": {}}',
        b'{"characters":{},"words":{}}',
    ):
        with pytest.raises(WeightsError, match="dictionaries"):
            Lexicon.from_bytes(data)
    with pytest.raises(WeightsError, match="and there are no dictionaries"):
        BiLMWeights(weights.options, weights.tensors)
