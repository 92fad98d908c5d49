"""What comes from data steers no terminal: tokens, ids, names, reasons and errors are shown with escapes."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.root import Root
from model.files.registry import random_weights
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import Escaping, drawable, in_line, visible
from pipeline.main import main
from pipeline.progress.bars import Screen
from pipeline.progress.snapshot import Snapshot
from tests.pipeline.conftest import TINY

EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\x7f\u202e"
NAME = "evil\x1b[31m\u202e.lines"


def unsteered(text: str) -> bool:
    return not any(
        (ord(sign) < 32 and sign not in "\n\t") or 0x7F <= ord(sign) < 0xA0 or sign == "\u202e"
        for sign in text
    )


@given(st.text())
def test_nothing_that_steers_is_left_and_the_rest_stays(text: str) -> None:
    assert unsteered(visible(text))
    assert visible(visible(text)) == visible(text)
    visible(text).encode()
    assert json.loads(json.dumps(visible(text))) == visible(text)
    assert not {"\n", "\t", "\u2028"} & set(in_line(text))
    plain = "".join(sign for sign in text if sign.isprintable())
    assert visible(plain) == plain


@given(st.text())
def test_json_stays_the_same_json(text: str) -> None:
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text


def test_a_stream_shows_and_whoever_draws_gets_the_stream_itself() -> None:
    below = io.StringIO()
    stream = cast(TextIO, Escaping(below))
    print(EVIL, file=stream)
    stream.writelines(["a\x1b", "b"])
    assert (
        below.getvalue()
        == "\\u001b[2J\\u001b]0;owned\\u0007\\u000d\\u009b31m\\u007f\\u202e\na\\u001bb"
    )
    assert drawable(stream) is below
    screen = io.StringIO()
    Screen(cast(TextIO, Escaping(screen))).show(Snapshot("failed", problem=EVIL))
    assert unsteered(screen.getvalue())


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    random_weights(TINY).save_safetensors(tmp_path / "tiny.safetensors")
    return str(tmp_path / "tiny.safetensors")


def test_commands_show_tokens_ids_names_and_errors_escaped(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / NAME).write_bytes(f"a {EVIL} b\n".encode() + b"\xff\n")
    record = {"id": f"id{EVIL}\nelmo-store: all is well", "text": [f"tok{EVIL}", "b\nc"]}
    (folder / "b.jsonl").write_text(json.dumps(record) + "\n" + json.dumps({"text": [3]}) + "\n")
    seen = []

    def ran(*arguments: str, code: Exit = Exit.COMPLETE) -> str:
        assert main(list(arguments)) == code
        out, err = capsys.readouterr()
        seen.extend([out, err])
        return str(out + err)

    shown = ran("embed", str(folder), "--id-field", "id", "--dry-run")
    assert "\\u001b[2J" in shown
    assert "\nelmo-store: all is well" not in shown
    assert [line.count("\t") for line in shown.splitlines() if "\t" in line] == [1] * 4
    out = str(tmp_path / f"out{EVIL}")
    ran(
        "embed",
        str(folder),
        "--id-field",
        "id",
        "--model",
        tiny,
        "--output",
        out,
        "--max-reject-rate",
        "0",
        code=Exit.BAD_LOCATION,
    )
    ran("embed", str(folder), "--id-field", "id", "--model", tiny, "--output", out, "--quiet")
    ran("info", out)
    assert json.loads(ran("info", out, "--json"))["url"] == out
    (Path(out) / "states.zarr" / "zarr.json").write_text("{}")
    assert "zarr.json" in ran("verify", out, "--quiet", code=Exit.DAMAGED)
    ran("info", str(tmp_path / NAME), code=Exit.BAD_LOCATION)
    ran("embed", str(folder / "no") + EVIL, "--output", out, code=Exit.BAD_LOCATION)
    Root(out).put(
        "elmo_store.json", b'{"format_version": "' + json.dumps(EVIL).encode()[1:-1] + b'"}'
    )
    ran("info", out, code=Exit.BAD_LOCATION)
    assert all(unsteered(text) for text in seen)


def test_a_terminal_gets_nothing_but_what_the_command_draws_and_a_traceback_is_shown_too(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pipeline import main as cli\n"
        "def fails(*_): raise RuntimeError('trouble \\x1b[31m')\n"
        "cli._command = fails\n"
        "cli.main()"
    )
    ours, theirs = pty.openpty()
    process = subprocess.run([sys.executable, "-c", code], stderr=theirs, check=False)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 1
    assert "trouble \\u001b[31m" in said
    assert "\x1b" not in said
