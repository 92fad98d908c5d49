"""The same command on a real Spark standalone cluster: bytes, what is lost half way, what is taken over, what is left behind."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from tests.clusters.artefacts import missing_tools
from tests.clusters.engine import cluster_of
from tests.clusters.spark import SparkCluster
from tests.deploy.conftest import (
    Arguments,
    check_a_pools_worker_dies,
    check_outages,
    job_service,
    markers,
    started,
    wait_for_shards,
    wait_until,
    winner_of_two,
    writers,
)
from tests.pipeline.support import digests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A real standalone cluster of one master and two workers."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"Spark can't be started: {problem}")
    with cluster_of(SparkCluster, tmp_path_factory.mktemp("spark"), 2) as cluster:
        yield cluster


def below(spark: SparkCluster, words: str) -> list[psutil.Process]:
    """Processes that the cluster's workers have started, directly or not, with ``words`` in their command lines."""
    members = [psutil.Process(worker.process.pid) for worker in spark.members if worker.process.poll() is None]
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
    return below(spark, "elmo-store-worker")


def kill_python_worker(store: Path, spark: SparkCluster) -> None:
    """As the system does when memory is short, one that has written shards."""
    at_work: list[psutil.Process] = []

    def is_there() -> bool:
        at_work[:] = [process for process in python_workers(spark) if process.pid in writers(store)]
        return bool(at_work)

    wait_until("a worker that has written shards", is_there)
    at_work[0].kill()


def kill_executor(spark: SparkCluster) -> None:
    """One that computes."""
    at_work = {ancestor for worker in python_workers(spark) for ancestor in worker.parents()}
    next(executor for executor in executors(spark) if executor in at_work).kill()


def kill_machine(spark: SparkCluster) -> None:
    """A worker with its executor and the executor's Python worker; nothing replaces it."""
    next(worker for worker in spark.members if worker.process.poll() is None).kill()


def test_every_byte_is_the_local_runs_and_a_second_launcher_is_refused(
    spark: SparkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    _, err = winner_of_two(embed_arguments(store, *spark.beam_options())).communicate(timeout=300)
    assert digests(store) == local_bytes, err


def test_what_dies_in_the_middle_of_a_call_costs_its_share_and_no_byte(
    spark: SparkCluster, long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = started(long_arguments(store, *spark.beam_options()))
    n_kept, known = 0, set[psutil.Process]()
    for kill in (partial(kill_python_worker, store), kill_executor, kill_machine):
        wait_for_shards(store, n_kept + 5, process)
        known |= set(python_workers(spark))
        kill(spark)
        n_kept = markers(store)
        assert n_kept < sum("states/part" in name for name in long_bytes)  # not after the work
    _, err = process.communicate(timeout=400)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == long_bytes
    assert "was killed by SIGKILL" in err
    assert "the engine lost executor" in err
    assert psutil.wait_procs(list(known), timeout=30)[1] == []  # none computes on without its executor
    spark.add_member()
    spark.wait_registered(2)


def test_a_pools_worker_that_dies_costs_a_retry_and_is_told_of(
    long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    check_a_pools_worker_dies(SparkCluster, long_arguments, long_bytes, tmp_path)


def test_a_job_that_is_taken_over_or_whose_launcher_is_killed_ends_and_leaves_nothing_behind(
    spark: SparkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    command = embed_arguments(store, *spark.beam_options())
    first = started(command)
    wait_until("its application", lambda: bool(spark.get("json/")["activeapps"]) or first.poll() is not None)
    second = started([*command, "--take-over"])
    _, err = first.communicate(timeout=120)
    assert first.returncode == Exit.REFUSED, err  # and its executors make room for the other job's
    wait_until("a shard", lambda: markers(store) >= 1 or second.poll() is not None)
    driver = job_service(second)
    second.kill()
    second.communicate()
    driver.wait(timeout=30)
    wait_until("an empty cluster", lambda: not spark.get("json/")["activeapps"] and not executors(spark), 60)
    assert python_workers(spark) == []
    assert all(app["name"].startswith("elmo-store-embed-") for app in spark.get("json/")["completedapps"])
    third = started(command)
    _, err = third.communicate(timeout=300)
    assert third.returncode == Exit.COMPLETE, err
    assert "for a heartbeat" not in err  # nothing of the job goes on without its command
    assert digests(store) == local_bytes


def test_a_bucket_that_stays_away_ends_the_job_and_one_gone_for_15_s_is_waited_for(
    spark: SparkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], s3_url: str, tmp_path: Path
) -> None:
    def is_left() -> bool:
        return bool(spark.get("json/")["activeapps"] or executors(spark) or python_workers(spark))

    command = [*embed_arguments(Path("unused")), *spark.beam_options()]
    check_outages(command, Root(f"{s3_url}/spark-{tmp_path.name}"), is_left, local_bytes)
