"""What Flink's REST service is asked about a job: why it does not move, and to cancel it; against a server with its answers."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability.api import beam_job_api_pb2

from elmo_store.storage.lease import LAUNCHER_HEARTBEAT, Lease, acquire, put_heartbeat
from elmo_store.storage.root import Root
from pipeline.jobs.output import LeaseTerms, take_lease
from pipeline.runners.beam_options import pipeline_options
from pipeline.runners.flink import CONSOLE, cancel_if_there, stalled_on_flink
from pipeline.runners.submission import SubmittedJob

TASKS = ("created", "scheduled", "deploying", "initializing", "running", "canceling", "finished", "canceled", "failed")


class Flink(ThreadingHTTPServer):
    """Knows one job, ``tasks`` of which are in each state."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tasks: dict[str, int] = {}
        self.state = "RUNNING"
        self.cancelled: list[str] = []

    @property
    def master(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: Flink

    def do_GET(self) -> None:
        tasks = dict.fromkeys(TASKS, 0) | self.server.tasks
        job = {"jid": "a1", "name": "NAME", "state": self.server.state, "tasks": tasks | {"total": sum(tasks.values())}}
        cluster = {"taskmanagers": 1, "slots-total": 1, "slots-available": 0}
        self.answer({"jobs": [job]} if self.path == "/jobs/overview" else cluster)

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


def test_a_job_stands_still_where_tasks_wait_for_slots_and_none_runs(flink: Flink) -> None:
    flink.tasks = {"scheduled": 2, "finished": 7, "created": 3}
    why = stalled_on_flink(flink.master, "NAME_uuid")
    assert why is not None
    assert why.startswith(
        "2 tasks wait for a slot on Flink, and none runs: 1 TaskManagers with 1 slots are there, 0 of them free"
    )
    flink.tasks = {"scheduled": 2, "running": 1}
    assert stalled_on_flink(flink.master, "NAME_uuid") is None
    flink.tasks = {"created": 3, "finished": 7}  # between two stages
    assert stalled_on_flink(flink.master, "NAME_uuid") is None
    flink.tasks = {"scheduled": 2}
    assert stalled_on_flink(flink.master, "OTHER_uuid") is None


def test_the_job_that_a_console_shows_is_cancelled_while_it_runs(flink: Flink) -> None:
    console = f"http://{flink.master}{CONSOLE}"
    assert cancel_if_there(console, "NAME_uuid")
    assert flink.cancelled == ["/jobs/a1?mode=cancel"]
    flink.state = "FINISHED"
    assert not cancel_if_there(console, "NAME_uuid")
    assert not cancel_if_there(None, "NAME_uuid")
    assert not cancel_if_there(f"http://127.0.0.1:1{CONSOLE}", "NAME_uuid")  # nobody answers
    assert len(flink.cancelled) == 1


@pytest.mark.parametrize("ours", [True, False])
def test_only_a_job_on_the_flink_that_the_command_names_is_cancelled(ours: bool, flink: Flink, tmp_path: Path) -> None:
    """What an output says may come from anybody: no address of it is asked anything."""
    console, root = f"http://{flink.master}{CONSOLE}", Root(tmp_path / "out")
    acquire(root, Lease.of_this_process("before", local=False, patience_seconds=60.0))
    put_heartbeat(root, LAUNCHER_HEARTBEAT, "before", "NAME_uuid", console)
    terms = LeaseTerms(local=False, waits=True, take_over=True, console=console if ours else f"http://127.0.0.1:1{CONSOLE}")
    with take_lease(root, terms):
        assert flink.cancelled == (["/jobs/a1?mode=cancel"] if ours else [])


class Failed:
    """What Beam's client has of a job that failed: its service's messages, of which it raises the last."""

    def __init__(self, *said: str) -> None:
        messages = [beam_job_api_pb2.JobMessage(message_text=text) for text in said]
        self._messages = [beam_job_api_pb2.JobMessagesResponse(message_response=message) for message in messages]

    def wait_until_finish(self) -> None:
        raise RuntimeError(self._messages[-1].message_response.message_text)


def test_a_workers_program_that_can_not_be_run_is_named() -> None:
    last = "java.io.IOException: error=2, No such file or directory"
    cause = 'Cannot run program "w": error=2, No such file or directory'
    options = pipeline_options(["--runner=FlinkRunner"])
    with pytest.raises(RuntimeError, match=re.escape(cause)):
        SubmittedJob(Failed(f"Failed\n\tat X\nCaused by: java.io.IOException: {cause}\n\tat Y", last), options).wait()
    with pytest.raises(RuntimeError, match="ValueError: bad"):
        SubmittedJob(Failed("ValueError: bad"), options).wait()
