"""Two runs on one output, and workers that come late: whatever happens, a store that says complete is what it says."""

import json
import os
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import JobMismatchError, LeaseLostError
from elmo_store.format.layout import MANIFEST, WORK, shard_marker, zarr_states_shard
from elmo_store.format.manifest import read_manifest
from elmo_store.format.markers import PartRange, ShardMarker, read_marker
from elmo_store.storage import local_disk
from elmo_store.storage.data import Data
from elmo_store.storage.lease import (
    LAUNCHER_HEARTBEAT,
    LEASE,
    LEASES,
    Lease,
    acquire,
    look_seconds,
    read_lease,
    release,
)
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import run as job_run
from pipeline.jobs.output import clear, is_same_job
from pipeline.main import main
from tests.pipeline.conftest import Command, Made
from tests.pipeline.support import digests
from tests.store.deep import all_faults
from transforms.runtime.owner import owned, run_name, run_of
from transforms.runtime.results import IncompleteJobError, Outcome
from transforms.runtime.work import PLAN, START
from transforms.stages import embed as embed_stage
from transforms.stages import finish as finish_stage
from transforms.stages import plan as plan_stage
from transforms.stages.finish import check, check_tasks, left_to_do
from transforms.stages.plan import ShardTask


@pytest.fixture
def embed(made: Made) -> Command:
    """The command on the corpus of the stores that tests share."""
    return made.embed


def held_elsewhere(out: Path, run: str = "theirs") -> None:
    acquire(
        Root(out), Lease(run, "them@there", Process("another machine", 1, "1"), 4e9, 900.0, True)
    )


@pytest.fixture
def everything(out: Path) -> Any:
    """Every byte of the output, at the beginning of the test and whenever it is asked for."""
    return lambda: {
        str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_a_second_run_is_refused_while_the_first_lives(
    made: Made,
    embed: Command,
    out: Path,
    everything: Any,
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(made.zarr, out)
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["complete"] = False  # as it is while the first one works
    manifest.pop("sha256")
    (out / MANIFEST).write_text(
        json.dumps(manifest | {"sha256": elmo_store.format.manifest.own_sha256(manifest)})
    )
    held_elsewhere(out)
    before = everything()
    capsys.readouterr()
    assert embed(out, *options) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "run theirs of them@there" in said
    assert "--take-over" in said
    assert everything() == before
    assert main(["info", str(out)]) == Exit.INCOMPLETE
    assert "writer:      run theirs of them@there" in capsys.readouterr().out
    assert embed(out, *options, "--take-over") == Exit.COMPLETE
    assert not list(out.glob("_*/owner.json"))


def test_a_complete_store_has_neither_lease_nor_scratch(embed: Command, out: Path) -> None:
    assert embed(out) == Exit.COMPLETE
    assert not [rel for rel in Root(out).list() if rel.startswith((LEASES, WORK))]


def test_a_run_that_is_pushed_aside_stops_and_says_so(
    embed: Command, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = embed_stage.write_shard

    def overtaken(root: Root, manifest: Any, text: Any, states: Any, plan: str, stats: Any) -> Any:
        if text.shard == 2:
            Root(out).put_json(
                LEASE, asdict(Lease("theirs", "them@there", Process("x", 1, "1"), 4e9, 900.0, True))
            )
            monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.0)
        return sound(root, manifest, text, states, plan, stats)

    monkeypatch.setattr(embed_stage, "write_shard", overtaken)
    assert embed(out) == Exit.REFUSED
    assert "another run took" in capsys.readouterr().err
    root = Root(out)
    lease = read_lease(root)
    assert lease is not None
    assert lease.run == "theirs"
    assert read_marker(root, ShardMarker, 2) is None
    assert not read_manifest(root).complete
    assert root.size("_work/problem.json") is None  # that is the other run's to say


@pytest.mark.slow
def test_a_run_whose_output_another_job_has_completed_meanwhile_does_not_call_it_its_own(
    embed: Command, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no write of its own met the other's lease: that was given back before this run went on."""

    def stood_still(*_: object) -> None:
        monkeypatch.undo()
        assert embed(out, "--overwrite", "--take-over", "--dtype", "float32") == Exit.COMPLETE
        capsys.readouterr()
        raise RuntimeError("its scratch is gone")

    sound = job_run._submitted

    def submitted(running: job_run.Running, transform: Any) -> bool:
        monkeypatch.setattr(job_run, "submit", stood_still)
        return sound(running, transform)

    monkeypatch.setattr(job_run, "_submitted", submitted)
    assert embed(out) == Exit.REFUSED
    said = capsys.readouterr()
    assert "complete" not in said.out
    assert "took" in said.err
    assert "has ended" in said.err
    assert read_manifest(Root(out)).dtype == "float32"


@pytest.fixture
def run_of_a_job(made: Made, out: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """The workers' root of a run whose shards are all written, its lease held, nothing finished."""
    shutil.copytree(made.interrupted, out)
    root = owned(Root(out), Root(out).get_json(START)["run"])
    Root(out).put_json(
        LEASE, asdict(Lease.of_this_process(run_name(root), local=True, patience_seconds=9.0))
    )
    monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.0)
    return root


def read_settings() -> Any:
    from pipeline.jobs.spec import EmbedOptions
    from transforms.inputs.records import ReadSettings

    return ReadSettings(**EmbedOptions(("x",), "y", input_format="lines").read_settings())


def finish(root: Root) -> None:
    finish_stage.finish_job([check(task, root) for task in check_tasks([Outcome()], root)], root)


def test_a_late_copy_of_the_plan_changes_nothing(
    run_of_a_job: Root, everything: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = run_of_a_job
    before = everything()
    again = list(plan_stage.plan_job([0], root, read_settings(), 4, 1, False))
    assert [one.tag for one in again].count(plan_stage.SHARDS) >= 1
    assert everything() == before
    # While it writes, the job ends: the copy must not bring `complete: false` back, nor undo the consolidated metadata.

    def ends_meanwhile(*_: Any) -> bool:
        finish(run_of_a_job)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(plan_stage, "is_planned", ends_meanwhile)
        with pytest.raises(LeaseLostError):
            list(plan_stage.plan_job([0], root, read_settings(), 4, 1, False))
    store = elmo_store.open(root.url())
    assert store.manifest.complete
    assert not store.verify().faults
    assert [late.tag for late in plan_stage.plan_job([0], root, read_settings(), 4, 1, False)] == [
        plan_stage.BEGUN
    ]
    finish(Root(root.url()))  # a second copy of the last stage, too
    assert not store.verify().faults


def test_a_late_look_for_what_is_done_removes_no_marker(run_of_a_job: Root) -> None:
    root = run_of_a_job
    tasks = [
        ShardTask(shard, 64 * shard, 64, (("", PartRange(0, 0, 1, 0, 1)),)) for shard in range(4)
    ]
    root.put(zarr_states_shard(1), b"half")  # the worker of shard 1 is just writing it
    before = [root.get(shard_marker(shard)) for shard in range(4)]
    assert [[task.shard for task in batch] for batch in left_to_do(tasks, root, 8)] == [[1]]
    assert [root.get(shard_marker(shard)) for shard in range(4)] == before


def test_a_put_that_came_after_the_fence_is_found_at_the_end(
    made: Made, run_of_a_job: Root, embed: Command, out: Path
) -> None:
    """An old worker looked, slept, and put its own object of the very size over the new one's: sizes are equal."""
    root = run_of_a_job
    data = np.frombuffer(root.get(zarr_states_shard(1)), np.uint8).copy()
    data[7] ^= 1
    Root(out).put(zarr_states_shard(1), data.tobytes())
    with pytest.raises(
        IncompleteJobError, match=r"1 of \d+ shards are not in the store as their markers say \(1\)"
    ):
        finish(root)
    assert not read_manifest(root).complete
    run_of(root).release()  # type: ignore[union-attr]
    assert embed(out) == Exit.COMPLETE
    assert digests(out) == digests(made.zarr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rel",
    ["sentences/part-00000.parquet", "indexes/ids/00000.parquet", "states.zarr/sentence_start/c/0"],
)
def test_parts_that_someone_else_put_are_made_again(
    run_of_a_job: Root, embed: Command, out: Path, rel: str
) -> None:
    data = bytearray(run_of_a_job.get(rel))
    data[9] ^= 1
    Root(out).put(rel, data)
    with pytest.raises(
        IncompleteJobError, match=r"_(parts|ids)/00000 are not in the store as their markers say"
    ):
        finish(run_of_a_job)
    run_of(run_of_a_job).release()  # type: ignore[union-attr]
    assert embed(out) == Exit.COMPLETE
    assert all_faults(elmo_store.open(str(out))) == []


def test_parts_of_an_earlier_plan_are_removed(run_of_a_job: Root, out: Path) -> None:
    old = [
        "sentences/part-00007.parquet",
        "rejects/part-00000.jsonl",
        "_parts/00003.json",
        "_ids/00009.json",
    ]
    for rel in [
        *old,
        "indexes/ids/00005.parquet",
        "states.zarr/sentence_start/c/5",
        "sentences/mine.txt",
    ]:
        Root(out).put(rel, b"old")
    Root(out).put_json(
        PLAN, {**Root(out).get_json(PLAN), "resumed": True}
    )  # only then is there an earlier plan
    finish(run_of_a_job)
    store = elmo_store.open(str(out))
    assert (out / "sentences" / "mine.txt").read_bytes() == b"old"
    (out / "sentences" / "mine.txt").unlink()
    assert all_faults(store) == []


def test_what_complete_promises_is_on_the_disk_before_it_is_promised(
    run_of_a_job: Root, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    put, flush = Root.put, Root.flush

    def noted_put(self: Root, rel: str, data: Data, **options: bool) -> str:
        order.append(rel)
        return put(self, rel, data, **options)

    def noted_flush(self: Root) -> None:
        order.append("flush")
        flush(self)

    monkeypatch.setattr(Root, "put", noted_put)
    monkeypatch.setattr(Root, "flush", noted_flush)
    finish(run_of_a_job)
    promise = order.index(MANIFEST)
    assert order[promise - 1 : promise + 2] == ["flush", MANIFEST, "flush"]
    assert not [rel for rel in order[promise + 2 :] if not rel.startswith(WORK)]


def test_the_same_bytes_put_again_are_no_fault(run_of_a_job: Root) -> None:
    Root(run_of_a_job.url()).put(zarr_states_shard(1), run_of_a_job.get(zarr_states_shard(1)))
    finish(run_of_a_job)
    assert elmo_store.open(run_of_a_job.url()).manifest.complete


@pytest.mark.slow
def test_what_a_kill_at_the_very_end_left_is_cleared_by_the_next_command(
    made: Made, embed: Command, out: Path
) -> None:
    shutil.copytree(made.zarr, out)
    for lease in (
        None,
        Lease(
            "dead", "me@here", replace(Process.here(), pid=2**22 + 1), time.time(), 45.0, True
        ),  # no process has such a number
        Lease("long ago", "them@there", Process("another machine", 1, "1"), 1e9, 45.0, False),
    ):
        for name in ("tasks.jsonl", "parts/00000.parquet"):
            Root(out).put(f"{WORK}/{name}", b"left")
        if lease is not None:
            acquire(Root(out), lease)
            Root(out).put_json(LAUNCHER_HEARTBEAT, {"run": lease.run, "said": lease.since})
        assert embed(out) == Exit.COMPLETE
        assert not (out / WORK).exists()
        assert not (out / LEASES).exists()
    Root(out).put(f"{WORK}/tasks.jsonl", b"of a run that lives")
    held_elsewhere(out)
    assert embed(out) == Exit.COMPLETE
    assert (out / WORK / "tasks.jsonl").exists()


def test_an_attempt_that_failed_is_forgotten_if_another_one_wrote_the_shard(
    run_of_a_job: Root,
) -> None:
    failed = Outcome(errors=("shard 3, writing: OSError: reset",))
    finish_stage.finish_job(
        [check(task, run_of_a_job) for task in check_tasks([failed], run_of_a_job)], run_of_a_job
    )
    assert elmo_store.open(run_of_a_job.url()).manifest.complete


def test_a_complete_store_says_what_computed_it_and_is_the_job_that_asked_for_such_devices(
    run_of_a_job: Root, embed: Command, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = read_manifest(run_of_a_job)
    finish(run_of_a_job)
    complete = read_manifest(Root(out))
    with pytest.raises(JobMismatchError, match="device"):
        is_same_job(
            Root(out), complete, replace(complete, job={**complete.job, "device": "cuda"}), []
        )
    capsys.readouterr()
    assert main(["info", str(out)]) == Exit.COMPLETE
    assert "computed in float32 on cpu\n" in capsys.readouterr().out
    assert "gpu" not in finish_stage.with_cards(there, ["cpu"]).job
    asked = replace(there, job={**there.job, "device": "cuda"})
    whole, half = "cuda NVIDIA A100, 64 lanes", "cuda NVIDIA A100, 32 lanes"
    halved = finish_stage.with_cards(asked, [whole, half])
    assert (halved.job["device"], halved.job["gpu"]) == (
        "cuda",
        "NVIDIA A100, 32 lanes; NVIDIA A100, 64 lanes",
    )
    is_same_job(Root(out), replace(halved, complete=True), asked, [])


@pytest.mark.slow
def test_overwrite_leaves_what_is_not_the_store_s(embed: Command, out: Path) -> None:
    assert embed(out, "--store", "both") == Exit.COMPLETE
    mine = [
        "notes.txt",
        "sentences/notes.txt",
        "states/part-x.parquet",
        "states.zarr/mine/c.txt",
        "plots/a.png",
        "_shards/x",
    ]
    for name in mine:
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    parts = [f"{folder}/part-00099.parquet" for folder in ("sentences", "states")]
    for old in (*parts, "indexes/ids/00099.parquet", "_shards/00099.json", "report.html"):
        (out / old).parent.mkdir(exist_ok=True)
        (out / old).write_bytes(b"of a larger store that stood here before")
    assert (
        embed(
            out, "--overwrite", "--store", "zarr", "--shard-rows", "128", "--input-format", "lines"
        )
        == Exit.COMPLETE
    )
    assert [name for name in mine if (out / name).read_bytes() != b"mine"] == []
    left = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} - set(mine)
    assert not {
        name for name in left if name.startswith("states/") or "99" in name or name == "report.html"
    }
    assert read_manifest(Root(out)).complete


def test_overwrite_that_may_not_remove_says_so(
    made: Made,
    embed: Command,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(made.zarr, out)

    def read_only(path: str, *_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", read_only)
        assert embed(out, "--overwrite") == Exit.BAD_LOCATION
    assert "can't be" in capsys.readouterr().err


def test_overwrite_removes_nothing_while_a_look_of_an_ended_run_may_count(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is given back, but a worker of it may have looked just before: what it puts by then is removed with the rest."""
    root, late, slept = Root("memory://overwritten"), "states.zarr/states/c/99/0/0", 0.0
    for rel in Root(made.zarr).list():
        root.put(rel, Root(made.zarr).get(rel))
    acquire(root, Lease.of_this_process("second", local=False, patience_seconds=9.0))

    def stands_still(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        root.put(late, b"by a worker of the first")

    monkeypatch.setattr("pipeline.jobs.output.time.sleep", stands_still)
    clear(owned(root, "second"))
    assert look_seconds(root) - 2 < slept <= look_seconds(root)
    assert root.list() == [LEASES + "/launcher.json", LEASE, MANIFEST]
    root.remove_tree()


@pytest.mark.parametrize("moment", ["before it looks at the lease", "before it gets its name"])
def test_a_writer_that_stood_still_while_its_output_was_taken_over_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whatever it was about to do: it looks after it has written, and what it had written by then is swept."""
    monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.05)
    root, theirs = owned(Root(tmp_path / "store"), "first"), Root(tmp_path / "store")
    acquire(theirs, Lease.of_this_process("first", local=True, patience_seconds=9.0))
    root.put("states/part-00000.parquet", b"by the first")

    def taken_over(*_: Any) -> None:
        monkeypatch.undo()
        acquire(
            theirs,
            Lease.of_this_process("second", local=True, patience_seconds=9.0),
            take_over=True,
            sleep=lambda _: None,
        )
        theirs.put("states/part-00000.parquet", b"by the second")
        time.sleep(0.1)  # longer than a look at the lease counts
        monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.05)

    sound = os.replace

    def stands_still(source: Any, target: Any) -> None:
        if Path(target).name == "part-00000.parquet":
            taken_over()
        sound(source, target)

    if moment == "before it gets its name":
        monkeypatch.setattr(os, "replace", stands_still)
    else:
        sound_write = local_disk._write

        def stops_once_it_has_written(path: str, data: Data, *, link: bool) -> None:
            sound_write(path, data, link=link)
            if "part-00000.parquet" in path:
                taken_over()

        monkeypatch.setattr(local_disk, "_write", stops_once_it_has_written)
    with pytest.raises(LeaseLostError):
        root.put("states/part-00000.parquet", b"by the first, late")
    assert theirs.get("states/part-00000.parquet") == b"by the second"
    assert not list(tmp_path.rglob(".writing-*"))


def test_a_late_writer_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the new run removed at its end, such as the scratch area, does not come back."""
    monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 1e9)
    root = owned(Root(tmp_path / "store"), "first")
    acquire(
        Root(tmp_path / "store"), Lease.of_this_process("first", local=True, patience_seconds=9.0)
    )
    root.put(MANIFEST, b"{}")
    sound = local_disk._write_in_folder

    def stands_still(path: str, data: Data | Path, *, link: bool) -> None:
        release(Root(tmp_path / "store"), "first")
        monkeypatch.setattr("transforms.runtime.owner.look_seconds", lambda _: 0.0)
        sound(path, data, link=link)

    monkeypatch.setattr(local_disk, "_write_in_folder", stands_still)
    with pytest.raises(LeaseLostError):
        root.put(START, b"{}")
    assert not (tmp_path / "store" / WORK).exists()
