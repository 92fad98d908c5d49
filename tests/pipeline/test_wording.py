"""Each layer speaks its own words: the library of arguments, the command line of options, and of one exit code."""

import ast
import json
import re
from pathlib import Path

import pytest

import elmo_store
from elmo_store.errors import StoreError, StoreIncompleteError
from elmo_store.exports import export
from pipeline.cli.exit_codes import Exit
from pipeline.cli.wording import as_options
from pipeline.main import main
from tests.pipeline.conftest import Made

LIBRARY = ("elmo_store", "model")
FOR_COMMANDS = ("model/training",)  # nothing but `elmo-store train` reaches it
OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"`elmo-store [^`]*`")
CSS = "elmo_store/figures/plots.py"


def test_arguments_in_backticks_become_options_of_the_command() -> None:
    options = {"--overwrite", "--dtype", "--layer-norm", "--model"}
    for message, shown in (
        ("add `overwrite=True` to replace it", "add --overwrite to replace it"),
        ("pass `dtype='float32'`", "pass --dtype float32"),
        ("leave `layer_norm` out", "leave --layer-norm out"),
        ("or `model=FOLDER`, a folder", "or --model FOLDER, a folder"),
        ("`layers='top'` of another command", "`layers='top'` of another command"),
        ("run `elmo-store info --overwrite`", "run `elmo-store info --overwrite`"),
        ("a file called `dtype", "a file called `dtype"),
    ):
        assert as_options(message, options) == shown
    assert as_options("mix to `dtype='float32'`") == "mix to --dtype float32"  # by a job


@pytest.mark.slow
def test_an_unfinished_store_ends_every_command_that_reads_it_alike(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"s": [0.2, 0.3, 0.5], "gamma": 1.0}))
    store, out = str(made.interrupted), ["--output", str(tmp_path / "out")]
    for command in (
        ["mix", store, "--weights", str(weights), *out],
        ["mix", store, "--weights", str(weights), "--pool", "mean", *out],
        ["convert", store, "--dtype", "float32", *out],
        ["export", store, "--format", "safetensors", *out],
        ["verify", store],
        ["verify", store, "--quick"],
        ["report", store],
        ["explore", store],
    ):
        capsys.readouterr()
        assert main(command) == Exit.INCOMPLETE, command
        said = capsys.readouterr().err
        assert said.startswith(f"elmo-store {command[0]}: the store at {store} is not complete (")
        assert said.endswith("run the command that started it again to continue it\n")
        assert "=True" not in said
    assert not (tmp_path / "out").exists()


def test_python_is_told_how_to_open_an_unfinished_store(made: Made) -> None:
    with pytest.raises(StoreIncompleteError) as refused:
        elmo_store.open(made.interrupted)
    assert "incomplete_ok" not in str(refused.value)
    assert "incomplete_ok=True" in refused.value.__notes__[0]
    unfinished = elmo_store.open(made.interrupted, incomplete_ok=True)
    with pytest.raises(StoreIncompleteError, match="rerun its job"):
        export(unfinished, made.interrupted.with_name("out"), "safetensors")


def test_an_export_speaks_of_arguments_in_python_and_of_options_in_a_command(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.npz")
    with pytest.raises(StoreError, match=r"pass `layers='top'` or `layers='average'`"):
        export(elmo_store.open(made.zarr), out, "npz", layers="all")
    command = ["export", str(made.zarr), "--format", "npz", "--layers", "all", "--output", out]
    assert main(command) == Exit.BAD_USAGE
    assert "pass --layers top or --layers average" in capsys.readouterr().err


@pytest.mark.parametrize("package", LIBRARY)
def test_no_message_of_the_library_names_an_option(package: str, repo_dir: Path) -> None:
    found = []
    for path in sorted((repo_dir / package).rglob("*.py")):
        name = str(path.relative_to(repo_dir))
        if name == CSS or name.startswith(FOR_COMMANDS):
            continue
        tree = ast.parse(path.read_bytes())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
            and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if id(node) not in docstrings and OPTION.search(COMMAND.sub("", node.value)):
                found.append(f"{name}:{node.lineno}: {node.value}")
    assert found == []
