"""Storage on a bad day, fault by fault and at random."""

import hashlib
import json
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elmo_store.storage.lease import LEASE
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.hostile.faulty import ChaosFileSystem, StorageError, faulty_way, register
from tests.hostile.jobs import OBJECTS, Command, SmallJob, contents, faults_of
from tests.store.support import make_store
from transforms.runtime.work import PLAN, PROBLEM, SUMMARY

RUNS_AT_MOST = 25


def test_a_finished_job_leaves_nothing_though_every_removal_and_the_summary_fail_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(0, str(tmp_path / "counts"))
    monkeypatch.setattr("elmo_store.storage.failures.LONGEST_PAUSE_SECONDS", 0.0)
    job = SmallJob.make(tmp_path / "input", n_files=1, n_lines=8)
    failed: set[str] = set()

    def fails_at_first(self: ChaosFileSystem, operation: str, kinds: tuple[str, ...]) -> str:
        at_the_door = operation.endswith(
            (PLAN, PROBLEM)
        )  # whose failures are told, with exit code 3
        if (
            operation not in failed
            and not at_the_door
            and (operation.startswith("removing") or operation.endswith(SUMMARY))
        ):
            failed.add(operation)
            if "done and failed" in kinds and len(failed) % 2:
                return "done and failed"
            raise StorageError(operation)
        return ""

    monkeypatch.setattr("tests.hostile.faulty.ChaosFileSystem._fate", fails_at_first)
    output = tmp_path / "store"
    arguments = job.arguments(f"chaos://{output}", "zarr", "--storage-options", '{"rate": 0.0}')
    assert main(arguments) == Exit.COMPLETE
    assert any(operation.endswith(LEASE) for operation in failed)
    assert any(
        operation.startswith("removing") and operation.endswith(SUMMARY) for operation in failed
    )
    assert [
        path
        for room in ("_work", "_lease")
        for path in (output / room).rglob("*")
        if path.is_file()
    ] == []
    for rel in ("_work/left", "_lease/launcher.json"):
        (output / rel).parent.mkdir(exist_ok=True)
        (output / rel).write_text("{}")
    failed.clear()
    assert main(arguments) == Exit.COMPLETE
    assert [
        path
        for room in ("_work", "_lease")
        for path in (output / room).rglob("*")
        if path.is_file()
    ] == []


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallJob, dict[str, str]]:
    """A job, and the bytes of its store where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("whole")
    job = SmallJob.make(folder / "input")
    assert main(job.arguments(folder / "store", "both")) == Exit.COMPLETE
    return job, contents(folder / "store")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_on_storage_that_fails_ends_with_the_same_bytes(
    whole: tuple[SmallJob, dict[str, str]], tmp_path: Path
) -> None:
    """One operation of twenty fails, fails after it was done, or is late; the command is repeated until it completes."""
    (job, wanted), output, failed = whole, tmp_path / "store", Counter[str]()
    for attempt in range(RUNS_AT_MOST):
        (counts := tmp_path / "counts").write_text("{}")
        arguments = job.arguments(
            f"chaos://{output}", "both", "--storage-options", '{"rate": 0.05}'
        )
        command = Command(
            arguments,
            tmp_path / f"log-{attempt}",
            partial(register, RUNS_AT_MOST + attempt, str(counts)),
        )
        code, said = command.wait(), command.output()
        failed += Counter(json.loads(counts.read_text()))
        if code == Exit.COMPLETE:
            break
        assert code in (Exit.BAD_LOCATION, Exit.INCOMPLETE), said
        assert "Traceback (most recent call last)" not in said
        assert re.search(r"shard|part|task|output|store|elmo_store\.json", said), said
    assert code == Exit.COMPLETE, said
    assert contents(output) == wanted
    assert faults_of(str(output)) == []
    assert failed["failed"]
    assert failed["done and failed"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_on_a_network_that_cuts_ends_with_the_same_bytes(
    whole: tuple[SmallJob, dict[str, str]], s3_url: str, tmp_path: Path
) -> None:
    """Requests and answers are cut in their middle, connections refused; answers that were lost are asked for again."""
    job, wanted = whole
    with faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, 0.02, seed=1) as proxy:
        faulty = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.server_address[1]}"}}
        # The server that commands are forked from was started before there was an S3 server.
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        for attempt in range(RUNS_AT_MOST):
            arguments = job.arguments(
                f"{s3_url}/store", "both", "--storage-options", json.dumps(faulty)
            )
            command = Command(
                arguments, tmp_path / f"log-{attempt}", partial(_set_environment, settings)
            )
            if (code := command.wait(600)) == Exit.COMPLETE:
                break
    assert code == Exit.COMPLETE, command.output()
    root = Root(f"{s3_url}/store")
    names = [rel for rel in root.list() if rel.partition("/")[0] in OBJECTS]
    assert {rel: hashlib.sha256(root.get(rel)).hexdigest() for rel in names} == wanted
    assert all(proxy.counts[kind] for kind in ("cut in the request", "cut in the answer"))


def _set_environment(settings: dict[str, str]) -> None:
    os.environ.update(settings)
