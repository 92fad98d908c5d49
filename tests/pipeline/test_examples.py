"""The examples, on a small generated language: the scores they print, the mixes they learn, and what they refuse."""

import importlib
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from elmo_store.mixing.weights import read_weight_sets
from pipeline.main import main

TAGS = {
    "the": ("DET", "B-NP"),
    "cat": ("NOUN", "I-NP"),
    "ran": ("VERB", "B-VP"),
    ".": ("PUNCT", "O"),
}
SIDES = {"train": 40, "test": 12}
Stores = list[str]


@pytest.fixture(scope="module")
def stores(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """The options that name a training and a test store, both with the fields upos and chunk."""
    folder = tmp_path_factory.mktemp("tagged")
    for side, n in SIDES.items():
        random = np.random.default_rng(n)
        sentences = [
            random.choice(list(TAGS), size=int(random.integers(1, 7))).tolist() for _ in range(n)
        ]
        lines = (
            "".join("\t".join((word, *TAGS[word])) + "\n" for word in words) + "\n"
            for words in sentences
        )
        (folder / f"{side}.conll").write_text("".join(lines), encoding="utf-8")
        fields = ["--input-format", "conll", "--keep-fields", "2=upos,3=chunk"]
        places = [
            str(folder / f"{side}.conll"),
            "--output",
            str(folder / side),
            "--model",
            str(tiny_model),
        ]
        assert main(["embed", *places, *fields, "--quiet"]) == 0
    return [f"--train={folder / 'train'}", f"--test={folder / 'test'}", "--epochs=2"]


@pytest.fixture
def example(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The examples' modules by name."""
    monkeypatch.syspath_prepend(str(repo_dir / "examples"))
    return {name: importlib.import_module(name) for name in ("tagger", "probe_layers")}


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *options])
    threads = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)


def test_the_tagger_saves_the_mix_that_it_prints(
    example: dict[str, ModuleType], stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run(example["tagger"], monkeypatch, *stores, "--save", str(tmp_path / "mix.th"))
    printed = capsys.readouterr().out
    assert 0 < float(re.search(r"test accuracy ([\d.]+)", printed)[1]) <= 100  # type: ignore[index]
    (learned,) = read_weight_sets(str(tmp_path / "mix.th"))
    *s, gamma = map(float, re.findall(r"\d\.\d{3}", printed.splitlines()[-1]))
    assert [*s, gamma] == pytest.approx([*learned.s, learned.gamma], abs=6e-4)
    assert len({*s}) == 3  # it learned


@pytest.mark.slow
def test_every_feature_is_probed_and_drawn(
    example: dict[str, ModuleType], stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed: pip install '.[plot]'")
    probe, picture = example["probe_layers"], tmp_path / "probe.svg"
    names = list(probe.features(3))
    given = [*stores, "--label", "chunk", "--seeds", "2"]
    run(probe, monkeypatch, *given, "--features", ",".join(names), "--plot", str(picture))
    printed = capsys.readouterr().out
    assert re.findall(r"^\| (.+?) \| [\d.]+(?: ± [\d.]+)? \|$", printed, re.MULTILINE) == [
        "most frequent",
        *names,
    ]
    assert "| most frequent | 100.00 |" in printed  # each word has one label in this language
    assert sum(
        map(float, re.findall(r"^s of .*: ([\d.]+) ±", printed, re.MULTILINE))
    ) == pytest.approx(1, abs=2e-3)
    assert "learned s of the mix" in picture.read_text(
        encoding="utf-8"
    )  # Matplotlib leaves each text as a comment


def test_a_probe_learns_what_its_feature_says_and_no_more(example: dict[str, ModuleType]) -> None:
    """A single layer sees that layer alone; γ is learned for every mix, w where it is not given; sentences don't see padding."""
    probe, n_layers, p = example["probe_layers"], 3, 4
    states = torch.randn(2, 5, 2 * n_layers - 1, p)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    for name, feature in probe.features(n_layers).items():
        torch.manual_seed(0)
        model = probe.Probe(n_layers, p, 2, feature).eval()
        learned = {key for key, weight in model.named_parameters() if weight.requires_grad}
        assert ("mixes.input.gamma" in learned) == ("mix" in feature.inputs)
        assert ("mixes.input.scalar_parameters.0" in learned) == (
            "mix" in feature.inputs and feature.w is None
        )
        scores = model({"states": states, "mask": mask})
        assert scores.shape == (2, 5, 2)
        shorter = model({"states": states[1:, :3], "mask": mask[1:, :3]})
        torch.testing.assert_close(scores[1:, :3], shorter)
        if name in ("x", "layer 1", "layer 2"):
            j = ["x", "layer 1", "layer 2"].index(name)
            others = states.clone()
            others[:, :, [k for k in range(2 * n_layers - 1) if (k + 1) // 2 != j]] += 1
            torch.testing.assert_close(model({"states": others, "mask": mask}), scores)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        *itertools.product(("tagger", "probe_layers"), (["--train=nowhere"],), ("nowhere",)),
        ("tagger", ["--label=lemma"], "lemma"),
        (
            "tagger",
            ["--label=id"],
            "the field id of sentence 0 is '.*', not a label for each of its rows",
        ),
        (
            "probe_layers",
            ["--label=upos", "--features=top"],
            "no top; there are x, layer 1, layer 2, average, mix",
        ),
    ],
)
def test_what_an_example_can_not_use_is_named_in_a_line(
    name: str,
    change: list[str],
    said: str,
    example: dict[str, ModuleType],
    stores: Stores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match=said) as ended:
        run(example[name], monkeypatch, *stores, *change)
    assert "\n" not in str(ended.value)
