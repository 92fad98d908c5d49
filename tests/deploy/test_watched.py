"""A worker that dies is told of in its job's output by the process that watches it, and to the launcher's user from there.

An executor of Spark is ended with its worker, any other engine's process is not.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import UserDict
from pathlib import Path

import psutil
import pytest

from deploy.cluster.watched import end_executor
from elmo_store.format.layout import WORK
from elmo_store.storage.lease import Lease, acquire, release
from elmo_store.storage.root import Root
from pipeline.jobs.run import explain, left_summary
from pipeline.progress.troubles import told
from tests.clusters.processes import wait_until
from tests.store.support import make_store
from transforms.runtime.ended import WorkerEnd, introduce, put_end, read_ends
from transforms.runtime.owner import owned
from transforms.runtime.work import BROKEN_EXIT, READ, WATCHER
from transforms.stages.finish import _end_run

WORKER = """
import os, pickle, sys, time
from deploy.cluster.watched import run_watched
from elmo_store.storage.root import Root
from transforms.runtime.ended import introduce

def work():
    introduce(Root(sys.argv[1]))
    print(os.getpid(), flush=True)
    {ends}

sys.exit(run_watched(work))
"""
KILLED = WorkerEnd("node-7", 123, -signal.SIGKILL, 61.0, 4_100_000_000, 1e9)


def watched(root: Root, ends: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WORKER.format(ends=ends), str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL after"),
        (f"os._exit({BROKEN_EXIT})", BROKEN_EXIT, f"ended with exit status {BROKEN_EXIT} after"),
    ],
)
def test_a_worker_that_dies_is_told_of(tmp_path: Path, ends: str, status: int, said: str) -> None:
    root = Root(tmp_path)
    process = watched(root, ends)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == status
    wait_until("the word of it", lambda: bool(read_ends(root)), 30)
    (end,) = read_ends(root).values()
    assert f"process {out.split()[0]}) {said}" in str(end)
    assert end.peak_bytes > 1e6


@pytest.mark.slow
def test_a_worker_that_its_engine_ends_goes_with_what_watches_it_and_without_a_word(
    tmp_path: Path,
) -> None:
    root = Root(tmp_path)
    with watched(root, "time.sleep(60)") as process:
        assert process.stdout is not None
        worker = psutil.Process(int(process.stdout.readline()))
        process.terminate()
        worker.wait(10)
    assert process.returncode == -signal.SIGTERM
    process = watched(root, "sys.exit(1)")  # Beam's own error, which the engine tells
    out, _ = process.communicate(
        timeout=30
    )  # its output is open until it ends: a write to a closed one is an error by itself
    assert out
    assert process.returncode == 1
    time.sleep(0.5)
    assert read_ends(root) == {}


def test_a_worker_that_dies_is_told_of_though_its_engine_ends_at_once_what_it_started(
    tmp_path: Path,
) -> None:
    root = Root(tmp_path)
    with watched(root, "time.sleep(60)") as process:
        assert process.stdout is not None
        worker = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGSTOP)  # as a busy machine does
        worker.kill()
        process.kill()
    wait_until("the word of it", lambda: bool(read_ends(root)), 30)
    (end,) = read_ends(root).values()
    assert f"process {worker.pid}) was killed by SIGKILL" in str(end)


FORGOTTEN = """
import sys, time
from deploy.cluster.watched import run_watched
from elmo_store.storage.root import Root
from transforms.runtime import owner

def work():
    owner.HEARTBEAT_SECONDS = 0.1
    print(owner.owned(Root(sys.argv[1]), "run").size("_lease"), flush=True)
    time.sleep(60)

sys.exit(run_watched(work))
"""


def test_a_worker_that_its_engine_forgot_ends_after_its_run(tmp_path: Path) -> None:
    root = Root(tmp_path)
    acquire(root, Lease.of_this_process("run", local=False, patience_seconds=60))
    with subprocess.Popen(
        [sys.executable, "-c", FORGOTTEN, str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() != ""  # at work
        time.sleep(1.0)
        assert process.poll() is None
        release(root, "run")
        assert process.wait(30) == 0
    assert read_ends(root) == {}


def test_two_threads_that_begin_together_introduce_their_worker_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path)
    reading, writing = os.pipe()

    class Environment(UserDict[str, str]):
        n_asked = 0

        def __getitem__(self, name: str) -> str:
            value = str(super().__getitem__(name))
            self.n_asked += 1
            if self.n_asked == 1:  # the other thread comes between this one's look and its removal
                introduce(root)
            return value

    monkeypatch.setattr(os, "environ", Environment({WATCHER: str(writing)}))
    introduce(root)
    with os.fdopen(reading, "rb") as stream:
        assert str(pickle.load(stream)) == str(root)
        assert stream.read() == b""


def end(root: Root) -> None:
    put_end(pickle.dumps(root), KILLED)


def test_a_death_in_a_jobs_last_seconds_is_there_for_the_launcher_to_tell(tmp_path: Path) -> None:
    root = make_store(str(tmp_path / "store")).root  # which is complete by then
    acquire(root, Lease.of_this_process("run", local=False, patience_seconds=60))
    end(root)
    root.put(f"{READ}/00000.json", b"x")
    _end_run(owned(root, "run"), waits=True)
    assert list(root.list(WORK)) == list(read_ends(root)) != []
    left_summary(root)
    assert list(root.list(WORK)) == []


def test_a_job_that_failed_names_the_worker_that_died_and_not_the_call_that_was_cancelled(
    tmp_path: Path,
) -> None:
    end(Root(tmp_path))
    cancelled = RuntimeError(
        "Pipeline BeamApp failed in state FAILED: StatusRuntimeException: CANCELLED: call already cancelled"
    )
    died = "a worker on node-7 (process 123) was killed by SIGKILL after 61 s, 4.1 GB of memory at most: out of memory?"
    assert explain(Root(tmp_path), cancelled) == died
    own = RuntimeError(
        "failed: Traceback (most recent call last):\n  File x\nValueError: bad\n\tat java.x"
    )
    assert explain(Root(tmp_path), own) == f"ValueError: bad\n{died}"


def test_a_death_and_lost_machines_are_told_once_while_the_job_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(Root(tmp_path))
    looks: list[int] = []

    def members() -> dict[str, str]:
        looks.append(1)
        if len(looks) == 1:
            raise KeyError("what an engine of another version does not answer")
        if len(looks) > 5:
            return {}
        return {"tm-0": "node-1", "tm-1": "node-2"} if len(looks) < 4 else {"tm-0": "node-1"}

    with told(Root(tmp_path), members, seconds=0.01):
        wait_until("looks", lambda: len(looks) > 8, 30)
    err = capsys.readouterr().err
    assert err.count("killed by SIGKILL") == 1
    assert err.count("the engine lost tm-1 on node-2; its tasks are tried again elsewhere") == 1
    assert (
        err.count("the engine lost tm-0 on node-1; none is left: the job waits for another one")
        == 1
    )


STARTS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import os; from deploy.cluster.watched import run_watched; run_watched({dies})"])
"""
CLASSES = {
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": True,
    "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend": True,
    "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend": True,
    "org.apache.spark.deploy.worker.Worker": False,
    "org.apache.beam.runners.spark.SparkJobServerDriver": False,  # local[*]: the driver is the executor
    "org.apache.flink.runtime.taskexecutor.TaskManagerRunner": False,
}


@pytest.mark.parametrize(("main_class", "ended"), CLASSES.items())
def test_only_an_executor_ends_with_its_worker(main_class: str, ended: bool) -> None:
    command = [sys.executable, "-c", "input(0)", main_class]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"0"  # it is the command by now
        assert end_executor(process.pid) is ended
        process.communicate(b"\n", timeout=30)
    assert process.returncode == (-signal.SIGKILL if ended else 0)
    assert not end_executor(process.pid)


@pytest.mark.parametrize(
    ("dies", "ended"),
    [("os.kill(os.getpid(), 9)", True), (f"os._exit({BROKEN_EXIT})", True), ("os._exit(1)", False)],
)
def test_an_executor_ends_when_its_worker_dies_and_stays_when_it_raised(
    dies: str, ended: bool
) -> None:
    command = [sys.executable, "-c", STARTS.format(dies=f"lambda: {dies}"), next(iter(CLASSES))]
    done = subprocess.run(command, timeout=60, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == (-signal.SIGKILL if ended else 0)
