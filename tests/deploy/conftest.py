"""A narrow model, a corpus of two hundred shards, the local run's bytes, and commands in processes of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from model.files.registry import random_weights
from pipeline.cli.exit_codes import Exit
from tests.clusters.artefacts import missing_tools
from tests.clusters.engine import ClusterType, cluster_of, pool_options
from tests.clusters.processes import free_port, service, worker_environment
from tests.deploy.held_worker import Gate
from tests.pipeline.conftest import TINY
from tests.pipeline.support import digests, heed_signals

Arguments = Callable[..., list[str]]
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    ",",
    "naïve",
    "dogs",
    "ran",
    "東京",
    "away",
    "from",
    "it",
    "quickly",
    ".",
]


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model.safetensors`` and ``corpus/`` of 13,000 tokens in 24 files."""
    folder = tmp_path_factory.mktemp("deploy")
    random_weights(TINY).save_safetensors(folder / "model.safetensors")
    (folder / "corpus").mkdir()
    for k in range(24):
        lines = [
            " ".join(WORDS[(i * 7 + j * j + k) % 16] for j in range((i * 5 + k) % 27))
            for i in range(42)
        ]
        (folder / "corpus" / f"{k:03d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def embed_arguments(job_folder: Path) -> Arguments:
    """``arguments(output, *more)``: the command line of the same job on every runner, of 200 shards."""

    def arguments(output: Path, *more: str) -> list[str]:
        shape = ["--input-format", "lines", "--shard-rows", "64", "--store", "both", "--quiet"]
        model = str(job_folder / "model.safetensors")
        return [
            "embed",
            str(job_folder / "corpus"),
            "--output",
            str(output),
            "--model",
            model,
            *shape,
            *more,
        ]

    return arguments


def started(
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = ("-m", "elmo_store"),
) -> "subprocess.Popen[str]":
    """``elmo-store`` in a process and process group of its own, ``env`` added to its environment."""
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        env={**worker_environment(), **(env or {})}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )  # fmt: skip


def ran(arguments: Sequence[str], timeout: float = 600) -> "subprocess.CompletedProcess[str]":
    """``elmo-store`` to its end in a process of its own."""
    process = started(arguments)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(list(arguments), process.returncode, out, err)


@pytest.fixture(scope="session")
def local_store(embed_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's store, by the local run."""
    output = tmp_path_factory.mktemp("local") / "store"
    done = ran(embed_arguments(output))
    assert done.returncode == Exit.COMPLETE, done.stderr
    return output


@pytest.fixture(scope="session")
def local_bytes(local_store: Path) -> dict[str, str]:
    """SHA-256 of everything that the local run writes, by path."""
    return digests(local_store)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Holds the workers of a job back, until the test's end at the latest."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


def job_service(process: "subprocess.Popen[str]") -> psutil.Process:
    """The job service that a launcher started; Spark's driver."""
    return next(
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.name() == "java"
    )


@contextmanager
def cluster_here(kind: type[ClusterType], folder: Path, n_members: int) -> Iterator[ClusterType]:
    """`cluster_of`; where the engine can't be started its tests are skipped."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"{kind.engine} can't be started: {problem}")
    with cluster_of(kind, folder, n_members) as cluster:
        yield cluster


@contextmanager
def worker_pool(program: str) -> Iterator[list[str]]:
    """A pool of workers on this machine, each a process of ``program``; Beam's options for it."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "apache_beam.runners.worker.worker_pool_main",
        f"--service_port={port}",
    ]
    with service("pool", [*command, f"--container_executable={program}"]) as running:
        running.wait_for_port(port)
        yield pool_options(f"localhost:{port}")
