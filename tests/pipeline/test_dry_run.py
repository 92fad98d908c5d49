"""What happens before the work: standard input, --dry-run, room for the store."""

import gzip
import io
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import elmo_store
from pipeline.cli.exit_codes import Exit
from pipeline.main import main

Command = Callable[..., int]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Make some bytes what comes from standard input."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return pipe


def test_standard_input_is_embedded_as_a_file_of_it_is(
    embed: Command,
    piped: Callable[[bytes], None],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "transforms.inputs.byte_source.PIPED_BYTES", 50
    )  # of several objects in the store
    piped(gzip.compress((corpus / "a.txt").read_bytes()))
    assert embed(tmp_path / "piped", inputs=["-"]) == Exit.COMPLETE
    assert embed(tmp_path / "file", inputs=[str(corpus / "a.txt")]) == Exit.COMPLETE
    one, other = elmo_store.open(str(tmp_path / "piped")), elmo_store.open(str(tmp_path / "file"))
    assert [s.tokens for s in one] == [s.tokens for s in other]
    np.testing.assert_array_equal(one.read(), other.read())
    assert one.sentence(3).id == "stdin:3"


@pytest.mark.slow
def test_what_can_and_can_t_come_from_standard_input(
    embed: Command,
    piped: Callable[[bytes], None],
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped(b'id,text\n1,"One. Two."\n2,Three\n')
    assert (
        embed(tmp_path / "csv", "--input-format", "csv", "--id-field", "id", inputs=["-"])
        == Exit.COMPLETE
    )
    assert [s.id for s in elmo_store.open(str(tmp_path / "csv"))] == ["1:0", "1:1", "2:0"]
    piped(b'[{"text": "One."}, {"text": ["Two", "."]}]')
    assert embed(tmp_path / "json", "--input-format", "json", inputs=["-"]) == Exit.COMPLETE
    assert [s.id for s in elmo_store.open(str(tmp_path / "json"))] == ["stdin:0:0", "stdin:1"]
    assert embed(tmp_path / "no", inputs=["-", str(corpus)]) == Exit.BAD_USAGE
    assert "can't be combined with files" in capsys.readouterr().err
    assert embed(tmp_path / "no", "--input-format", "parquet", inputs=["-"]) == Exit.BAD_USAGE
    assert "Parquet can't be read from standard input" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("asked", "code"), [(["--dry-run"], Exit.BAD_LOCATION), ([], Exit.INCOMPLETE)]
)
def test_damaged_standard_input_is_named_as_such(
    embed: Command,
    piped: Callable[[bytes], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    asked: list[str],
    code: Exit,
) -> None:
    piped(gzip.compress(b"the cat sat\n" * 5000)[:-30])
    assert embed(tmp_path / "store", "--quiet", *asked, inputs=["-"]) == code
    assert "stdin: the gzip stream is cut short" in capsys.readouterr().err


def test_a_dry_run_shows_the_first_records_and_what_the_job_comes_to_and_writes_nothing(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"It is so. Or not.\n\nAnother one.\n")
    (folder / "b.jsonl").write_bytes(b'{"text": ["a", "b"]}\n{"no": 1}\n' + b'{"text": "c"}\n' * 9)
    command = [
        "embed",
        str(folder),
        "--model",
        str(tiny_model),
        "--dry-run",
        "--output",
        str(tmp_path / "store"),
    ]
    assert main([*command, "--workers", "2", "--shard-rows", "8"]) == Exit.COMPLETE
    shown = capsys.readouterr().out.splitlines()
    assert shown[:4] == [
        "a.txt:0:0\tIt is so .",
        "a.txt:0:1\tOr not .",
        "a.txt:1:0\tAnother one .",
        "b.jsonl:0\ta b",
    ]
    assert re.match(r"b\.jsonl:1\tREFUSED: .*'text'", shown[4])
    assert (shown[9], shown[10][:14]) == ("b.jsonl:6:0\tc", "from a sample ")
    assert shown[10].endswith(": 14 sentences, 21 tokens, 1 record refused")
    assert shown[11:13] == ["  tokens    about 21", "  shards    about 3"]
    assert shown[-1].startswith("  computing about ")
    assert shown[-1].endswith("with 2 workers")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_model_that_is_not_there_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("One two .\n")
    assert (
        main(["embed", str(tmp_path / "a.txt"), "--dry-run", "--model", "nonsense"])
        == Exit.BAD_USAGE
    )
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("elmo-store embed: --model: ")
