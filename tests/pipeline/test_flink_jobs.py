"""What Flink's REST service is asked about a job, and to cancel it; against a server with its answers."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elmo_store.storage import failures
from elmo_store.storage.lease import (
    LAUNCHER_HEARTBEAT,
    LEASE,
    Lease,
    acquire,
    launcher_is_gone,
    put_heartbeat,
    read_lease,
)
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.jobs.output import LeaseTerms, adopted, take_lease
from pipeline.runners import flink as rest
from pipeline.runners.flink import PAGES, cancel, follow, page_of


class Flink(ThreadingHTTPServer):
    """Knows one job."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.state = "RUNNING"
        self.cancelled: list[str] = []

    @property
    def master(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: Flink

    def do_GET(self) -> None:
        job = {"jid": "a1", "name": "NAME", "state": self.server.state}
        answers = {
            "/jobs/overview": {"jobs": [job]},
            "/jobs/a1/exceptions": {"root-exception": "no slot"},
        }
        self.answer(answers[self.path])

    def do_PATCH(self) -> None:
        self.server.cancelled.append(self.path)
        self.answer({})

    def answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def flink() -> Iterator[Flink]:
    with Flink() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_job_is_shown_and_cancelled_while_it_runs(
    flink: Flink, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page_of(flink.master, "NAME_uuid") == f"{flink.master}/#/job/running/a1/overview"
    monkeypatch.setattr(rest, "LIST_SECONDS", 0.0)
    assert page_of(flink.master, "OTHER_uuid") == f"{flink.master}/#/overview"
    assert cancel(flink.master, "NAME_uuid")
    assert flink.cancelled == ["/jobs/a1?mode=cancel"]
    flink.state = "FINISHED"
    assert not cancel(flink.master, "NAME_uuid")
    assert len(flink.cancelled) == 1


def of_a_dead_command(root: Root, flink: Flink) -> LeaseTerms:
    """A lease whose launcher has ended and whose job is that of ``flink``; the terms of the same command, given again."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        process = Process.of(launcher.pid)
        launcher.kill()
    run = Lease.of_this_process("before", local=False, patience_seconds=60.0)
    acquire(root, replace(run, process=process))
    put_heartbeat(
        root,
        LAUNCHER_HEARTBEAT,
        "before",
        "NAME_uuid",
        f"{flink.master}{PAGES}job/running/a1/overview",
    )
    return LeaseTerms(local=False, alone=False, waits=True, take_over=False, flink=flink.master)


@pytest.mark.slow
@pytest.mark.parametrize("ours", [True, False])
def test_only_a_job_on_the_flink_that_the_command_names_is_cancelled(
    ours: bool, flink: Flink, tmp_path: Path
) -> None:
    """What an output says may come from anybody: no address of it is asked anything."""
    root = Root(tmp_path / "out")
    terms = replace(of_a_dead_command(root, flink), take_over=True)
    with take_lease(root, terms if ours else replace(terms, flink="http://127.0.0.1:1")):
        assert flink.cancelled == (["/jobs/a1?mode=cancel"] if ours else [])


def test_a_job_whose_command_is_gone_is_followed_while_it_runs_and_its_lease_given_back_once_it_has_ended(
    flink: Flink, tmp_path: Path
) -> None:
    root = Root(tmp_path / "out")
    terms = of_a_dead_command(root, flink)
    assert adopted(root, replace(terms, flink="http://127.0.0.1:1")) is None  # another Flink's
    assert adopted(root, replace(terms, take_over=True)) is None
    with adopted(root, terms) or pytest.fail("not followed") as holder:
        assert (holder.run, holder.job) == ("before", "NAME_uuid")
    terms = of_a_dead_command(root, flink)
    flink.state = "CANCELED"
    assert adopted(root, terms) is None
    assert read_lease(root) is None


def test_a_job_of_a_command_that_lives_is_not_followed(flink: Flink, tmp_path: Path) -> None:
    root = Root(tmp_path / "out")
    terms = of_a_dead_command(root, flink)
    run = read_lease(root)
    assert run is not None
    root.put_json(LEASE, asdict(replace(run, process=Process.here())))
    assert adopted(root, terms) is None
    assert read_lease(root) is not None


def test_a_launcher_of_another_machine_is_gone_when_its_heartbeat_stays_as_it_is(
    tmp_path: Path,
) -> None:
    root = Root(tmp_path / "out")
    here = Process.here()
    lease = replace(
        Lease.of_this_process("a", local=False, patience_seconds=60.0),
        process=replace(here, machine="another"),
    )
    waits: list[float] = []
    put_heartbeat(root, LAUNCHER_HEARTBEAT, "a")
    assert launcher_is_gone(root, lease, sleep=waits.append)
    assert sum(waits) == 30.0
    assert not launcher_is_gone(
        root, lease, sleep=lambda _: put_heartbeat(root, LAUNCHER_HEARTBEAT, "a")
    )


def test_what_flink_says_of_a_jobs_failure_is_raised(
    flink: Flink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "LIST_SECONDS", 0.0)
    flink.state = "FAILED"
    with pytest.raises(RuntimeError, match="no slot"):
        follow(flink.master, "NAME_uuid")
    flink.state = "FINISHED"
    assert follow(flink.master, "NAME_uuid")
    assert not follow(flink.master, "OTHER_uuid")


def test_a_job_manager_that_is_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "DEADLINE_SECONDS", 1.0)
    with pytest.raises(
        RuntimeError, match=r"no Flink answers at http://127\.0\.0\.1:1 .*: its JobManager is lost"
    ):
        follow("http://127.0.0.1:1", "NAME_uuid")
