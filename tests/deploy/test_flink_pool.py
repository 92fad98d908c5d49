"""A pool of workers on a real Flink cluster of one TaskManager, as the workers of several would have the same names."""

import os
import signal
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import Exit
from tests.clusters.flink import FlinkCluster
from tests.deploy.conftest import Arguments, cluster_here, started, worker_pool
from tests.deploy.held_worker import Gate
from tests.pipeline.support import digests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_pools_worker_that_dies_costs_a_retry_and_is_told_of(
    embed_arguments: Arguments, local_bytes: dict[str, str], gate: Gate, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with (
        cluster_here(FlinkCluster, tmp_path / "cluster", 1) as cluster,
        worker_pool(gate.program) as pool,
    ):
        process = started(embed_arguments(store, *cluster.beam_options(), *pool))
        (worker,) = gate.wait_held(1, process)
        os.kill(worker, signal.SIGKILL)
        gate.open()
        _, err = process.communicate(timeout=600)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
    assert f"process {worker}) was killed by SIGKILL" in err
