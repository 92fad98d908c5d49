"""A whole job from and to gs:// on a real GCS-compatible server: the same bytes as on a local disk, one run at a time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store.errors import LeaseLostError
from elmo_store.format.layout import MANIFEST, zarr_states_shard
from elmo_store.storage.lease import Lease, acquire
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from tests.pipeline.support import check_a_job_from_and_to, digests, remote_digests
from tests.store.deep import all_faults
from transforms.runtime.owner import owned
from transforms.stages import embed as embed_stage

Command = Callable[..., int]
pytestmark = pytest.mark.slow


def test_a_job_from_and_to_gs_is_the_same_as_on_disk(
    embed: Command, corpus: Path, gcs: dict[str, object], tmp_path: Path, tiny_model: Path
) -> None:
    check_a_job_from_and_to(
        f"gs://elmo/{tmp_path.name}", gcs, embed, corpus, tmp_path / "local", tiny_model
    )


def test_a_second_run_is_refused_on_gs_and_an_old_workers_late_put_is_not_taken(
    embed: Command,
    gcs: dict[str, object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.0)
    root = Root(f"gs://elmo/{tmp_path.name}/store", gcs)
    options = ["--storage-options", json.dumps(gcs)]
    acquire(
        root,
        Lease(
            "theirs", "them@there", Process("another machine", 1, "1"), time.time(), 900.0, False
        ),
    )
    old = owned(root, "theirs")
    assert old.owner is not None
    old.owner.confirm("")
    assert embed(str(root), *options) == Exit.REFUSED
    assert "belongs to run theirs of them@there" in capsys.readouterr().err
    assert not root.exists(MANIFEST)
    assert embed(str(root), *options, "--take-over") == Exit.COMPLETE
    shard = root.get(zarr_states_shard(1))
    for late in (lambda: old.put(zarr_states_shard(1), shard[::-1]), lambda: old.remove(MANIFEST)):
        with pytest.raises(LeaseLostError):
            late()
    assert root.get(zarr_states_shard(1)) == shard
    assert all_faults(elmo_store.open(str(root), storage_options=gcs)) == []


def test_a_put_over_anothers_between_its_fence_and_its_marker_is_found_on_gs(
    embed: Command, gcs: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old worker looked before the lease changed hands, and its object of the same size comes after the new one's."""
    root = Root(f"gs://elmo/{tmp_path.name}/store", gcs)
    sound = embed_stage.write_shard

    def then_a_late_put(
        to: Root, manifest: Any, text: Any, states: Any, plan: str, stats: Any
    ) -> Any:
        marker = sound(to, manifest, text, states, plan, stats)
        if text.shard == 1:
            root.put(zarr_states_shard(1), root.get(zarr_states_shard(1))[::-1])
        return marker

    options = ["--storage-options", json.dumps(gcs)]
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", then_a_late_put)
        assert embed(str(root), *options) == Exit.INCOMPLETE
    assert embed(str(root), *options) == Exit.COMPLETE
    assert embed(tmp_path / "local") == Exit.COMPLETE
    ours, theirs = remote_digests(root), digests(tmp_path / "local")
    assert {n: ours[n] for n in ours if n.startswith("states")} == {
        n: theirs[n] for n in theirs if n.startswith("states")
    }
