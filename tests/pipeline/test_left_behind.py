"""What a command leaves that was killed while it tidied is removed by the same command; nothing of one that lives is."""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from elmo_store.storage import lease, process
from elmo_store.storage.data import TEMPORARY_PREFIX
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import Process, scratch_folder, temporary_tag
from elmo_store.storage.root import Root
from model.files.weights import BiLMWeights
from pipeline.jobs.output import clear, tidy
from pipeline.jobs.run import left_summary
from pipeline.main import main
from tests.pipeline.killed_tidying import KILLED, end_a_job
from tests.store.support import make_store
from transforms.runtime.work import MODEL, PLAN, SUMMARY
from transforms.stages.embed import load_weights

DEAD = Process(Process.here().machine, 2**22 + 1, "1").tag  # no process has this number


def names(folder: Path) -> set[str]:
    """Every file and folder below ``folder``."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_whatever_operation_a_job_is_killed_at_its_end_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(lease, "LOCAL_LOOK_SECONDS", 0.0)
    store = tmp_path / "store"
    make_store(str(store))
    clean = names(store)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.pipeline.killed_tidying"])
    left = []
    for n in range(200):
        child = context.Process(target=end_a_job, args=(str(store), waits, n))
        child.start()
        child.join()
        left.append(names(store) - clean)
        tidy(Root(store))  # what the same command does that finds the store complete
        assert names(store) == clean, f"killed at operation {n}"
        if child.exitcode != KILLED:
            assert child.exitcode == 0
            break
    assert n > 10
    assert not left[-1]
    assert any(found and not Root(store).list("_work") for found in left)


def test_half_written_files_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(str(store))
    clean = names(store)
    old = time.time() - 2 * process.ABANDONED_SECONDS
    elsewhere = "0" * 8 + ".1.1-"
    own = temporary_tag()
    for folder in (store, store / "_lease"):
        folder.mkdir(exist_ok=True)
        for tag in (DEAD, own, elsewhere):
            (folder / f"{TEMPORARY_PREFIX}{tag}00-x").write_bytes(b"half")
        (folder / f"{TEMPORARY_PREFIX}an-older-name").write_bytes(b"half")
        os.utime(folder / f"{TEMPORARY_PREFIX}an-older-name", (old, old))
    tidy(Root(store))
    left = {Path(name).name for name in names(store) - clean if TEMPORARY_PREFIX in name}
    assert len(left) == 2  # this process is alive, and of the other machine nobody knows
    assert not any(DEAD in name or "older" in name for name in left)


def test_what_a_killed_report_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp" / f"elmo-store-{DEAD}0000-x").mkdir(parents=True)
    (tmp_path / "tmp" / "elmo-store-of-a-user").mkdir()
    store = tmp_path / "store"
    make_store(str(store), lengths=(40,) * 6, parts=(6,))
    half = store / f"{TEMPORARY_PREFIX}{DEAD}0000-report.html~"
    half.write_bytes(b"half")
    other = store / f"{TEMPORARY_PREFIX}{DEAD}0000-other"
    other.write_bytes(b"no report's")
    assert main(["report", str(store)]) == 0
    assert not half.exists()
    assert other.exists()
    with scratch_folder() as mine, scratch_folder():
        assert mine.exists()  # of this process, which lives
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["elmo-store-of-a-user"]


def test_temporary_folders_name_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    """So that those of a killed one are removed by the next."""
    make_store("memory://left-behind", lengths=(40,) * 6, parts=(6,))
    Root("memory://left-behind").put(MODEL, tiny_model.read_bytes())
    fingerprint = BiLMWeights.load_safetensors(tiny_model).fingerprint
    made = []

    class Named(tempfile.TemporaryDirectory[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(Path(self.name).name)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryDirectory", Named)
    load_weights(Root("memory://left-behind"), fingerprint)
    assert len(made) == 1
    assert all(name.startswith(f"elmo-store-{Process.here().tag}") for name in made)
    assert list(tmp_path.iterdir()) == []


def test_overwriting_removes_the_folders_that_a_killed_one_left_empty(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(str(store))
    (store / "states.zarr" / "states" / "c" / "0" / "0" / "0").unlink()  # and then it was killed
    (store / "of a user").mkdir()
    clear(Root(store))
    assert names(store) == {"elmo_store.json", "of a user"}


def test_a_launcher_that_wakes_late_leaves_the_work_of_another_run_alone(tmp_path: Path) -> None:
    root = make_store(str(tmp_path / "store")).root
    root.put_json(SUMMARY, {"bytes": 1})
    root.put(PLAN, b"of a run that has begun since")
    with LeaseHolder.take(root, "another run"):
        assert left_summary(root) == {"bytes": 1}
        assert root.get(PLAN) == b"of a run that has begun since"
    assert left_summary(root) == {"bytes": 1}
    assert not (tmp_path / "store" / "_work").exists()
