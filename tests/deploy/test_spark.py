"""The same command on a real Spark standalone cluster: bytes, what is lost half way, what is taken over, what is left behind."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.cli.exit_codes import Exit
from pipeline.runners.beam_options import SPARK_CACHE_MILLIS
from tests.clusters.engine import environment_options
from tests.clusters.processes import wait_until
from tests.clusters.spark import SparkCluster
from tests.deploy.conftest import Arguments, cluster_here, job_service, ran, started
from tests.deploy.held_worker import Gate
from tests.pipeline.support import digests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
N_WORKERS = 2
KEPT = f"--environment_cache_millis={SPARK_CACHE_MILLIS}"  # as the command has it for its own program of a worker


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A real standalone cluster of one master and two workers."""
    with cluster_here(SparkCluster, tmp_path_factory.mktemp("spark"), N_WORKERS) as cluster:
        yield cluster


def below(spark: SparkCluster, words: str) -> list[psutil.Process]:
    """Processes that the cluster's workers have started, directly or not, with ``words`` in their command lines."""
    members = [
        psutil.Process(worker.process.pid)
        for worker in spark.members
        if worker.process.poll() is None
    ]
    processes = []
    for child in (child for member in members for child in member.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if words in " ".join(child.cmdline()):
                processes.append(child)
    return processes


def executors(spark: SparkCluster) -> list[psutil.Process]:
    return below(spark, "CoarseGrainedExecutorBackend")


def python_workers(spark: SparkCluster) -> list[psutil.Process]:
    """Beam's workers, and what watches each."""
    return [*below(spark, "elmo-store-worker"), *below(spark, "held_worker")]


def kill_executor(spark: SparkCluster) -> None:
    """One that computes."""
    at_work = {ancestor for worker in python_workers(spark) for ancestor in worker.parents()}
    next(executor for executor in executors(spark) if executor in at_work).kill()


def kill_machine(spark: SparkCluster) -> None:
    """A worker with its executor and the executor's Python worker; nothing replaces it."""
    next(worker for worker in spark.members if worker.process.poll() is None).kill()


def test_what_dies_in_the_middle_of_a_call_costs_its_share_and_no_byte(
    spark: SparkCluster,
    embed_arguments: Arguments,
    local_bytes: dict[str, str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    process = started(
        embed_arguments(store, *spark.beam_options(), *environment_options(gate.program), KEPT)
    )
    worker, *_ = gate.wait_held(N_WORKERS, process)
    known = set(python_workers(spark))
    os.kill(worker, signal.SIGKILL)  # as the kernel does where memory is short
    gate.wait_held(1, process)
    known |= set(python_workers(spark))
    kill_executor(spark)
    gate.wait_held(1, process)
    known |= set(python_workers(spark))
    kill_machine(spark)
    gate.open()
    _, err = process.communicate(timeout=600)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
    assert "was killed by SIGKILL" in err
    assert "the engine lost executor" in err
    assert (
        psutil.wait_procs(list(known), timeout=30)[1] == []
    )  # none computes on without its executor
    spark.add_member()
    spark.wait_registered(N_WORKERS)


def test_a_job_that_is_taken_over_or_whose_launcher_is_killed_ends_and_leaves_nothing_behind(
    spark: SparkCluster,
    embed_arguments: Arguments,
    local_bytes: dict[str, str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    held = embed_arguments(store, *spark.beam_options(), *environment_options(gate.program), KEPT)
    first = started(held)
    gate.wait_held(N_WORKERS, first)
    second = started([*held, "--take-over"])
    _, err = first.communicate(timeout=600)
    assert first.returncode == Exit.REFUSED, err  # and its executors make room for the other job's
    gate.wait_held(1, second)  # what is left may be one worker's
    driver = job_service(second)
    second.kill()
    second.communicate()
    driver.wait(timeout=60)
    wait_until(
        "an empty cluster",
        lambda: not spark.get("json/")["activeapps"] and not executors(spark),
        60,
    )
    assert python_workers(spark) == []
    assert all(
        app["name"].startswith("elmo-store-embed-") for app in spark.get("json/")["completedapps"]
    )
    third = ran(embed_arguments(store, *spark.beam_options()))
    assert third.returncode == Exit.COMPLETE, third.stderr
    assert "for a heartbeat" not in third.stderr  # nothing of the job goes on without its command
    assert digests(store) == local_bytes
