"""What happens before the work: standard input, --preview, --dry-run, the warning of a foreign script, room for the store."""

import gzip
import io
import logging
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import elmo_store
from model.files.registry import random_weights
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import TINY
from tests.pipeline.test_embed_job import broken_writer
from transforms.stages import embed as embed_stage

Command = Callable[..., int]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Make some bytes what comes from standard input."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return pipe


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_embedded_as_a_file_of_it_is(
    embed: Command, piped: Callable[[bytes], None], corpus: Path, tmp_path: Path, packed: bool
) -> None:
    data = (corpus / "a.txt").read_bytes()
    piped(gzip.compress(data) if packed else data)
    assert embed(tmp_path / "piped", inputs=["-"]) == Exit.COMPLETE
    assert embed(tmp_path / "file", inputs=[str(corpus / "a.txt")]) == Exit.COMPLETE
    one, other = elmo_store.open(str(tmp_path / "piped")), elmo_store.open(str(tmp_path / "file"))
    assert [s.tokens for s in one] == [s.tokens for s in other]
    np.testing.assert_array_equal(one.read(), other.read())
    assert one.sentence(3).id == "stdin:3"


def test_what_can_and_can_t_come_from_standard_input(
    embed: Command, piped: Callable[[bytes], None], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(b'id,text\n1,"One. Two."\n2,Three\n')
    assert embed(tmp_path / "csv", "--input-format", "csv", "--id-field", "id", inputs=["-"]) == Exit.COMPLETE
    assert [s.id for s in elmo_store.open(str(tmp_path / "csv"))] == ["1:0", "1:1", "2:0"]
    piped(b'[{"text": "One."}, {"text": ["Two", "."]}]')
    assert embed(tmp_path / "json", "--input-format", "json", inputs=["-"]) == Exit.COMPLETE
    assert [s.id for s in elmo_store.open(str(tmp_path / "json"))] == ["stdin:0:0", "stdin:1"]
    assert embed(tmp_path / "no", inputs=["-", str(corpus)]) == Exit.BAD_USAGE
    assert "stands alone" in capsys.readouterr().err
    assert embed(tmp_path / "no", "--input-format", "parquet", inputs=["-"]) == Exit.BAD_USAGE
    assert "Parquet can't be read from standard input" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("asked", [["--preview", "9999"], ["--dry-run", "--exact"], []])
def test_damaged_standard_input_is_named_as_such(
    embed: Command, piped: Callable[[bytes], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    piped(gzip.compress(b"the cat sat\n" * 5000)[:-30])
    assert embed(tmp_path / "store", "--quiet", *asked, inputs=["-"]) == Exit.BAD_LOCATION
    assert "elmo-store embed: stdin: the gzip stream is cut short" in capsys.readouterr().err


def test_preview_shows_ids_and_tokens_of_the_first_records(
    piped: Callable[[bytes], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"It is so. Or not.\n\nAnother one.\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": ["a", "b"]}\n{"no": 1}\n{"text": "c"}\n')
    assert main(["embed", str(tmp_path), "--preview", "5"]) == Exit.COMPLETE
    shown = capsys.readouterr().out.splitlines()
    assert shown[:4] == ["a.txt:0:0\tIt is so .", "a.txt:0:1\tOr not .", "a.txt:1:0\tAnother one .", "b.jsonl:0\ta b"]
    assert len(shown) == 5
    assert re.match(r"b\.jsonl:1\tREFUSED: .*'text'", shown[4])
    piped(b"x y\nz\n")
    assert main(["embed", "-", "--input-format", "lines", "--preview", "9"]) == Exit.COMPLETE
    assert capsys.readouterr().out.splitlines() == ["stdin:0\tx y", "stdin:1\tz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.jsonl"]


def test_a_dry_run_says_what_a_job_comes_to_and_writes_nothing(
    embed: Command, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    priced = ["--tokens-per-second", "100", "--price-per-hour", "36", "--workers", "2"]
    assert embed(out, "--dry-run", "--exact", *priced) == Exit.COMPLETE
    shown = capsys.readouterr().out
    n = sum(len(line.split()) for path in corpus.iterdir() for line in path.read_text("utf-8").splitlines())
    assert f"  tokens    {n:,}\n" in shown
    assert f"  shards    {-(-n // 64)}\n" in shown
    assert "with 2 worker(s)" in shown
    # Two workers at 100 tokens a second and 36 an hour: 0.01 a second of each.
    assert float(re.search(r"cost +about ([\d.]+)", shown)[1]) == pytest.approx(0.01 * n / 100, abs=0.02)  # type: ignore[index]
    assert not out.exists()
    assert embed(out, "--dry-run") == Exit.COMPLETE  # a sample, and the rate measured here
    assert f"  tokens    about {n:,}\n" in capsys.readouterr().out
    assert embed(out, "--dry-run", "--exact", "--states", "x", "--tokens-per-second", "100") == Exit.COMPLETE
    assert embed(out, "--exact") == Exit.BAD_USAGE
    assert not out.exists()


def test_a_dry_run_with_a_rate_reads_no_weights(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("model.files.weights.read_safetensors", read)
    assert embed(tmp_path / "store", "--dry-run", "--tokens-per-second", "100") == Exit.COMPLETE
    assert "computing" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="weights were read"):  # without a rate it is measured
        embed(tmp_path / "store", "--dry-run")


@pytest.mark.parametrize(("language", "words", "warned"), [
    ("English", "слово и дело", True), ("Russian", "слово и дело", False), ("English", "word and deed", False),
    ("Klingon", "слово и дело", False),
])  # fmt: skip
def test_a_script_that_the_model_was_not_made_for_gives_one_warning(
    tmp_path: Path, language: str, words: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    random_weights(TINY).save_safetensors(model / "weights.safetensors")
    (model / "README.md").write_text(f"# A model\n\n{language}, of little use.\n")
    (tmp_path / "a.tok").write_text(f"{words}\n12 .\n" * 50, "utf-8")
    command = ["embed", str(tmp_path / "a.tok"), "--output", str(tmp_path / "store"), "--model", str(model), "--quiet"]
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert main(command) == Exit.COMPLETE
    found = [record.getMessage() for record in caplog.records if "script" in record.getMessage()]
    assert len(found) == warned
    assert not found or found[0].startswith("100% of the sampled tokens are in another script (Cyrillic)")


@pytest.mark.slow
def test_a_disk_that_is_too_small_is_told_at_the_door_or_by_the_plan_before_the_first_shard(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    n_bytes = 0

    def free(_: object) -> Usage:
        return Usage(10**9, 0, n_bytes)

    monkeypatch.setattr("shutil.disk_usage", free)
    assert embed(out) == Exit.BAD_LOCATION
    assert "0 bytes free" in capsys.readouterr().err
    n_bytes = 40_000  # more than half of what the sample says, less than the states take
    assert embed(out) == Exit.INCOMPLETE
    assert re.search(r"has 40,000 bytes free and its states take \d\d,\d\d\d more: make room", capsys.readouterr().err)
    assert not (out / "_shards").exists()
    assert embed(out) == Exit.INCOMPLETE  # again, as long as nothing is there
    n_bytes = 10**9
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", broken_writer(1))
        assert embed(out) == Exit.INCOMPLETE
    n_bytes = 20_000  # enough for the rest
    assert embed(out) == Exit.COMPLETE
