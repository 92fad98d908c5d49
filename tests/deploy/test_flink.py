"""The same command on a real Flink cluster of two TaskManagers: bytes, spread, faults of all that takes part, what is refused."""

import base64
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
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
from tests.clusters.processes import Service, wait_until
from tests.deploy.conftest import Arguments, cluster_here, job_service, ran, started
from tests.deploy.held_worker import DEVICE_LOST, FIRST_LIMIT, KILLED_LOADING, NO_LIMIT, Gate
from tests.hostile.faulty import NOTHING_PASSES, faulty_way
from tests.pipeline.support import digests, remote_digests
from transforms.runtime.owner import owned
from transforms.runtime.results import NAMESPACE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
N_TASK_MANAGERS = 2
NEARLY_ALL = 170  # of 206 shards: more than one TaskManager's share
OUTAGE_SECONDS = 5.0
# `elmo-store` that waits 5 s for a storage instead of 5 minutes, and looks at it as often.
IMPATIENT = ("-c", """
import sys
from elmo_store.__main__ import main
from elmo_store.storage import lease
from pipeline.jobs import output
output.MAX_OUTAGE_SECONDS, lease.HEARTBEAT_SECONDS = 5.0, 2.0
sys.exit(main())
""")  # fmt: skip


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """A real cluster of one JobManager and two TaskManagers."""
    with cluster_here(FlinkCluster, tmp_path_factory.mktemp("flink"), N_TASK_MANAGERS) as cluster:
        yield cluster


def alive(flink: FlinkCluster) -> list[Service]:
    """TaskManagers that were not killed."""
    return [manager for manager in flink.members if manager.process.poll() is None]


def workers(flink: FlinkCluster) -> list[psutil.Process]:
    """What the TaskManagers have started: Beam's workers, and what watches each."""
    found: list[psutil.Process] = []
    for manager in alive(flink):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found += psutil.Process(manager.process.pid).children(recursive=True)
    return found


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What a command says on its stderr, up to a line with ``words``; AssertionError if it ends before."""
    assert process.stderr is not None
    lines = []
    for line in iter(process.stderr.readline, ""):
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def winner_of_two(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Of two launchers of the same job that start together one is refused; the other one, which goes on."""
    both = [started(arguments), started(arguments)]
    wait_until("one launcher's end", lambda: any(one.poll() is not None for one in both))
    loser, winner = sorted(both, key=lambda one: one.poll() is None)
    _, err = loser.communicate()
    assert loser.returncode == Exit.REFUSED, err
    assert " belongs to run " in err
    return winner


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
        if (
            info["labels"].get("NAMESPACE") == NAMESPACE
            and info["type"] == "beam:metrics:sum_int64:v1"
        ):
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
    _, err = winner.communicate(timeout=600)
    assert winner.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
    with pytest.raises(LeaseLostError):  # a worker of it that wakes late
        owned(Root(store), lease.run).put(zarr_states_shard(1), b"late")
    assert read_manifest(Root(store)).job["device"] == "cpu"  # found out by the workers
    job = newest_job(flink)
    assert len(embedding_task_managers(flink, job)) == N_TASK_MANAGERS
    assert re.fullmatch(rf"elmo-store-embed-{lease.run[:8]}", flink.get(f"jobs/{job}")["name"])
    assert (
        counters(flink, job)["tokens"]
        == counters(flink, job)["tokens_read"]
        == read_manifest(Root(store)).sizes.tokens
    )
    noise = [line for line in err.splitlines() if "\tat " in line or "Waiting for grpc" in line]
    assert noise == []


def test_pooled_vectors_are_made_by_the_cluster_to_the_bytes_of_this_process_also_after_a_launcher_was_killed(
    flink: FlinkCluster, local_store: Path, tmp_path: Path
) -> None:
    (tmp_path / "w.json").write_text('{"w": [0.1, 0.5, -0.2], "gamma": 1.5}')
    command = [
        "mix",
        str(local_store),
        "--weights",
        str(tmp_path / "w.json"),
        "--pool",
        "mean",
        "--output",
    ]
    assert ran([*command, str(tmp_path / "here")]).returncode == Exit.COMPLETE
    there = [
        *command,
        str(tmp_path / "there"),
        *(given for given in flink.beam_options() if given != "--threads=1"),
    ]
    killed = started(there)
    wait_until("a worker", lambda: bool(workers(flink)) or killed.poll() is not None)
    killed.kill()
    killed.communicate()
    done = ran(there)  # at once: nothing of the first counts
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert re.fullmatch(
        "elmo-store-mix-[0-9a-f]{8}", flink.get(f"jobs/{newest_job(flink)}")["name"]
    )
    made, here = (
        {path.name: path.read_bytes() for path in (tmp_path / at / "vectors").iterdir()}
        for at in ("there", "here")
    )
    assert made == here != {}


def test_a_job_outlives_workers_task_managers_and_its_launcher_which_its_rerun_follows(
    flink: FlinkCluster,
    embed_arguments: Arguments,
    local_bytes: dict[str, str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    command = embed_arguments(store, *flink.beam_options(), *environment_options(gate.program))
    first = started(command)
    worker, *_ = gate.wait_held(N_TASK_MANAGERS, first)
    os.kill(worker, signal.SIGKILL)  # as the kernel does where memory is short
    gate.wait_held(1, first)
    first.kill()
    _, said = first.communicate()
    job, second = newest_job(flink), started(command)
    said += read_until(second, "the job goes on: following it")
    lost, survivor = alive(flink)
    lost.kill()  # and nothing takes its place
    gate.let_write(NO_LIMIT, NEARLY_ALL)
    gate.wait_held(1, second)
    survivor.kill()
    said += read_until(second, "none is left: the job waits for another one")
    gate.open()
    for _ in range(N_TASK_MANAGERS):
        flink.add_member()
    _, err = second.communicate(timeout=600)
    assert second.returncode == Exit.COMPLETE, err
    assert newest_job(flink) == job
    assert digests(store) == local_bytes
    assert not (store / "_lease").exists()
    assert not (store / "_work").exists()
    killed = r"was killed by SIGKILL after \d+ s, \d\.\d GB of memory at most: out of memory\?; the engine tries its work again"
    assert re.search(killed, said)
    flink.wait_registered(N_TASK_MANAGERS)
    # Of tasks that were cancelled while their worker started, as the last TaskManager came, too.
    wait_until("the last worker's end", lambda: not workers(flink), 90)


def test_a_job_is_followed_cancelled_submitted_anew_taken_over_and_interrupted_and_the_same_command_completes_it(
    flink: FlinkCluster,
    embed_arguments: Arguments,
    local_bytes: dict[str, str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    def state() -> str:
        return str(flink.get(f"jobs/{job}")["state"])

    store, faults = tmp_path / "store", (KILLED_LOADING, DEVICE_LOST)
    gate.add(*faults)
    command = embed_arguments(store, *flink.beam_options(), *environment_options(gate.program))
    first = started(command)
    gate.wait_held(N_TASK_MANAGERS, first)  # after those two faults: long before Beam's 3 minutes
    assert not any(map(gate.is_left, faults))
    first.kill()
    _, said = first.communicate()
    job, second = newest_job(flink), started(command)
    said += read_until(second, "the job goes on: following it")
    assert cancel(f"http://{flink.master}", flink.get(f"jobs/{job}")["name"])
    said += read_until(second, "submitting the rest")
    assert "ended with exit status 70" in said
    gate.wait_held(1, second)  # what is left may be one worker's
    assert newest_job(flink) != job
    job = newest_job(flink)
    second.send_signal(signal.SIGSTOP)
    third = started([*command, "--take-over"])
    read_until(third, "cancelled job")
    wait_until("the end of the second's job", lambda: state() == "CANCELED")
    gate.wait_held(0, third)  # a worker of the second's that was late
    gate.wait_held(1, third)
    second.send_signal(signal.SIGCONT)  # it wakes after it was replaced
    _, err = second.communicate(timeout=600)
    assert second.returncode == Exit.REFUSED, err
    job = newest_job(flink)
    assert state() == "RUNNING"  # its own
    third.send_signal(signal.SIGINT)
    _, err = third.communicate(timeout=600)
    assert third.returncode == Exit.INCOMPLETE, err
    assert f"cancelling job {flink.get(f'jobs/{job}')['name']}" in err
    wait_until("the job's end", lambda: state() == "CANCELED", 60)
    wait_until("the workers' end", lambda: not workers(flink), 90)
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
    done = ran(
        embed_arguments(
            tmp_path / "store", *flink.beam_options(), *environment_options("no-such-worker")
        )
    )
    assert done.returncode == Exit.INCOMPLETE, done.stderr
    assert 'Cannot run program "no-such-worker"' in done.stderr


def test_a_bucket_that_stays_away_ends_the_job_and_one_gone_for_a_while_is_waited_for(
    flink: FlinkCluster,
    embed_arguments: Arguments,
    local_bytes: dict[str, str],
    gate: Gate,
    s3_url: str,
) -> None:
    root = Root(f"{s3_url}/flink-{gate.folder.parent.name}")
    with faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, 0.0, 0) as way:
        options = {
            "key": "test",
            "secret": "test",
            "endpoint_url": f"http://127.0.0.1:{way.server_address[1]}",
        }
        command = [
            *embed_arguments(Path("unused")),
            *flink.beam_options(),
            *environment_options(gate.program),
        ]
        command += ["--output", str(root), "--storage-options", json.dumps(options)]

        def without_bucket(process: "subprocess.Popen[str]", n_workers: int) -> None:
            """Take the bucket away from workers that have written some shards and go on."""
            gate.wait_held(n_workers, process)
            way.rate = NOTHING_PASSES
            gate.open()

        first = started(command, command=IMPATIENT)
        without_bucket(first, N_TASK_MANAGERS)
        driver = job_service(first)
        _, err = first.communicate(timeout=600)
        assert first.returncode == Exit.INCOMPLETE, err
        assert re.search(
            rf"^elmo-store embed: incomplete: .*{root} could not be reached for 5 s;.*\n\Z",
            err,
            re.MULTILINE,
        ), err
        assert "Traceback" not in err
        assert not driver.is_running()
        ended = newest_job(flink)
        wait_until("the job's end", lambda: flink.get(f"jobs/{ended}")["state"] == "CANCELED", 90)
        wait_until("the workers' end", lambda: not workers(flink), 90)
        way.rate = 0.0
        gate.let_write(FIRST_LIMIT)
        second = started([*command, "--take-over"])
        without_bucket(second, 1)
        time.sleep(OUTAGE_SECONDS)
        way.rate = 0.0
        _, err = second.communicate(timeout=600)
    assert second.returncode == Exit.COMPLETE, err
    assert "Traceback" not in err
    assert remote_digests(root) == local_bytes
