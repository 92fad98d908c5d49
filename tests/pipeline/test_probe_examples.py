"""The examples and `python -m benchmarks.probe`, run as a user runs them, on a generated language; and without their data."""

import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import probe
from elmo_store.mixing.weights import read_weight_sets
from model.files.weights import BiLMWeights
from model.training.network import initial_parameters
from pipeline.main import main

WORDS = {"the": ("DET", "B-NP"), "cat": ("NOUN", "I-NP"), "ran": ("VERB", "B-VP"), "-LRB-": ("PUNCT", "O"), "''": ("PUNCT", "O")}
Run = Callable[..., subprocess.CompletedProcess[str]]


def made_up(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[str(w) for w in rng.choice(list(WORDS), size=int(rng.integers(1, 7)))] for _ in range(n)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out as the annotated sets are."""
    folder = tmp_path_factory.mktemp("eval")
    files: dict[str, str] = {}
    for side, n in (("train", 40), ("test", 12)):
        sentences = made_up(n, n)
        files[probe.UD.format(side)] = "".join(
            "".join(f"{j}\t{w}\t_\t{WORDS[w][0]}" + "\t_" * 6 + "\n" for j, w in enumerate(words, 1)) + "\n"
            for words in sentences
        )
        files[probe.CHUNKS.format(side)] = "".join(
            "".join(f"{w}\t{WORDS[w][0]}\t{WORDS[w][1]}\n" for w in words) + "\n" for words in sentences
        )
    for name in probe.SENSE.values():
        rows = [f"i{i}\t{'abc'[i % 3]}\t0\t{['the', 'cat', 'ran'][i % 3]} -LRB- {i}\tX X X" for i in range(24)]
        files[name] = "# instance\tsense\thead_index\ttokens\tpos\n" + "\n".join(rows) + "\n"
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(lzma.compress(text.encode()))
    return folder


@pytest.fixture(scope="module")
def example(data: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, repo_dir: Path) -> Run:
    """``example(name, *options)``: a script of examples/ on two stores, in a process of its own."""
    work = tmp_path_factory.mktemp("stores")
    given = []
    for side in ("train", "test"):
        labels = data / probe.UD.format(side)
        assert main(["embed", str(labels), "--output", str(work / side), "--model", str(tiny_model), "--quiet"]) == 0
        given += [f"--{side}={work / side}", f"--{side}-labels={labels}"]

    def run(name: str, *options: str, files: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(repo_dir / "examples" / name), *(given if files else []), *options]
        env = {"PYTHONPATH": str(repo_dir), "OMP_NUM_THREADS": "1", "PATH": ""}
        return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=200)

    return run


@pytest.mark.slow
def test_tagger(example: Run, tmp_path: Path) -> None:
    done = example("tagger.py", "--epochs", "3", "--save", str(tmp_path / "mix.th"))
    assert done.returncode == 0, done.stderr
    assert "test accuracy " in done.stdout
    (learned,) = read_weight_sets(str(tmp_path / "mix.th"))
    printed = [float(number) for number in done.stdout.split("s ")[-1].split("gamma")[0].split()]
    assert printed == pytest.approx(learned.s, abs=6e-4)


@pytest.mark.slow
def test_two_representations(example: Run) -> None:
    done = example("two_representations.py", "--epochs", "2", "--projection", "4")
    assert done.returncode == 0, done.stderr
    assert "test accuracy " in done.stdout
    assert "ELMo at the input: s " in done.stdout
    assert "ELMo at the output: s " in done.stdout


@pytest.mark.slow
def test_without_files_an_example_says_what_to_put_where(example: Run, data: Path) -> None:
    done = example("tagger.py", "--train-labels", "nowhere.conllu", files=False)
    assert done.returncode == 1
    assert "no labels at nowhere.conllu: give a CoNLL-U file" in done.stderr
    labels = data / probe.UD.format("train")
    done = example("two_representations.py", "--train", "nowhere", "--train-labels", str(labels), files=False)
    assert done.returncode == 1
    assert f"elmo-store embed {labels} --output nowhere" in done.stderr


@pytest.mark.slow
def test_bench_from_model_and_data(data: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--model",
        str(tiny_model),
        "--eval-dir",
        str(data),
        "--work",
        str(tmp_path / "work"),
        "--seeds",
        "2",
        "--epochs",
        "1",
    ]
    assert probe.main([*given, "--json", str(tmp_path / "all.json")]) == 0
    printed = capsys.readouterr().out
    assert "| feature | UD-EWT UPOS, accuracy | UD-EWT XPOS, accuracy |" in printed
    assert "| most frequent sense | – | – | – | – | – | " in printed
    assert printed.count("learned mix\n") == printed.count("differences in points") == 5
    # Each word has one chunk label in this language, and each part of speech but one: the tags alone get most of it.
    (chunk_baseline,) = [line for line in printed.splitlines() if line.startswith("| most frequent of column 2 |")]
    assert [cell.strip() for cell in chunk_baseline.split("|")[2:6]] == ["–", "–", "–", "100.00"]
    assert [task["task"] for task in json.loads((tmp_path / "all.json").read_text())] == [
        "UD-EWT UPOS", "UD-EWT XPOS", "UD-EWT relation", "CoNLL-2000 chunks", "CoNLL-2000 POS", "senseval line",
        "senseval interest",
    ]  # fmt: skip
    lines = (tmp_path / "work/lines/conll2000-test.lines").read_text().split()
    assert not {"-LRB-", "''"} & set(lines)
    assert {"(", '"'} <= set(lines)
    assert probe.main([*given, "--tasks", "senses"]) == 0
    assert "complete already" in capsys.readouterr().err
    trained, control = BiLMWeights.load(str(tiny_model)), tmp_path / "work" / "untrained.safetensors"
    assert probe.main([*given, "--tasks", "senses", "--untrained"]) == 0
    untrained = BiLMWeights.load(str(control))
    assert f"model untrained, of the shape of tiny ({untrained.fingerprint})" in capsys.readouterr().out
    # Training's own first weights, not the generated model's.
    assert untrained.fingerprint == BiLMWeights(trained.options, initial_parameters(trained.options, seed=1)).fingerprint


def test_bench_without_data_or_model(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--eval-dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "missing are" in said
    assert "conll2000/train.tsv.xz" in said
    assert probe.main(["--eval-dir", str(data), "--model", str(tmp_path / "nowhere")]) == 3
    assert "the model can't be loaded" in capsys.readouterr().err
    assert probe.main(["--tasks", "everything"]) == 2
    assert "no task everything" in capsys.readouterr().err


def test_escapes() -> None:
    assert [probe.unescaped(t) for t in ("-LRB-", "-rrb-", "``", "''", "'", "-", "a")] == ["(", ")", '"', '"', "'", "-", "a"]
