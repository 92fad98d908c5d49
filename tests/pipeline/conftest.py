"""A model of 16 dimensions, a small corpus, and the command in this process."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from benchmarks.shared.texts import SHAPES
from elmo_store import Store
from model.files.registry import random_weights
from pipeline.cli.exit_codes import Exit
from pipeline.main import main

TINY = SHAPES["tiny"]

Command = Callable[..., int]


@pytest.fixture(scope="session", autouse=True)
def options_are_parsed_once() -> Iterator[None]:
    """Beam builds a parser and parses its command line for each of some 600 looks at a job's options: a fifth of a small job."""
    from apache_beam.options.pipeline_options import PipelineOptions

    look, views = PipelineOptions.view_as, dict[Any, Any]()

    def view_as(self: Any, kind: Any) -> Any:
        """Views of the same options share their values already; `views` keeps these alive, so that no id comes twice."""
        key = id(self._all_options), kind
        if key not in views:
            views[key] = look(self, kind)
        return views[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineOptions, "view_as", view_as)
        yield


@pytest.fixture(scope="session", autouse=True)
def packages_are_not_listed() -> Iterator[None]:
    """Beam lists the packages of this environment, by pip in a process, at each look at what a cluster's workers are."""
    from apache_beam.runners.portability.stager import Stager

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stager, "_create_stage_submission_env_dependencies", lambda folder: [])
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A safetensors file with a random biLM that takes no time."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    random_weights(TINY).save_safetensors(path)
    return path


def zero_stores(sentences: Sequence[Sequence[str]], model: Path, folder: Path) -> dict[bool, str]:
    """Stores of the sentences in float32, from zeros; by whether they have boundaries."""
    (folder / "in.txt").write_text(
        "".join(" ".join(tokens) + "\n" for tokens in sentences), encoding="utf-8"
    )
    command = [
        "embed",
        str(folder / "in.txt"),
        "--input-format",
        "lines",
        "--model",
        str(model),
        "--quiet",
        "--shard-rows",
        "64",
    ]
    for out, options in (("plain", []), ("boundaries", ["--boundaries"])):
        settings = [
            "--output",
            str(folder / out),
            "--dtype",
            "float32",
            "--start-state",
            "zero",
            *options,
        ]
        assert main([*command, *settings]) == 0
    return {False: str(folder / "plain"), True: str(folder / "boundaries")}


def write_corpus(folder: Path) -> Path:
    """Two files of sentences, a token list a line: 60 lines, blank ones among them."""
    folder.mkdir()
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        ",",
        "naïve",
        "dogs",
        "ran",
        "東京",
        "away",
        "from",
        "it",
        "quickly",
        ".",
    ]
    for name, n in (("a.txt", 40), ("b.txt", 20)):
        lines = [
            ""
            if i % 11 == 7
            else " ".join(words[(i * 7 + j * j) % len(words)] for j in range(1 + (i * 5) % 13))
            for i in range(n)
        ]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The test's own corpus (`write_corpus`)."""
    return write_corpus(tmp_path / "corpus")


def embed_command(corpus: Path, tiny_model: Path) -> Command:
    """``embed(output, *options, inputs=…)``: run the job in this process; returns the exit code."""

    def run(output: Path | str, *options: str, inputs: list[str] | None = None) -> int:
        arguments = [
            "embed",
            *(inputs or [str(corpus)]),
            "--output",
            str(output),
            "--model",
            str(tiny_model),
        ]
        shape = ["--input-format", "lines", "--shard-rows", "64"]
        given = {option for option in options if option.startswith("--")}
        defaults = shape if not {"--input-format", "--shard-rows"} & given else []
        try:
            return main([*arguments, *defaults, *options])
        except SystemExit as end:  # argparse
            return int(end.code or 0)

    return run


@pytest.fixture
def embed(corpus: Path, tiny_model: Path) -> Command:
    """`embed_command` of the test's own corpus."""
    return embed_command(corpus, tiny_model)


def store_of_records(folder: Path, records: Sequence[object], model: Path, *options: str) -> Store:
    """A store of JSON lines with all their fields."""
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [
        "embed",
        str(folder / "a.jsonl"),
        "--output",
        str(folder / "store"),
        "--model",
        str(model),
        "--quiet",
    ]
    assert main([*command, "--keep-fields", "all", *options]) == Exit.COMPLETE
    return elmo_store.open(folder / "store")


@dataclass(frozen=True)
class Made:
    """Stores of one corpus, which stay as they are: complete ones in both forms and in Zarr, and one as before its last stage."""

    embed: Command
    both: Path
    zarr: Path
    interrupted: Path


@pytest.fixture(scope="session")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    embed = embed_command(write_corpus(folder / "corpus"), tiny_model)
    made = Made(embed, *(folder / name for name in ("both", "zarr", "interrupted")))
    assert embed(made.both, "--store", "both") == Exit.COMPLETE
    assert embed(made.zarr) == Exit.COMPLETE
    with pytest.MonkeyPatch.context() as patch:
        interrupt(embed, made.interrupted, patch)
    return made


def interrupt(embed: Command, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store whose job did everything but the last stage."""

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr("transforms.stages.finish.finish_job", stop)
        assert embed(out) == Exit.INCOMPLETE
