"""Storage on a bad day, fault by fault; `tests/hostile/test_chaos.py` draws them at random."""

from pathlib import Path

import pytest

from benchmarks.chaos.filesystem import ChaosFileSystem, StorageError, register
from benchmarks.chaos.job import SmallJob
from elmo_store.storage.lease import LEASE
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.store.support import make_store
from transforms.runtime.work import PLAN, PROBLEM, SUMMARY


def test_a_finished_job_leaves_nothing_though_every_removal_and_the_summary_fail_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(0, str(tmp_path / "counts"))
    monkeypatch.setattr("transforms.runtime.job_root.LONGEST_PAUSE_SECONDS", 0.0)
    job = SmallJob.make(tmp_path / "input", n_files=1, n_lines=8)
    failed: set[str] = set()

    def fails_at_first(self: ChaosFileSystem, operation: str, kinds: tuple[str, ...]) -> str:
        at_the_door = operation.endswith((PLAN, PROBLEM))  # whose failures are told, with exit code 3
        if operation not in failed and not at_the_door and (operation.startswith("removing") or operation.endswith(SUMMARY)):
            failed.add(operation)
            if "done and failed" in kinds and len(failed) % 2:
                return "done and failed"
            raise StorageError(operation)
        return ""

    monkeypatch.setattr("benchmarks.chaos.filesystem.ChaosFileSystem._fate", fails_at_first)
    output = tmp_path / "store"
    arguments = job.arguments(f"chaos://{output}", "zarr", "--storage-options", '{"rate": 0.0}')
    assert main(arguments) == Exit.COMPLETE
    assert any(operation.endswith(LEASE) for operation in failed)
    assert any(operation.startswith("removing") and operation.endswith(SUMMARY) for operation in failed)
    assert [path for room in ("_work", "_lease") for path in (output / room).rglob("*") if path.is_file()] == []
    for rel in ("_work/left", "_lease/launcher.json"):
        (output / rel).parent.mkdir(exist_ok=True)
        (output / rel).write_text("{}")
    failed.clear()
    assert main(arguments) == Exit.COMPLETE
    assert [path for room in ("_work", "_lease") for path in (output / room).rglob("*") if path.is_file()] == []


def test_storage_that_fails_anywhere_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(str(tmp_path / "store"))

    def gone(self: Root, prefix: str = "") -> dict[str, int]:
        raise StorageError("the mount is gone")

    monkeypatch.setattr(Root, "sizes", gone)
    assert main(["info", str(tmp_path / "store")]) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert "the mount is gone" in said
    assert "Traceback" not in said
