"""``elmo-store mix``: the mixed store against the formula in float64, its forms, its door, and going on after a failure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save_file

import elmo_store
from elmo_store.mixing.scalar_mix import mix_rows
from elmo_store.torch import ScalarMix, layers_of_states
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import Command, embed_command, write_corpus
from tests.pipeline.support import digests
from tests.store.support import make_store
from transforms.stages import derive as derive_stages

W = {"in": {"w": [0.3, -1.0, 2.0], "gamma": 1.7}, "out": {"s": [0.25, 0.25, 0.5], "gamma": 0.5}}


@pytest.fixture(scope="module")
def source(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedded store of both forms, which no test changes."""
    folder = tmp_path_factory.mktemp("source")
    assert (
        embed_command(write_corpus(folder / "corpus"), tiny_model)(
            folder / "store", "--store", "both"
        )
        == 0
    )
    return folder / "store"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(W), encoding="utf-8")
    return path


def mix(source: Path, weights: Path, output: Path, *options: str) -> int:
    try:
        return main(
            [
                "mix",
                str(source),
                "--weights",
                str(weights),
                "--output",
                str(output),
                "--quiet",
                *options,
            ]
        )
    except SystemExit as end:  # argparse
        return int(end.code or 0)


def expected(
    states: npt.NDArray[Any], s: list[float], gamma: float, *, layer_norm: bool = False
) -> npt.NDArray[Any]:
    """γ Σ s_j h_j in float64, written from the paper: layer 0 = [x; x], layer j = [fwd j; bwd j]."""
    x, f1, b1, f2, b2 = np.moveaxis(states.astype(np.float64), 1, 0)
    layers = [np.concatenate(pair, axis=1) for pair in ((x, x), (f1, b1), (f2, b2))]
    if layer_norm:
        layers = [
            (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-12)
            for h in layers
        ]
    return gamma * np.einsum("l,lnc->nc", np.array(s), np.stack(layers))


def softmax(w: list[float]) -> list[float]:
    e = np.exp(np.array(w))
    return list(e / e.sum())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zarr", "parquet", "both"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_row_is_the_formula(
    source: Path, weights: Path, tmp_path: Path, form: str, layer_norm: bool
) -> None:
    options = ["--store", form, "--dtype", "float32", *(["--layer-norm"] if layer_norm else [])]
    assert mix(source, weights, tmp_path / "mixed", *options) == 0
    store, mixed = elmo_store.open(str(source)), elmo_store.open(str(tmp_path / "mixed"))
    assert mixed.manifest.kind == "mix"
    assert mixed.states == ("in", "out")
    states = store.read()
    want_in = expected(states, softmax(W["in"]["w"]), 1.7, layer_norm=layer_norm)  # type: ignore[arg-type]
    want_out = expected(states, [0.25, 0.25, 0.5], 0.5, layer_norm=layer_norm)
    np.testing.assert_allclose(mixed["in"][:], want_in, atol=1e-5)
    np.testing.assert_allclose(mixed["out"][:], want_out, atol=1e-5)
    assert (tmp_path / "mixed" / "states.zarr" / "states").exists() == (form != "parquet")
    assert (tmp_path / "mixed" / "states").exists() == (form != "zarr")


def test_text_and_rows_are_those_of_the_source(source: Path, weights: Path, tmp_path: Path) -> None:
    assert mix(source, weights, tmp_path / "mixed") == 0
    store, mixed = elmo_store.open(str(source)), elmo_store.open(str(tmp_path / "mixed"))
    assert mixed.n_sentences == store.n_sentences
    assert mixed.manifest.dtype == store.manifest.dtype
    for i in range(store.n_sentences):
        assert mixed.sentence(i).tokens == store.sentence(i).tokens
        assert mixed.sentence(i).id == store.sentence(i).id
    assert not mixed.verify().faults


def test_boundaries_are_mixed_too(embed: Command, weights: Path, tmp_path: Path) -> None:
    assert embed(tmp_path / "source", "--boundaries") == 0
    assert mix(tmp_path / "source", weights, tmp_path / "mixed", "--dtype", "float32") == 0
    store, mixed = (
        elmo_store.open(str(tmp_path / "source")),
        elmo_store.open(str(tmp_path / "mixed")),
    )
    assert mixed.n_rows == store.n_rows > store.n_tokens
    np.testing.assert_allclose(
        mixed["out"][:], expected(store.read(), [0.25, 0.25, 0.5], 0.5), atol=1e-5
    )


def test_a_trained_torch_mix_and_its_safetensors_give_the_same_bytes(
    source: Path, tmp_path: Path
) -> None:
    trained = ScalarMix([0.5, -0.25, 1.0])
    state = {"encoder.mix." + name: value for name, value in trained.state_dict().items()}
    torch.save(state, tmp_path / "task.th")
    save_file({name: value.numpy() for name, value in state.items()}, tmp_path / "task.safetensors")
    assert mix(source, tmp_path / "task.th", tmp_path / "a", "--dtype", "float32") == 0
    assert mix(source, tmp_path / "task.safetensors", tmp_path / "b", "--dtype", "float32") == 0
    a, b = elmo_store.open(str(tmp_path / "a")), elmo_store.open(str(tmp_path / "b"))
    assert a.states == ("mix",)
    assert np.array_equal(a["mix"][:], b["mix"][:])
    with torch.no_grad():
        states = torch.from_numpy(elmo_store.open(str(source)).read())
        np.testing.assert_allclose(
            a["mix"][:], trained(layers=layers_of_states(states)).numpy(), atol=1e-5
        )


def test_the_same_command_again_is_the_same_store(
    source: Path, weights: Path, tmp_path: Path
) -> None:
    assert mix(source, weights, tmp_path / "mixed", "--store", "both") == 0
    first = digests(tmp_path / "mixed")
    assert mix(source, weights, tmp_path / "mixed", "--store", "both", "--overwrite") == 0
    assert digests(tmp_path / "mixed") == first


def test_a_failed_shard_leaves_the_job_unfinished_and_again_is_continue(
    source: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert mix(source, weights, tmp_path / "whole") == 0
    real = derive_stages.write_shard
    written: list[int] = []

    def failing(*arguments: object) -> object:
        shard = arguments[2].shard  # type: ignore[attr-defined]
        if shard == 1 and not written.count(-1):
            written.append(-1)
            raise OSError("disk full, says the test")
        written.append(shard)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(derive_stages, "write_shard", failing)
    assert mix(source, weights, tmp_path / "mixed") == 4
    assert "disk full, says the test" in capsys.readouterr().err
    with pytest.raises(elmo_store.errors.StoreIncompleteError):
        elmo_store.open(str(tmp_path / "mixed"))
    before = list(written)
    assert mix(source, weights, tmp_path / "mixed") == 0
    assert written[len(before) :] == [1]
    assert digests(tmp_path / "mixed") == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    "command",
    [
        "mix {store} --weights {folder}/weights.json --output {folder}/out",
        "export {store} --format bilm --output {folder}/out",
        "explore {store}",
    ],
    ids=lambda command: command.split()[0],
)
def test_a_command_that_needs_layers_says_which_states_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    store = make_store(str(tmp_path / "store"), states=("x", "fwd1")).root.url()
    (tmp_path / "weights.json").write_text('{"w": [0, 0, 0], "gamma": 1}')
    assert main(command.format(store=store, folder=tmp_path).split()) in (
        Exit.BAD_USAGE,
        Exit.BAD_LOCATION,
    )
    assert (
        "of the states x, fwd1 alone no layers can be made: embed all states"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_other_weights_on_the_same_output_are_refused(
    source: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mix(source, weights, tmp_path / "mixed") == 0
    other = tmp_path / "other.json"
    other.write_text('{"s": [0, 0, 1], "gamma": 1}', encoding="utf-8")
    assert mix(source, other, tmp_path / "mixed") == 5
    assert "weights:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"w": [0, 0], "gamma": 1}', "2 weights"),
        ('{"weights": [0, 0, 0], "gamma": 1}', "either w"),
        ('{"s": [1, 1, 1], "gamma": 1}', "normalised"),
        ("{", "can't be read"),
    ],
)
def test_weights_that_cannot_be_used(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    assert mix(source, path, tmp_path / "mixed") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "mixed").exists()


def test_what_is_not_there(
    source: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mix(tmp_path / "nowhere", weights, tmp_path / "mixed") == 3
    assert mix(source, tmp_path / "nowhere.json", tmp_path / "mixed") == 3
    assert mix(source, weights, source) == 2
    assert "is the same as the" in capsys.readouterr().err


def test_a_value_that_float16_cannot_hold_is_named() -> None:
    states = np.full((3, 5, 4), 2.0, np.float32)
    sets = (elmo_store.format.manifest.WeightSet("big", (1.0, 0.0, 0.0), 1e6),)
    with pytest.raises(ValueError, match="'big' gives a value that float16"):
        mix_rows(states, sets, layer_norm=False, dtype="float16")
    assert mix_rows(states, sets, layer_norm=False, dtype="float32").max() == pytest.approx(2e6)
