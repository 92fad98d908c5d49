"""An executor of Spark is ended with its worker, any other engine's process is not."""

import signal
import subprocess
import sys

import pytest

from deploy.cluster.executor import end_executor
from transforms.runtime.work import BROKEN_EXIT

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
    ("dies", "ended"), [("os.kill(os.getpid(), 9)", True), (f"os._exit({BROKEN_EXIT})", True), ("os._exit(1)", False)]
)
def test_an_executor_ends_when_its_worker_dies_and_stays_when_it_raised(dies: str, ended: bool) -> None:
    command = [sys.executable, "-c", STARTS.format(dies=f"lambda: {dies}"), next(iter(CLASSES))]
    done = subprocess.run(command, timeout=60, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == (-signal.SIGKILL if ended else 0)
