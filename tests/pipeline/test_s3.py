"""Inputs and output on a real S3-compatible server: the same bytes as on a local disk, resumed and watched there too."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import elmo_store
from elmo_store.storage import Root
from pipeline.cli import main
from pipeline.exit_codes import Exit
from tests.pipeline.support import digests
from tests.pipeline.test_embed_job import broken_writer
from transforms import embed as embed_stage

Command = Callable[..., int]


@pytest.fixture
def remote_corpus(s3_url: str, corpus: Path, tmp_path: Path) -> str:
    """The corpus of the other tests, on the server."""
    folder = f"{s3_url}/{tmp_path.name}/corpus"
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    for path in corpus.iterdir():
        files.pipe_file(f"{folder}/{path.name}", path.read_bytes())
    return folder


def remote_digests(root: Root) -> dict[str, str]:
    names = [name for name in root.list() if name.split("/")[0] in ("sentences", "states", "states.zarr", "rejects")]
    return {name: hashlib.sha256(root.get(name)).hexdigest() for name in names}


def test_an_interrupted_job_on_s3_is_watched_continued_and_the_same_as_on_disk(
    embed: Command,
    corpus: Path,
    remote_corpus: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert embed(tmp_path / "local", "--store", "both") == Exit.COMPLETE
    url = remote_corpus.replace("/corpus", "/store")
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", broken_writer(1))
        assert embed(url, "--store", "both", inputs=[remote_corpus]) == Exit.INCOMPLETE
    capsys.readouterr()
    assert main(["watch", "--once", url]) == Exit.INCOMPLETE
    assert "1 of 6 shards are not in the store" in capsys.readouterr().out
    assert embed(url, "--store", "both", inputs=[remote_corpus]) == Exit.COMPLETE
    assert main(["watch", "--once", url]) == Exit.COMPLETE
    assert main(["info", url]) == Exit.COMPLETE
    root = Root(url)
    here, there = digests(tmp_path / "local"), remote_digests(root)
    assert {n: d for n, d in here.items() if "sentences" not in n} == {n: d for n, d in there.items() if "sentences" not in n}
    store: Any = elmo_store.open(url)
    assert [s.id for s in store][:2] == ["a.txt:0", "a.txt:1"]
    assert store.sentence(0).source.startswith("s3://")


def test_a_bucket_that_is_not_there_is_a_bad_location(
    embed: Command,
    s3_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert embed("s3://no-such-bucket-here/store") == Exit.BAD_LOCATION
    assert "no-such-bucket-here" in capsys.readouterr().err
