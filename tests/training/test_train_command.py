"""``elmo-store train`` from the command line: what it writes, how it goes on, what it refuses."""

import json
import re
import signal
from contextlib import nullcontext
from pathlib import Path

import h5py
import pytest

from model.files.registry import load_model
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.training import run
from pipeline.main import main


@pytest.fixture
def text(sentences: list[list[str]], tmp_path: Path) -> Path:
    path = tmp_path / "text.lines"
    path.write_text(
        "".join(" ".join(sentence) + "\n\n" for sentence in sentences[:400]), encoding="utf-8"
    )
    return path


@pytest.fixture
def options_file(small_options: BiLMOptions, tmp_path: Path) -> Path:
    path = tmp_path / "options.json"
    path.write_text(json.dumps(small_options.to_dict()), encoding="utf-8")
    return path


@pytest.fixture
def command(text: Path, options_file: Path, folder: Path) -> list[str]:
    asked = f"train {text} --options {options_file} --output {folder} --lanes 2 --sampled 6"
    return asked.split()


@pytest.mark.slow
def test_a_model_in_both_published_forms_with_its_curve_and_heldout_perplexity(
    command: list[str], text: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--max-tokens", "2000", "--rate", "0.01", "--heldout", str(text)]) == 0
    said = capsys.readouterr().out
    assert "2,000 tokens, 400 sentences, 16 types" in said
    (held,) = re.findall(
        r"perplexity ([\d.]+) forward, ([\d.]+) backward over 2,400 predictions", said
    )
    assert all(1.5 < float(perplexity) < 12 for perplexity in held)
    assert "tokens/s" in said
    assert "h left" in said
    weights = BiLMWeights.load_safetensors(folder / "weights.safetensors")
    assert BiLMWeights.load(str(folder)).fingerprint == weights.fingerprint
    with h5py.File(folder / "weights.hdf5") as file:
        assert file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"].shape == (32, 96)
    assert (
        (folder / "training" / "curve.tsv").read_text().startswith("tokens\tseconds\tloss_forward")
    )


@pytest.mark.slow
def test_evaluate_prints_what_training_found_and_needs_the_softmax(
    command: list[str], text: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--max-tokens", "600", "--heldout", str(text)]) == 0
    said = capsys.readouterr().out
    (at_end,) = [line for line in said.splitlines() if line.startswith("held-out ")]
    assert main(["train", "--evaluate", str(folder), "--heldout", str(text)]) == 0
    assert capsys.readouterr().out.splitlines() == [at_end]
    softmax = (folder / "softmax.safetensors").rename(folder.parent / "softmax.safetensors")
    assert main(["train", "--evaluate", str(folder), "--heldout", str(text)]) == 3
    assert "perplexity needs the softmax" in capsys.readouterr().err
    softmax.rename(folder / "training" / "softmax.safetensors")  # as the packaged model has it
    assert main(["train", "--evaluate", str(folder), "--heldout", str(text)]) == 0
    assert capsys.readouterr().out.splitlines() == [at_end]


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same_model_as_never_stopped(
    command: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(place: Path) -> str:
        return BiLMWeights.load(str(place)).fingerprint

    other = tmp_path / "other"
    straight = [str(other) if part == str(folder) else part for part in command]
    assert main([*straight, "--max-tokens", "900", "--quiet"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            run, "_signals", lambda: nullcontext([signal.SIGTERM])
        )  # which comes with the first batch
        assert main([*command, "--max-tokens", "900", "--quiet"]) == 4
    assert fingerprint(folder) != fingerprint(other)
    assert main([*command, "--quiet", "--resume"]) == 0  # to the run's own end
    assert fingerprint(folder) == fingerprint(other)


def test_a_run_in_the_way_is_not_overwritten(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--max-tokens", "100", "--quiet"]) == 0
    assert main([*command, "--max-tokens", "100", "--quiet"]) == 5
    assert "add --resume to continue it" in capsys.readouterr().err
    assert main([*command, "--max-tokens", "100", "--quiet", "--resume", "--lanes", "3"]) == 3
    assert "lanes: 2 there, 3 asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", 3, "no sentences"),
        (b"\n\n", 3, "no sentences"),
        (b"word word word\n" * 50, 3, "at least 2 different words"),
        (b"too short\n", 3, "too few for one batch"),
    ],
)
def test_texts_that_cannot_be_trained_on(
    content: bytes,
    code: int,
    message: str,
    command: list[str],
    text: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text.write_bytes(content)
    assert main(command) == code
    assert message in capsys.readouterr().err
    assert not (folder / "weights.hdf5").exists()


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (["--options", "nowhere.json"], 3, "nowhere.json"),
        (["--resume"], 3, "no run to resume"),
        (["--heldout", "nowhere.txt"], 3, "nowhere.txt"),
        (["--evaluate", "nowhere"], 2, "--evaluate FOLDER takes texts as --heldout"),
        (
            ["--output", "s3://bucket/run"],
            2,
            "--output s3://bucket/run is a URL: give a local path",
        ),
    ],
)
def test_what_never_begins_says_why(
    extra: list[str],
    code: int,
    message: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*command, "--max-tokens", "100", *extra]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--lanes", "0", "0 is out of range: give 1 or more"),
        ("--rate", "nan", "nan is out of range: give a number above 0"),
        ("--sampled", "0", "0 is out of range: give 1 or more"),
        ("--max-tokens", "x", "invalid int value: 'x'"),
    ],
)
def test_numbers_out_of_range(
    option: str, value: str, message: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_the_packaged_model_s_shape_by_name(command: list[str], folder: Path) -> None:
    assert main([*command, "--options", "default", "--max-tokens", "48", "--quiet"]) == 0
    assert (
        BiLMWeights.load_safetensors(folder / "weights.safetensors").options
        == load_model("default")[1].options
    )


def test_refused_records_are_left_out_and_counted(
    command: list[str], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text.write_bytes(text.read_bytes() + b"\xff\n")
    assert main([*command, "--max-tokens", "100", "--quiet"]) == 0
    assert (
        "record 800: invalid UTF-8 at byte 0 of the line (0xff)\n1 record of TEXT"
        in capsys.readouterr().err
    )
