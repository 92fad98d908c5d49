"""Inputs of the command: files in archives, what is said of formats that were inferred, inputs without a sentence."""

import zipfile
from pathlib import Path

import pytest

import elmo_store
from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.preflight import check_reach
from pipeline.runners.beam_options import pipeline_options
from tests.pipeline.conftest import Command
from transforms.inputs.records import stored_url


def zip_of(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.txt", text)
    return path


def test_files_in_an_archive_are_embedded_with_their_own_ids(
    embed: Command, tmp_path: Path
) -> None:
    path = zip_of(tmp_path / "x.zip", a="One two\nthree\n", b="four\n")
    assert embed(tmp_path / "store", inputs=[f"zip://*.txt::{path}"]) == Exit.COMPLETE
    store = elmo_store.open(tmp_path / "store")
    assert [sentence.id for sentence in store] == ["a.txt:0", "a.txt:1", "b.txt:0"]
    assert [sentence.tokens for sentence in store] == [("One", "two"), ("three",), ("four",)]
    assert embed(tmp_path / "store", inputs=[f"zip://*.txt::{path}"]) == Exit.COMPLETE


def test_an_archive_is_refused_before_anything_is_written(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = zip_of(tmp_path / "x.zip", a="One two\n")
    assert embed(tmp_path / "store", inputs=[str(path)]) == Exit.BAD_LOCATION
    assert f"zip://a.txt::{path}" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_an_archive_in_the_output_is_refused(embed: Command, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    path = zip_of(tmp_path / "store" / "x.zip", a="One two\n")
    assert embed(tmp_path / "store", inputs=[f"zip://a.txt::{path}"]) == Exit.BAD_USAGE


def test_a_missing_archive_is_a_bad_location(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"tar://*.txt::{tmp_path}/no.tar"
    assert embed(tmp_path / "store", inputs=[url]) == Exit.BAD_LOCATION
    assert "there is no such file" in capsys.readouterr().err


def test_an_archive_of_this_machine_is_refused_for_workers_on_others() -> None:
    remote = pipeline_options(["--runner=FlinkRunner", "--flink_master=cluster.example:8081"])
    url = stored_url("zip://*.txt::/data/x.zip")
    with pytest.raises(CommandError, match="a path of this machine"):
        check_reach(remote, [Location("input", url)], shared_disk=False)
