"""Nonsense ends in one line that names it, with a documented exit code: never in a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmo_store import __main__ as entry
from elmo_store.format.layout import MANIFEST
from pipeline import main as command_line
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import Made

ON_A_STORE = {
    "info": "info {}",
    "watch": "watch --once {}",
    "verify": "verify {}",
    "report": "report {}",
    "explore": "explore {}",
    "mix": "mix {} --weights w.json --output out",
    "mix --pool": "mix {} --weights w.json --output out --pool mean",
    "convert": "convert {} --output out",
    "export": "export {} --format npz --output out.npz",
    "collect": "collect out {}",
    "remove": "remove {} --ids ids.txt",
    "compact": "compact {}",
}


@pytest.mark.parametrize("command", ON_A_STORE)
def test_what_is_no_store_is_named_in_a_line(
    command: str,
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("w.json", '{"w": [1, 2, 3], "gamma": 1}'),
        ("ids.txt", "a\n"),
        ("file", ""),
    ):
        Path(name).write_text(text, encoding="utf-8")
    Path("empty").mkdir()
    for name, change in (("newer", {"format_version": 2}), ("damaged", {"channels": 7})):
        Path(name).mkdir()
        manifest = json.loads((made.zarr / MANIFEST).read_text(encoding="utf-8"))
        Path(name, MANIFEST).write_text(json.dumps(manifest | change), encoding="utf-8")
    before = sorted(Path().iterdir())
    remedies = {"missing": "is the location right?", "file": "", "empty": "is the location right?"}
    damage = (
        [] if command == "watch" else ["damaged"]
    )  # it tells of a job, whatever became of its store
    for name in (*remedies, "newer", *damage):
        code = main(ON_A_STORE[command].replace("{}", name).split())
        said = capsys.readouterr()
        assert code == (
            Exit.DAMAGED if (command, name) == ("verify", "damaged") else Exit.BAD_LOCATION
        ), name
        (line,) = [
            line for line in (said.out + said.err).splitlines() if not line.startswith("loading")
        ]
        assert name in line
        assert remedies.get(name, "") in line
        if name == "newer" and command not in ("remove", "compact"):  # to which it is no collection
            assert "format version 2, this elmo-store reads format version 1: upgrade" in line
    assert sorted(Path().iterdir()) == before


WRITTEN = {
    "export": ("export {store} --format npz --output {}", True),
    "report": ("report {store} --output {}", True),
    "embed": ("embed text --output {}", False),
    "embed --into": ("embed text --into {}", False),
    "mix": ("mix {store} --weights w.json --output {}", False),
    "mix --pool": ("mix {store} --weights w.json --output {} --pool mean", False),
    "convert": ("convert {store} --output {}", False),
    "export to a folder": ("export {store} --format safetensors --output {}", False),
    "collect": ("collect {} {store}", False),
    "models convert": ("models convert random-small {}", False),
    "train": ("train text.txt --options default --output {}", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITTEN)
def test_a_file_where_a_folder_goes_and_the_reverse(
    command: str,
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("kept", encoding="utf-8")
    for name in ("text", "text.txt"):
        Path(name).write_text("a bank of the river\n" * 500, encoding="utf-8")
    Path("w.json").write_text('{"w": [1, 2, 3], "gamma": 1}', encoding="utf-8")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    arguments, is_file = WRITTEN[command]
    for place in ("folder" if is_file else "file", "file/x"):
        assert main(arguments.format(place, store=made.zarr).split()) == Exit.BAD_LOCATION
        (line,) = [
            line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading")
        ]
        assert place in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert Path("file").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("arguments", [["--help"], ["info"]])
def test_a_reader_that_went_away_is_no_failure_and_a_full_disk_is_one(
    arguments: list[str], made: Made
) -> None:
    command = [
        sys.executable,
        "-m",
        "elmo_store",
        *arguments,
        *([str(made.zarr)] if arguments == ["info"] else []),
    ]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    ends = []
    with os.fdopen(writing, "wb") as closed, open("/dev/full", "wb") as full:
        for stdout in (closed, full):
            done = subprocess.run(
                command, stdout=stdout, stderr=subprocess.PIPE, env=buffered, text=True, timeout=60, check=False
            )  # fmt: skip
            ends.append((done.returncode, done.stderr))
    assert ends[0] == (Exit.COMPLETE, "")
    assert ends[1][0] == Exit.BAD_LOCATION
    assert "No space left on device" in ends[1][1]
    assert ends[1][1].count("\n") == 1


def test_ctrl_c_while_a_command_is_loaded_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command_line, "build_parser", interrupted)
        assert main(["embed", "--help"]) == Exit.INCOMPLETE
    assert capsys.readouterr().err == "\nstopped by Ctrl-C; rerun the same command to resume\n"
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(entry.importlib, "import_module", interrupted)
    assert entry.main() == Exit.INCOMPLETE
    assert capsys.readouterr().err == "\nstopped by Ctrl-C\n"
