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
    command: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("w.json", '{"w": [1, 2, 3]}'), ("ids.txt", "a\n"), ("file", "")):
        Path(name).write_text(text, encoding="utf-8")
    Path("empty").mkdir()
    for name, change in (("newer", {"format_version": 2}), ("damaged", {"channels": 7})):
        Path(name).mkdir()
        manifest = json.loads((made.zarr / MANIFEST).read_text(encoding="utf-8"))
        Path(name, MANIFEST).write_text(json.dumps(manifest | change), encoding="utf-8")
    before = sorted(Path().iterdir())
    remedies = {"missing": "check the name", "file": "name the store's folder", "empty": "is the location right?"}
    damage = [] if command == "watch" else ["damaged"]  # it tells of a job, whatever became of its store
    for name in (*remedies, "newer", *damage):
        code = main(ON_A_STORE[command].replace("{}", name).split())
        said = capsys.readouterr()
        assert code == (Exit.DAMAGED if (command, name) == ("verify", "damaged") else Exit.BAD_LOCATION), name
        (line,) = [line for line in (said.out + said.err).splitlines() if not line.startswith("loading")]
        assert name in line
        assert remedies.get(name, "") in line
        if name == "newer" and command not in ("remove", "compact"):  # to which it is no collection
            assert "format version 2, this elmo-store reads format version 1: upgrade" in line
    assert sorted(Path().iterdir()) == before


WRITTEN = {
    "export": ("export store --format npz --output {}", True),
    "report": ("report store --output {}", True),
    "embed": ("embed file --output {}", False),
    "embed --into": ("embed file --into {}", False),
    "mix": ("mix . --weights file --output {}", False),
    "mix --pool": ("mix . --weights file --output {} --pool mean", False),
    "convert": ("convert . --output {}", False),
    "export to a folder": ("export store --format safetensors --output {}", False),
    "collect": ("collect {} .", False),
    "models convert": ("models convert random-small {}", False),
    "train": ("train file --options default --output {}", False),
}


@pytest.mark.parametrize("command", WRITTEN)
def test_a_file_where_a_folder_goes_and_the_reverse(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("store").mkdir()
    Path("file").touch()
    arguments, is_file = WRITTEN[command]
    places = {"folder": "is a folder: name a file"} if is_file else {"file": "is a file: name a folder"}
    for place, why in {**places, "file/x": f"lies below {tmp_path / 'file'}, which is a file: name a f"}.items():
        assert main(arguments.format(place).split()) == Exit.BAD_LOCATION
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "store"]


@pytest.mark.parametrize("arguments", [["--help"], ["info"]])
def test_a_reader_that_went_away_is_no_failure_and_a_full_disk_is_one(arguments: list[str], made: Made) -> None:
    command = [sys.executable, "-m", "elmo_store", *arguments, *([str(made.zarr)] if arguments == ["info"] else [])]
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


def test_ctrl_c_while_a_command_is_loaded_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
