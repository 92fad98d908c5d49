"""Files that are damaged and records that are refused: all named together, nothing read twice, nothing complete that is not."""

import gzip
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import elmo_store
from elmo_store.format.layout import REJECTS
from elmo_store.storage.lease import Lease, acquire, release
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import Command
from tests.pipeline.support import digests
from tests.store.deep import all_faults
from transforms.inputs.records import InputError
from transforms.stages.split import plan_splits

TEXT = "\n".join(f"one sentence of {i} words" for i in range(4000)) + "\n"


def packed(text: str = TEXT) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("a sound file\n")
    (folder / "b.txt.gz").write_bytes(packed()[:5000])
    (folder / "c.txt.gz").write_bytes(packed("good\n"))
    (folder / "d.txt.gz").write_bytes(packed()[:3000] + b"\0" * 50 + packed()[3050:])
    return folder


@pytest.mark.slow
def test_all_bad_files_are_told_together_and_a_mended_one_costs_its_own_pieces_only(
    embed: Command,
    damaged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "store"
    monkeypatch.setattr("transforms.stages.split.TASK_FILES", 1)  # each file is a task of its own
    assert embed(out, inputs=[str(damaged)]) == Exit.INCOMPLETE
    said = capsys.readouterr().err
    assert "2 input files can't be read" in said
    assert "b.txt.gz: the gzip stream is cut short" in said
    assert "d.txt.gz: the gzip stream is damaged" in said
    assert "--on-bad-file reject" in said
    read = {path: path.stat().st_mtime_ns for path in (out / "_work" / "parts").iterdir()}
    assert len(read) == 2
    (damaged / "b.txt.gz").write_bytes(packed("mended\n"))
    assert embed(out, inputs=[str(damaged)]) == Exit.INCOMPLETE
    said = capsys.readouterr().err
    assert "1 input file can't be read" in said
    assert "b.txt.gz" not in said
    (damaged / "d.txt.gz").write_bytes(packed("mended too\n"))
    kept = {path: path.stat().st_mtime_ns for path in read}
    assert kept == read
    assert embed(out, inputs=[str(damaged)]) == Exit.COMPLETE
    assert embed(tmp_path / "whole", inputs=[str(damaged)]) == Exit.COMPLETE
    assert digests(out) == digests(tmp_path / "whole")


def test_files_of_one_task_are_told_together_too(
    embed: Command, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store", inputs=[str(damaged)]) == Exit.INCOMPLETE
    assert "2 input files can't be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_file_may_be_rejected_from_its_damage_on(
    embed: Command, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    assert embed(out, inputs=[str(damaged)]) == Exit.INCOMPLETE
    assert embed(out, "--on-bad-file", "reject", inputs=[str(damaged)]) == Exit.COMPLETE
    store = elmo_store.open(str(out))
    assert all_faults(store) == []
    rejects = [
        json.loads(line) for line in (out / REJECTS / "part-00000.jsonl").read_text().splitlines()
    ]
    assert [Path(one["source"]).name for one in rejects] == ["b.txt.gz", "d.txt.gz"]
    assert all("can't be read from here on" in one["reason"] for one in rejects)
    for one in rejects:
        sentence = store.sentence(one["sentence"])
        assert (sentence.tokens, sentence.position) == ((), one["position"])
    assert store.sentence(rejects[0]["sentence"] - 1).position == rejects[0]["position"] - 1 > 1000
    assert store.sentence(store.n_sentences - 1).source.endswith("d.txt.gz")
    assert store.manifest.sizes.rejected == 2
    # What was accepted as rejected is not to be had as whole.
    assert embed(out, inputs=[str(damaged)]) == Exit.REFUSED


DAMAGED_TEXTS = {  # name → what precedes the damage, the damage, what the message says
    "cut.json": ('[{"text": "One."}, ', '{"text": "Tw', "the JSON array is cut short"),
    "open.csv": ("text\nOne.\n", '"Two.\nThree.\n', "from line 3: a quote is opened in the row"),
}


@pytest.mark.parametrize("name", DAMAGED_TEXTS)
def test_a_damaged_structure_ends_as_a_cut_gzip_file_does(
    embed: Command, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound, damage, message = DAMAGED_TEXTS[name]
    path, out = tmp_path / name, tmp_path / "store"
    path.write_text(sound + damage)
    of_name = ("--input-format", "auto")
    assert embed(out, *of_name, inputs=[str(path)]) == Exit.INCOMPLETE
    assert message in capsys.readouterr().err
    assert embed(out, *of_name, "--on-bad-file", "reject", inputs=[str(path)]) == Exit.COMPLETE
    first, reject = elmo_store.open(str(out))
    assert (first.tokens, reject.tokens) == (("One", "."), ())


def test_large_files_that_cannot_be_opened_are_told_together_at_the_door(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"no parquet, but large" * 100)
    with pytest.raises(InputError) as caught:
        plan_splits([str(tmp_path)], range_bytes=1000)
    assert [Path(one.url).name for one in (caught.value, *caught.value.also)] == [
        "a.parquet",
        "b.parquet",
    ]


def test_a_job_whose_records_are_mostly_refused_is_not_complete(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one good record"}\n' + '{"texd": "misspelt"}\n' * 3)
    out = tmp_path / "store"
    jsonl = ("--input-format", "jsonl", "--shard-rows", "64")
    assert embed(out, *jsonl, inputs=[str(path)]) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert "3 of 4 records were refused (75.0%), more than --max-reject-rate 0.5 allows" in said
    assert "misspelt" in said
    writer = Lease.of_this_process("run", local=True, patience_seconds=60)
    with subprocess.Popen(["true"]) as child:
        ended = Process.of(child.pid)
    for lease, advice in (
        (writer, f"follow it:   elmo-store watch {out}\n"),
        (replace(writer, process=ended), "continue it: give"),
    ):
        acquire(Root(out), lease)
        assert main(["info", str(out)]) == Exit.INCOMPLETE
        assert advice in capsys.readouterr().out
        release(Root(out), "run")
    assert embed(out, *jsonl, "--max-reject-rate", "0.75", inputs=[str(path)]) == Exit.COMPLETE
    assert elmo_store.open(str(out)).manifest.sizes.rejected == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,body\n1,Good.\n", "it has no field 'text', but 'id', 'body': name one with --text"),
        ("id,text\r\n1,Good.\r\n".encode("utf-16"), "read it with --encoding utf-16"),
        (b"text,text\n1,Good.\n", "2 of its fields are called 'text'"),
    ],
)
def test_a_csv_file_with_other_fields_is_bad_usage_before_anything_is_written(
    embed: Command, tmp_path: Path, data: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "store"
    path.write_bytes(data)
    assert embed(out, "--input-format", "auto", inputs=[str(path)]) == Exit.BAD_LOCATION
    told = capsys.readouterr().err
    assert f"{path}: " in told
    assert message in told
    assert not out.exists()


@pytest.mark.slow
def test_a_wrong_format_is_told_once_and_has_no_claim_on_the_output(
    embed: Command, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.txt", tmp_path / "store"
    path.write_text("The cat sat .\nDogs ran away .\n" * 3, encoding="utf-8")
    command = [
        "embed",
        str(path),
        "--output",
        str(out),
        "--model",
        str(tiny_model),
        "--input-format",
    ]
    for _ in range(2):
        assert main([*command, "jsonl"]) == Exit.BAD_LOCATION
        said = capsys.readouterr().err
        assert said.count("6 of 6 records were refused") == 1
        assert "rerun the same command to resume" not in said
    assert main(["watch", "--once", str(out)]) == Exit.INCOMPLETE
    assert "records were refused" in capsys.readouterr().out
    other = tmp_path / "other"
    assert main([*command, "lines", "--quiet"]) == Exit.COMPLETE
    assert main([*command[:3], str(other), *command[4:], "lines", "--quiet"]) == Exit.COMPLETE
    assert digests(out) == digests(other)
    assert Root(out).list() == Root(other).list()  # nothing of the first attempt is left
