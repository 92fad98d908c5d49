"""`elmo_store.embed`: a store's bytes without a job and without Beam."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.own_packages import OUR_FOLDER
from model.files.registry import random_weights
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import TINY, Command
from transforms.inputs.records import ReadSettings, Reject
from transforms.readers.fields import RawRecord, field_records
from transforms.text.tokenizers import get


@pytest.mark.parametrize(("dtype", "start"), [("float16", "warm"), ("float32", "zero")])
def test_the_bytes_are_those_of_a_store(
    embed: Command, tiny_model: Path, tmp_path: Path, dtype: Any, start: Any
) -> None:
    assert embed(tmp_path / "store", "--dtype", dtype, "--start-state", start) == 0
    store = elmo_store.open(tmp_path / "store")
    there = [sentence for sentence in store if sentence.tokens]
    found = elmo_store.embed(
        [s.tokens for s in there], str(tiny_model), dtype=dtype, start_state=start
    )
    assert len(found) == len(there) > 40
    for mine, stored in zip(found, there, strict=True):
        assert mine.tokens == stored.tokens
        assert mine.read().dtype == dtype
        assert mine.read().tobytes() == stored.read().tobytes()
        assert np.array_equal(mine.layers(), stored.layers())
    assert np.array_equal(found[0]["fwd1"], there[0]["fwd1"])


def test_strings_are_tokenised_lists_are_not(tiny_model: Path) -> None:
    a, b, empty = elmo_store.embed(["I do n't know .", ["as it", "is"], ""], str(tiny_model))
    assert a.tokens == ("I", "do", "n't", "know", ".")
    assert b.tokens == ("as it", "is")
    assert empty.read().shape == (0, 5, 16)
    assert elmo_store.embed([], str(tiny_model)) == []
    assert elmo_store.embed(["a  b"], str(tiny_model), tokenizer="whitespace")[0].tokens == (
        "a",
        "b",
    )


def test_what_makes_no_sense_is_named(tiny_model: Path) -> None:
    with pytest.raises(TypeError, match="a list of sentences"):
        elmo_store.embed("one string", str(tiny_model))
    with pytest.raises(TypeError, match="3 is not a token"):
        elmo_store.embed([["a", 3]], str(tiny_model))  # type: ignore[list-item]
    with pytest.raises(KeyError, match="no state 'fwd9'"):
        elmo_store.embed(["a"], str(tiny_model))[0]["fwd9"]
    with pytest.raises(ValueError, match="dtype is 'int8'; known are float16 and float32"):
        elmo_store.embed(["a"], str(tiny_model), dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_state is 'hot'"):
        elmo_store.embed(["a"], str(tiny_model), start_state="hot")  # type: ignore[arg-type]


@pytest.mark.parametrize("sentence", ["Don't go.", ["Do", "n't"]])
def test_a_tokenizer_that_does_not_exist_is_refused(tiny_model: Path, sentence: Any) -> None:
    with pytest.raises(
        ValueError, match="tokenizer is 'moses'; known are ptb, whitespace, unicode"
    ):
        elmo_store.embed([sentence], str(tiny_model), tokenizer="moses")


REJECTED: dict[str, Any] = {
    "is an empty string": ["a", ""],
    "has a NUL character": ["a\0"],
    "has half a surrogate pair (U+D800)": ["\ud800"],
    "has half a surrogate pair (U+DFFF)": "a \udfff",
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_sentence_that_a_store_rejects_is_refused(tiny_model: Path, reason: str) -> None:
    record = RawRecord(0, {"text": REJECTED[reason]})
    [reject] = field_records(record, ReadSettings(), get("ptb", "jsonl"))
    assert isinstance(reject, Reject)
    assert reason in reject.reason
    with pytest.raises(ValueError, match=re.escape(reason)):
        elmo_store.embed([REJECTED[reason]], str(tiny_model))


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose word vectors float16 can't hold."""
    weights = random_weights(TINY)
    weights.tensors["proj.bias"][:] = 1e6
    path = tmp_path_factory.mktemp("model") / "large.safetensors"
    weights.save_safetensors(path)
    return path


def test_states_that_float16_can_t_hold_are_refused(large_model: Path) -> None:
    sentences = [[], ["the", "bank"]]
    with pytest.raises(ValueError, match=r"sentence 1 \('the bank'\) .* float16 can't hold"):
        elmo_store.embed(sentences, str(large_model))
    _, whole = elmo_store.embed(sentences, str(large_model), dtype="float32")
    assert np.isfinite(whole.read()).all()


@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_job_stops_at_states_that_float16_can_t_hold(
    large_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (tmp_path / "in.txt").write_text("the bank\n")
    command = [
        "embed",
        str(tmp_path / "in.txt"),
        "--input-format",
        "lines",
        "--model",
        str(large_model),
    ]
    code = main([*command, "--output", str(tmp_path / "store"), "--store", form])
    assert code == Exit.INCOMPLETE
    assert "row 0 (sentence 0, token 'the') holds a number that float16" in capsys.readouterr().err
    again = main([*command, "--output", str(tmp_path / "whole"), "--dtype", "float32"])
    assert again == Exit.COMPLETE


@pytest.mark.slow
def test_it_needs_no_beam_and_no_safe_path(tiny_model: Path, tmp_path: Path) -> None:
    """A process of the user's own, with a module of a common name in its folder, which it has not imported."""
    (tmp_path / "model.py").write_text(
        "raise SystemExit('a stray module was imported')\n", encoding="utf-8"
    )
    code = f"""
import sys
import elmo_store
print(elmo_store.embed(["Hello there ."], {str(tiny_model)!r})[0].read().shape, "apache_beam" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), OUR_FOLDER])}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "(3, 5, 16) False\n", done.stderr


OWN_MODULES = {
    "a module": ("model.py", "model"),
    "a package": ("transforms/__init__.py", "transforms"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_MODULES)
def test_a_module_of_the_user_s_under_our_name_is_explained(tmp_path: Path, kind: str) -> None:
    file, name = OWN_MODULES[kind]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("theirs = True\n", encoding="utf-8")
    code = f"""
import {name}
import elmo_store
try:
    elmo_store.embed(["a"])
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), OUR_FOLDER])}
    environment.pop("PYTHONSAFEPATH", None)
    process: dict[str, Any] = {"cwd": tmp_path, "env": environment, "text": True, "timeout": 60}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, **process)

    assert str((tmp_path / file).parent) in done.stdout, done.stderr
    assert f"as {name}, a name that elmo-store takes for a package of its own" in done.stdout
    assert "elmo-store embed" in done.stdout
    # What the message offers works beside the same module.
    command = [sys.executable, "-m", "elmo_store", "embed", "--help"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, **process).returncode == 0


def test_a_backport_beside_our_packages_is_not_taken_for_the_standard_library(
    tmp_path: Path,
) -> None:
    """As in site-packages; the path of the user's process is afterwards what it was."""
    for package in ("elmo_store", "model", "transforms", "pipeline"):
        (tmp_path / package).symlink_to(Path(OUR_FOLDER) / package)
    (tmp_path / "colorsys.py").write_text(
        "raise SystemExit('a backport was imported')\n", encoding="utf-8"
    )
    code = """
import sys
import elmo_store.own_packages as own
own.OUR_FOLDER = sys.argv[1]
sys.modules.pop("colorsys", None)
before = list(sys.path)
print(own.import_ours("colorsys").__file__ == sys.argv[1] + "/colorsys.py", sys.path == before)
"""
    environment = {**os.environ, "PYTHONPATH": OUR_FOLDER}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "False True\n", done.stderr
