"""Secrets appear nowhere: not on the screen, in logs, in the store, and not in a job's graph where they are named."""

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest

from elmo_store.errors import StoreError
from elmo_store.storage.filesystems import resolved_options
from elmo_store.storage.root import Root
from pipeline.cli.arguments import json_object
from pipeline.cli.exit_codes import Exit
from pipeline.jobs.embed_job import begin_job
from pipeline.jobs.spec import EmbedOptions
from pipeline.main import main
from pipeline.runners.beam_options import pipeline_options
from tests.pipeline.conftest import Command
from tests.pipeline.support import graph_of

SECRET = "hunter2-is-no-good-password"
OPTIONS = f'{{"secret": "{SECRET}", "client_kwargs": {{"token": "{SECRET}"}}}}'


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_job_s_storage_options_are_not_repeated(
    embed: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    given = ("--storage-options", OPTIONS)
    assert embed(out, *given, "--log-level", "debug") == Exit.COMPLETE
    assert main(["report", str(out), *given]) == Exit.COMPLETE
    assert main(["info", str(out), *given]) == Exit.COMPLETE
    assert main(["info", str(out), *given, "--json"]) == Exit.COMPLETE
    assert embed(out, *given) == Exit.COMPLETE
    assert embed(out, *given, "--dtype", "float32") == Exit.REFUSED
    with pytest.raises(SystemExit):
        main(["info", str(out), "--storage-options", OPTIONS[:-1]])  # does not parse
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert 'storage_options={"secret": …, "client_kwargs": …}' in said.out
    assert "not JSON at character" in said.err
    assert SECRET.encode() not in all_bytes(out)


@pytest.mark.parametrize(
    "text", [OPTIONS[1:], f'["{SECRET}"]', f'"{SECRET}"', f"[{SECRET}", "[" * 100_000]
)
def test_options_that_do_not_parse_are_not_shown(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        json_object(text)
    assert SECRET not in str(caught.value)
    assert "[[[" not in str(caught.value)


def test_a_secret_may_be_named_and_is_looked_up_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch, embed: Command, tmp_path: Path, tiny_model: Path, corpus: Path
) -> None:
    monkeypatch.setenv("ELMO_TEST_SECRET", SECRET)
    named: dict[str, Any] = {
        "secret": "env:ELMO_TEST_SECRET",
        "client_kwargs": {"token": "env:ELMO_TEST_SECRET"},
        "n": 1,
    }
    assert resolved_options(named) == {"secret": SECRET, "client_kwargs": {"token": SECRET}, "n": 1}
    root = Root(tmp_path / "store", named)
    assert root.filesystem.storage_options["secret"] == SECRET
    assert SECRET.encode() not in pickle.dumps(root)
    # The graph of a job
    asked = EmbedOptions(
        (str(corpus),),
        str(tmp_path / "store"),
        model=str(tiny_model),
        storage_options=named,
        input_storage_options=named,
    )
    assert SECRET not in repr(asked)
    job = begin_job(asked, pipeline_options([]))
    assert job.holder is not None
    with job.holder:
        graph = graph_of(job).SerializeToString()
    assert SECRET.encode() not in graph
    assert b"ELMO_TEST_SECRET" in graph or SECRET not in repr(job)
    monkeypatch.delenv("ELMO_TEST_SECRET")
    with pytest.raises(StoreError, match="ELMO_TEST_SECRET, which is not set"):
        Root(tmp_path / "store", named).list()


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", f"sftp://me:{SECRET}@host/a.txt", "--output", "out"],
        ["embed", "{corpus}", "--output", f"sftp://me:{SECRET}@host/out"],
        ["info", f"ftp://me:{SECRET}@host/out"],
        ["mix", f"ftp://me:{SECRET}@host/out", "--weights", "w.json", "--output", "out"],
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(
    arguments: list[str], corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([one.replace("{corpus}", str(corpus)) for one in arguments]) == Exit.BAD_USAGE
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert "env:NAME" in said.err
