"""A narrow model, a corpus of a few hundred shards, the local run's bytes, and one Flink cluster for every test that needs it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from elmo_store.format.markers import marked_shards
from elmo_store.storage.root import Root
from model.files.registry import random_weights
from model.options import BiLMOptions
from pipeline.cli.exit_codes import Exit
from tests.clusters.artefacts import missing_tools
from tests.clusters.engine import Cluster, cluster_of, pool_options
from tests.clusters.flink import FlinkCluster
from tests.clusters.processes import Service, free_port, service, worker_environment
from tests.hostile.faulty import NOTHING_PASSES, faulty_way
from tests.pipeline.conftest import TINY
from tests.pipeline.support import digests, heed_signals, remote_digests

Arguments = Callable[..., list[str]]
N_TASK_MANAGERS = 2
SLOW_MODEL = replace(TINY, dim=2048, projection_dim=64)
WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "naïve", "dogs", "ran", "東京", "away", "from", "it", "quickly", "."]


def made(folder: Path, model: BiLMOptions, n_lines: int) -> Path:
    """``folder`` with ``model.safetensors`` and ``corpus/``, 24 files of so many lines."""
    random_weights(model).save_safetensors(folder / "model.safetensors")
    (folder / "corpus").mkdir()
    for k in range(24):
        lines = [" ".join(WORDS[(i * 7 + j * j + k) % 16] for j in range((i * 5 + k) % 27)) for i in range(n_lines)]
        (folder / "corpus" / f"{k:03d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def arguments_of(folder: Path, shard_rows: int) -> Arguments:
    """``arguments(output, *more)``: the command line of the job on what `made` left in ``folder``."""

    def arguments(output: Path, *more: str) -> list[str]:
        shape = ["--input-format", "lines", "--shard-rows", str(shard_rows), "--store", "both", "--quiet"]
        model = str(folder / "model.safetensors")
        return ["embed", str(folder / "corpus"), "--output", str(output), "--model", model, *shape, *more]

    return arguments


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model.safetensors`` and ``corpus/`` of 13,000 tokens."""
    return made(tmp_path_factory.mktemp("deploy"), TINY, 42)


@pytest.fixture(scope="session")
def embed_arguments(job_folder: Path) -> Arguments:
    """The same job on every runner, of 200 shards."""
    return arguments_of(job_folder, 64)


@pytest.fixture(scope="session")
def long_arguments(tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    """A job of 256 shards whose calls of the engine take seconds: time to kill what computes in the middle of one."""
    return arguments_of(made(tmp_path_factory.mktemp("long"), SLOW_MODEL, 420), 512)


# `elmo-store` that waits 5 s for a storage instead of 5 minutes, and looks at it as often.
IMPATIENT = ("-c", """
import sys
from elmo_store.__main__ import main
from elmo_store.storage import lease
from pipeline.jobs import output
output.MAX_OUTAGE_SECONDS, lease.HEARTBEAT_SECONDS = 5.0, 2.0
sys.exit(main())
""")  # fmt: skip


def started(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, command: Sequence[str] = ("-m", "elmo_store")
) -> "subprocess.Popen[str]":
    """``elmo-store`` in a process and process group of its own, ``env`` added to its environment."""
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        env={**worker_environment(), **(env or {})}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )  # fmt: skip


def ran(arguments: Sequence[str], timeout: float = 240) -> "subprocess.CompletedProcess[str]":
    """``elmo-store`` to its end in a process of its own."""
    process = started(arguments)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(list(arguments), process.returncode, out, err)


def made_here(arguments: Arguments, output: Path) -> Path:
    """``output``, the store of a job, by the local run."""
    done = ran(arguments(output))
    assert done.returncode == Exit.COMPLETE, done.stderr
    return output


@pytest.fixture(scope="session")
def local_store(embed_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The short job's store."""
    return made_here(embed_arguments, tmp_path_factory.mktemp("local") / "store")


@pytest.fixture(scope="session")
def local_bytes(local_store: Path) -> dict[str, str]:
    """SHA-256 of everything that the local run writes, by path."""
    return digests(local_store)


@pytest.fixture(scope="session")
def long_bytes(long_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`local_bytes` of the long job."""
    return digests(made_here(long_arguments, tmp_path_factory.mktemp("local") / "long"))


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """A real cluster of one JobManager and two TaskManagers."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"Flink can't be started: {problem}")
    with cluster_of(FlinkCluster, tmp_path_factory.mktemp("flink"), N_TASK_MANAGERS) as cluster:
        yield cluster


def winner_of_two(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Of two launchers of the same job that start together one is refused; the other one, which goes on."""
    both = [started(arguments), started(arguments)]
    wait_until("one launcher's end", lambda: any(one.poll() is not None for one in both))
    loser, winner = sorted(both, key=lambda one: one.poll() is None)
    _, err = loser.communicate()
    assert loser.returncode == Exit.REFUSED, err
    assert " belongs to run " in err
    return winner


def job_service(process: "subprocess.Popen[str]") -> psutil.Process:
    """The job service that a launcher started; Spark's driver."""
    return next(child for child in psutil.Process(process.pid).children() if child.name() == "java")


def check_outages(command: Sequence[str], root: Root, is_left: Callable[[], bool], local_bytes: Mapping[str, str]) -> None:
    """A bucket that stays away ends the job, which the same command continues; one that is gone for 15 s is waited for.

    ``command``: all but the output ``root``, on S3; ``is_left``: whether the engine still has anything of a job.
    """
    with faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, 0.0, 0) as way:
        options = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{way.server_address[1]}"}
        given = ["--output", str(root), "--storage-options", json.dumps(options)]

        def without_bucket(*more: str, program: Sequence[str] = ("-m", "elmo_store")) -> "subprocess.Popen[str]":
            """A job that had its bucket until a few of its shards were written."""
            n_shards = len(marked_shards(root))
            process = started([*command, *given, *more], command=program)
            wait_until("a few shards", lambda: len(marked_shards(root)) >= n_shards + 5 or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            way.rate = NOTHING_PASSES
            return process

        process = without_bucket(program=IMPATIENT)
        driver = job_service(process)
        _, err = process.communicate(timeout=180)
        assert process.returncode == Exit.INCOMPLETE, err
        assert re.search(rf"^elmo-store embed: incomplete: .*{root} could not be reached for 5 s;.*\n\Z", err, re.MULTILINE), err
        assert "Traceback" not in err
        assert not driver.is_running()
        wait_until("an engine without it", lambda: not is_left(), 90)
        way.rate = 0.0
        process = without_bucket("--take-over")
        time.sleep(15.0)
        way.rate = 0.0
        _, err = process.communicate(timeout=300)
    assert process.returncode == Exit.COMPLETE, err
    assert "Traceback" not in err
    assert remote_digests(root) == local_bytes


def workers(parent: Service) -> list[tuple[psutil.Process, psutil.Process]]:
    """(what watches it, worker) of what starts them: a TaskManager, a pool."""
    pairs = []
    for watcher in psutil.Process(parent.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            pairs += [(watcher, worker) for worker in watcher.children()]
    return pairs


def writers(store: Path) -> set[int]:
    """Numbers of the processes that have written shards."""
    markers = (json.loads(path.read_text()) for path in (store / "_shards").glob("[0-9]*.json"))
    return {int(marker["stats"]["worker"].rpartition(":")[2]) for marker in markers}


def wait_for_workers(store: Path, n: int, process: "subprocess.Popen[str]") -> None:
    """Return when so many processes, one after the other or at once, have written shards."""
    wait_until(f"{n} processes that compute", lambda: len(writers(store)) >= n or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def worker_at_work(
    store: Path, parents: Sequence[Service], process: "subprocess.Popen[str]"
) -> tuple[psutil.Process, psutil.Process]:
    """(what watches it, worker) of one below ``parents`` that lives and has written shards, as soon as there is one."""
    pairs: list[tuple[psutil.Process, psutil.Process]] = []

    def is_there() -> bool:
        written = writers(store)
        pairs[:] = [pair for parent in parents for pair in workers(parent) if pair[1].pid in written]
        return bool(pairs) or process.poll() is not None

    wait_until("a worker that has written shards", is_there)
    assert pairs, process.communicate()
    return pairs[0]


def check_a_pools_worker_dies(kind: type[Cluster], arguments: Arguments, local_bytes: Mapping[str, str], folder: Path) -> None:
    """A job whose workers a pool starts, one of which is killed in the middle of a call: it costs a retry, and is told of."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"{kind.engine} can't be started: {problem}")
    store, port = folder / "store", free_port()
    with cluster_of(kind, folder / "cluster", 1) as cluster:
        options = cluster.beam_options()
        pool = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
        with service("pool", [*pool, "--container_executable=elmo-store-worker"]) as running:
            running.wait_for_port(port)
            process = started(arguments(store, *options, *pool_options(f"localhost:{port}")))
            _, worker = worker_at_work(store, [running], process)
            worker.kill()
            _, err = process.communicate(timeout=300)
    assert process.returncode == Exit.COMPLETE, err
    assert digests(store) == local_bytes
    assert f"process {worker.pid}) was killed by SIGKILL" in err


def markers(store: Path) -> int:
    """Shards that are written."""
    return len(list((store / "_shards").glob("[0-9]*.json")))


def wait_for_shards(store: Path, n: int, process: "subprocess.Popen[str]") -> None:
    """Return when so many are written, and the job goes on."""
    wait_until(f"{n} shards", lambda: markers(store) >= n or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def wait_until(what: str, true: Callable[[], bool], seconds: float = 180) -> None:
    """Return when ``true()``; AssertionError if the time is up before."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not in {seconds:.0f} s"
        time.sleep(0.05)
