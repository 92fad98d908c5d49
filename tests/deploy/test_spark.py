"""The same command on a real Spark standalone cluster: bytes, and a lost executor."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.cluster.artefacts import missing_tools
from deploy.cluster.engine import cluster_of
from deploy.spark.cluster import SparkCluster
from pipeline.cli.exit_codes import Exit
from tests.deploy.conftest import Arguments, markers, wait_until, winner_of_two
from tests.pipeline.support import digests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A real standalone cluster of one master and two workers."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"Spark can't be started: {problem}")
    with cluster_of(SparkCluster, tmp_path_factory.mktemp("spark"), 2) as cluster:
        yield cluster


def executors(spark: SparkCluster) -> list[psutil.Process]:
    """Executor JVMs of the cluster's workers."""
    below = [child for worker in spark.members for child in psutil.Process(worker.process.pid).children(recursive=True)]
    return [process for process in below if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())]


def test_every_byte_is_the_local_runs_also_when_an_executor_dies_half_way_and_a_second_launcher_is_refused(
    spark: SparkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = winner_of_two(embed_arguments(store, *spark.beam_options()))
    wait_until("a few shards", lambda: markers(store) >= 5 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    there = executors(spark)
    assert len(there) == 2  # one a worker
    there[0].kill()
    assert markers(store) < sum("states/part" in name for name in local_bytes)  # not after the work
    _, err = process.communicate(timeout=400)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
