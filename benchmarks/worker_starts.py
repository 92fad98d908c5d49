"""What a worker costs that is started anew for each stage of a job on an engine, and what the death of one costs.

    python -m benchmarks.worker_starts [--engine spark|flink] [--tokens N]

Needs Java and Maven (docs/deploy.md). Two machines of one core, the default model; the cluster is up before the clock starts.
Processor seconds are those of the machines: their JVMs and Python workers.
"""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.support import COMMAND, SAMPLE_SECONDS, Table, machine, options_of, working_folder
from benchmarks.texts import made_up_text, write_lines
from deploy.cluster.engine import Cluster, cluster_of
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster
from deploy.spark.cluster import SparkCluster

ENGINES: dict[str, type[Cluster]] = {"spark": SparkCluster, "flink": FlinkCluster}
CACHES: dict[str, Sequence[str]] = {"as it is": [], "none kept": ["--environment_cache_millis=1"]}
SHARDS_BEFORE = 5  # written when a worker is killed


@dataclass
class Run:
    """Of one job: its seconds, processor seconds of the machines, and Python workers that were started."""

    seconds: float
    processor_seconds: float
    workers: int


def run(cluster: Cluster, text: Path, output: Path, options: Sequence[str], *, kill: bool) -> Run:
    """Run the job; RuntimeError if it fails. ``kill``: a worker, by SIGKILL, once a few shards are written."""
    command = [*COMMAND, "embed", str(text), "--output", str(output), "--input-format", "lines", "--shard-rows", "1024"]
    began = time.perf_counter()
    spent: dict[int, float] = {}
    seen: set[int] = set()
    process = subprocess.Popen(
        [*command, "--quiet", *cluster.beam_options(), *options], env=worker_environment(), stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        spent |= processor_seconds(cluster)
        workers = python_workers(cluster)
        seen |= {worker.pid for worker in workers}
        if kill and workers and len(list((output / "_shards").glob("[0-9]*.json"))) >= SHARDS_BEFORE:
            workers[0].kill()
            kill = False
        time.sleep(SAMPLE_SECONDS)
    if process.returncode or kill:
        raise RuntimeError(f"the job ended with {process.returncode}" + (" before a worker was killed" if kill else ""))
    return Run(time.perf_counter() - began, sum(spent.values()), len(seen))


def python_workers(cluster: Cluster) -> list[psutil.Process]:
    """Beam's workers: each is the child of what watches it, by the same command."""
    parents: dict[psutil.Process, int] = {}
    for process in processes(cluster):
        with suppress(psutil.NoSuchProcess):
            if "elmo_store.__main__ import worker" in " ".join(process.cmdline()):
                parents[process] = process.ppid()
    watching = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent in watching]


def processes(cluster: Cluster) -> list[psutil.Process]:
    """The cluster's members and all below them."""
    members = [psutil.Process(member.process.pid) for member in cluster.members]
    return [each for member in members for each in (member, *member.children(recursive=True))]


def processor_seconds(cluster: Cluster) -> dict[int, float]:
    """Of each process of the cluster, by its number."""
    spent = {}
    for process in processes(cluster):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="spark", help="which (default: spark)")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the corpus (default: 100,000)")
    args = parser.parse_args()
    print(machine())
    title = f"{args.engine}: {args.tokens:,} tokens, the default model, two machines of one core"
    table = Table(title, "a worker for the next stage", "seconds", "processor s", "Python workers", label_width=34)
    with working_folder() as folder:
        write_lines(folder / "text.txt", made_up_text(), args.tokens)
        for kill in (False, True):
            for name, options in CACHES.items():
                output = folder / f"{name}-{kill}"
                with cluster_of(ENGINES[args.engine], folder / f"cluster-{name}-{kill}", 2) as cluster:
                    done = run(cluster, folder / "text.txt", output, options, kill=kill)
                label = f"{name}, one killed" if kill else name
                table.row(label, done.seconds, done.processor_seconds, done.workers)


if __name__ == "__main__":
    main()
