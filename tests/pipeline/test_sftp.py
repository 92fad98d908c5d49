"""A whole job to a real SFTP server, whose connection serves one caller at a time: the same bytes as on a local disk."""

import json
from pathlib import Path

import numpy as np
import pytest

import elmo_store
from elmo_store.storage.readable import TEMPORARY_PREFIX
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import Command
from tests.pipeline.support import digests
from tests.pipeline.test_embed_job import broken_writer
from transforms.stages import embed as embed_stage


@pytest.mark.slow
def test_an_interrupted_job_on_sftp_is_continued_and_the_same_as_on_disk(
    embed: Command, sftp: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--store", "both", "--storage-options", json.dumps(sftp.storage_options)]
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", broken_writer(1))
        assert embed(str(sftp), *options) == Exit.INCOMPLETE
    assert embed(str(sftp), *options) == Exit.COMPLETE
    assert embed(tmp_path / "local", "--store", "both") == Exit.COMPLETE
    there = tmp_path / "served" / "out"
    assert digests(there) == digests(tmp_path / "local")
    assert not [path for path in there.rglob("*") if path.name.startswith(TEMPORARY_PREFIX) or path.match("_*/owner.json")]
    assert main(["verify", str(sftp), "--deep", *options[2:], "--quiet"]) == Exit.COMPLETE
    ours = elmo_store.open(str(sftp), storage_options=sftp.storage_options)
    theirs = elmo_store.open(str(tmp_path / "local"))
    assert [one.id for one in ours] == [one.id for one in theirs]
    np.testing.assert_array_equal(ours.read(), theirs.read())
    np.testing.assert_array_equal(ours.sentence(id="b.txt:3").read(), theirs.sentence(id="b.txt:3").read())
