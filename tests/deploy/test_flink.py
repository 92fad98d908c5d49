"""The same command on a real Flink cluster of two TaskManagers: bytes, spread, a lost machine, Ctrl-C, what is refused."""

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.coders import VarIntCoder

from elmo_store.errors import LeaseLostError
from elmo_store.format.layout import zarr_states_shard
from elmo_store.format.manifest import read_manifest
from elmo_store.storage.lease import read_lease
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.runners.flink import cancel
from tests.clusters.artefacts import missing_tools, resolve
from tests.clusters.engine import environment_options
from tests.clusters.flink import FlinkCluster
from tests.clusters.processes import Service
from tests.deploy.conftest import (
    N_TASK_MANAGERS,
    Arguments,
    check_a_pools_worker_dies,
    check_outages,
    markers,
    ran,
    started,
    wait_for_workers,
    wait_until,
    winner_of_two,
    worker_at_work,
    workers,
)
from tests.pipeline.support import digests
from transforms.runtime.owner import owned
from transforms.runtime.results import NAMESPACE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def newest_job(flink: FlinkCluster) -> str:
    jobs = flink.get("jobs/overview")["jobs"]
    return str(max(jobs, key=lambda job: job["start-time"])["jid"])


def embedding_task_managers(flink: FlinkCluster, job: str) -> set[str]:
    """TaskManagers whose attempts of the embedding stage finished."""
    for vertex in flink.get(f"jobs/{job}")["vertices"]:
        if "{Shards" in vertex["name"]:
            shares = flink.get(f"jobs/{job}/vertices/{vertex['id']}/taskmanagers")["taskmanagers"]
            return {share["taskmanager-id"] for share in shares if share["metrics"]["read-records"]}
    raise AssertionError("no stage embeds")


def counters(flink: FlinkCluster, job: str) -> dict[str, int]:
    """Our Beam counters as Flink's REST service has them, in an accumulator, once a stage has ended."""
    (ours,) = flink.get(f"jobs/{job}/accumulators")["user-task-accumulators"]
    sums: dict[str, int] = {}
    for info in json.loads(ours["value"])["metrics"]["attempted"]:
        if info["labels"].get("NAMESPACE") == NAMESPACE and info["type"] == "beam:metrics:sum_int64:v1":
            value = VarIntCoder().decode(base64.b64decode(info["payload"]))
            sums[info["labels"]["NAME"]] = sums.get(info["labels"]["NAME"], 0) + value
    return sums


def test_every_byte_is_the_local_runs_every_task_manager_embeds_and_a_second_launcher_is_refused(
    flink: FlinkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    winner = winner_of_two(embed_arguments(store, *flink.beam_options()))
    lease = read_lease(Root(store))
    assert lease is not None
    _, err = winner.communicate(timeout=300)
    assert winner.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
    with pytest.raises(LeaseLostError):  # a worker of it that wakes late
        owned(Root(store), lease.run).put(zarr_states_shard(1), b"late")
    assert read_manifest(Root(store)).job["device"] == "cpu"  # found out by the workers
    job = newest_job(flink)
    assert len(embedding_task_managers(flink, job)) == N_TASK_MANAGERS
    assert re.fullmatch(rf"elmo-store-embed-[-a-z0-9]+-store-{lease.run[:8]}", flink.get(f"jobs/{job}")["name"])
    assert counters(flink, job)["tokens"] == counters(flink, job)["tokens_read"] == read_manifest(Root(store)).sizes.tokens
    logs = [(flink.folder / f"TaskManager-{number}.log").read_text("utf-8") for number in range(N_TASK_MANAGERS)]
    assert all(re.search(r"\S+:\d+: shards \d+ to \d+, [\d,]+ tokens, [\d,]+ tokens/s", log) for log in logs)
    noise = [line for line in err.splitlines() if "\tat " in line or "Waiting for grpc" in line]
    assert noise == []


def test_pooled_vectors_are_made_by_the_cluster_to_the_bytes_of_this_process_also_after_a_launcher_was_killed(
    flink: FlinkCluster, local_store: Path, tmp_path: Path
) -> None:
    (tmp_path / "w.json").write_text('{"w": [0.1, 0.5, -0.2], "gamma": 1.5}')
    command = ["mix", str(local_store), "--weights", str(tmp_path / "w.json"), "--pool", "mean", "--output"]
    assert ran([*command, str(tmp_path / "here")]).returncode == Exit.COMPLETE
    killed = started([*command, str(tmp_path / "there"), *flink.beam_options()])
    wait_until("a worker", lambda: any(map(workers, alive(flink))) or killed.poll() is not None)
    killed.kill()
    killed.communicate()
    done = ran([*command, str(tmp_path / "there"), *flink.beam_options()])  # at once: nothing of the first counts
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert re.fullmatch(r"elmo-store-mix-[-a-z0-9]+-there-[0-9a-f]{8}", flink.get(f"jobs/{newest_job(flink)}")["name"])
    there, here = ({path.name: path.read_bytes() for path in (tmp_path / at / "vectors").iterdir()} for at in ("there", "here"))
    assert there == here != {}


def alive(flink: FlinkCluster) -> list[Service]:
    """TaskManagers that were not killed."""
    return [manager for manager in flink.members if manager.process.poll() is None]


def test_workers_that_die_in_the_middle_of_a_call_cost_a_retry_each_and_are_told_of(
    flink: FlinkCluster, long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    store, script = tmp_path / "store", tmp_path / "losing"
    command = shlex.join([sys.executable, "-m", "tests.deploy.lost_device", str(tmp_path / "lost")])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    process = started(long_arguments(store, *flink.beam_options(), *environment_options(str(script))))
    wait_for_workers(store, N_TASK_MANAGERS, process)
    assert (tmp_path / "loading").exists()  # one of them is a third attempt, long before Beam's 3 minutes
    assert (tmp_path / "lost").exists()
    _, worker = worker_at_work(store, alive(flink), process)
    worker.kill()  # as the kernel does where memory is short
    worker.wait(10)
    watcher, worker = worker_at_work(store, alive(flink), process)  # the other one: nothing else has written shards
    watcher.kill()
    worker.wait(10)
    assert markers(store) < sum("states/part" in name for name in long_bytes)  # not after the work
    _, err = process.communicate(timeout=300)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == long_bytes
    assert "ended with exit status 70" in err
    killed = r"was killed by SIGKILL after \d+ s, \d\.\d GB of memory at most: out of memory\?; the engine tries its work again"
    assert re.search(killed, err)
    wait_until("the last worker's end", lambda: not any(map(workers, alive(flink))), 90)


def test_lost_task_managers_cost_their_share_and_where_none_is_left_the_launcher_says_so(
    flink: FlinkCluster, long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = started(long_arguments(store, *flink.beam_options()))
    wait_for_workers(store, N_TASK_MANAGERS, process)
    lost, survivor = alive(flink)
    lost.kill()  # and nothing takes its place
    n_shards = sum("states/part" in name for name in long_bytes)
    wait_until("its share elsewhere", lambda: markers(store) > 0.75 * n_shards or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    survivor.kill()
    assert markers(store) < n_shards
    assert process.stderr is not None
    said = iter(process.stderr.readline, "")
    assert any("none is left: the job waits for another one" in line for line in said)
    for _ in range(N_TASK_MANAGERS):
        flink.add_member()
    _, err = process.communicate(timeout=300)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == long_bytes
    flink.wait_registered(N_TASK_MANAGERS)
    # Of tasks that were cancelled while their worker started, as the last TaskManager came, too.
    wait_until("the last worker's end", lambda: not any(map(workers, alive(flink))), 90)


@pytest.mark.parametrize("fails", [False, True])
def test_the_command_of_a_launcher_that_was_killed_follows_its_job_and_submits_what_that_leaves(
    flink: FlinkCluster, long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path, fails: bool
) -> None:
    store = tmp_path / "store"
    command = long_arguments(store, *flink.beam_options())
    process = started(command)
    _, worker = worker_at_work(store, alive(flink), process)
    worker.suspend()  # so that the job is not over before it is followed
    process.kill()
    process.communicate()
    job = newest_job(flink)
    process = started(command)
    assert process.stderr is not None
    assert any("the job goes on: following it" in line for line in iter(process.stderr.readline, ""))
    worker.resume()
    if fails:
        assert cancel(f"http://{flink.master}", flink.get(f"jobs/{job}")["name"])
    _, err = process.communicate(timeout=400)
    assert process.returncode == Exit.COMPLETE, err
    assert ("submitting the rest" in err) == fails
    assert (newest_job(flink) != job) == fails
    assert digests(store) == long_bytes
    assert not (store / "_lease").exists()
    assert not (store / "_work").exists()


def test_a_run_that_takes_over_cancels_the_job_of_a_launcher_that_was_killed(
    flink: FlinkCluster, long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = started(long_arguments(store, *flink.beam_options()))
    _, worker = worker_at_work(store, alive(flink), process)
    worker.suspend()  # so that the job is not over before it is taken over
    process.kill()
    process.communicate()
    job = newest_job(flink)
    assert flink.get(f"jobs/{job}")["state"] == "RUNNING"
    process = started(long_arguments(store, *flink.beam_options(), "--take-over"))
    assert process.stderr is not None
    assert any("cancelled job" in line for line in iter(process.stderr.readline, ""))
    worker.resume()
    _, err = process.communicate(timeout=300)
    assert process.returncode == Exit.COMPLETE, err
    assert flink.get(f"jobs/{job}")["state"] == "CANCELED"
    assert digests(store) == long_bytes


def test_ctrl_c_cancels_the_job_on_the_cluster_and_the_same_command_continues(
    flink: FlinkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = started(embed_arguments(store, *flink.beam_options()))
    wait_until("a shard", lambda: markers(store) >= 1 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == Exit.INCOMPLETE, err
    job = newest_job(flink)
    assert f"cancelling job {flink.get(f'jobs/{job}')['name']}" in err
    wait_until("the job's end", lambda: flink.get(f"jobs/{job}")["state"] == "CANCELED", 60)
    wait_until("the workers' end", lambda: not any(map(workers, alive(flink))), 90)
    assert not read_manifest(Root(store)).complete
    written = {path: path.stat().st_mtime_ns for path in (store / "_shards").glob("[0-9]*.json")}
    done = ran(embed_arguments(store, *flink.beam_options()))
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert digests(store) == local_bytes
    assert written == {path: path.stat().st_mtime_ns for path in written}


def test_tasks_that_fail_together_as_those_of_a_worker_that_dies_count_once(repo_dir: Path) -> None:
    if (problem := missing_tools()) is not None:
        pytest.skip(f"Flink's own code can't be asked: {problem}")
    jars = os.pathsep.join(map(str, resolve(FlinkCluster.pom)))
    program, folder = repo_dir / "tests" / "deploy" / "Restarts.java", repo_dir / "deploy" / "flink"
    command = ["java", "-cp", jars, str(program), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "true\n", done.stderr


def test_a_program_of_the_workers_that_is_missing_is_named(
    flink: FlinkCluster, embed_arguments: Arguments, tmp_path: Path
) -> None:
    done = ran(embed_arguments(tmp_path / "store", *flink.beam_options(), *environment_options("no-such-worker")))
    assert done.returncode == Exit.INCOMPLETE, done.stderr
    assert 'Cannot run program "no-such-worker"' in done.stderr


def test_a_pools_worker_that_dies_costs_a_retry_and_is_told_of(
    long_arguments: Arguments, long_bytes: dict[str, str], tmp_path: Path
) -> None:
    check_a_pools_worker_dies(FlinkCluster, long_arguments, long_bytes, tmp_path)


def test_a_bucket_that_stays_away_ends_the_job_and_one_gone_for_15_s_is_waited_for(
    flink: FlinkCluster, embed_arguments: Arguments, local_bytes: dict[str, str], s3_url: str, tmp_path: Path
) -> None:
    def is_left() -> bool:
        return flink.get(f"jobs/{newest_job(flink)}")["state"] != "CANCELED" or any(map(workers, alive(flink)))

    command = [*embed_arguments(Path("unused")), *flink.beam_options()]
    check_outages(command, Root(f"{s3_url}/flink-{tmp_path.name}"), is_left, local_bytes)
