"""What a cluster costs and gains: ``python -m benchmarks.cluster [phases starts]`` prints tables, by default `phases`.

phases  the same job in one process, on one Flink TaskManager and on two, one thread a worker, and where the time goes
starts  what it costs that a worker is started anew for each stage, and that one dies: two machines of one core, of Flink or
        Spark. Processor seconds are those of the machines: their JVMs and Python workers

Needs Java and Maven (docs/deploy.md). The default model; a cluster is up before the clock starts.
"""

import argparse
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.shared.support import COMMAND, SAMPLE_SECONDS, Table, machine, options_of, working_folder
from benchmarks.shared.texts import made_up_text, write_lines
from deploy.cluster.engine import Cluster, cluster_of
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster
from deploy.spark.cluster import SparkCluster

FILES = 16
ENGINES: dict[str, type[Cluster]] = {"spark": SparkCluster, "flink": FlinkCluster}
EMBED = "embed: workers import PyTorch, compute, write"
CACHES: dict[str, Sequence[str]] = {"as it is": [], "none kept": ["--environment_cache_millis=1"]}
SHARDS_BEFORE = 5  # written when a worker is killed


def started(text: Path, output: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """The job's process."""
    command = [*COMMAND, "embed", str(text), "--output", str(output), "--input-format", "lines", "--shard-rows", "1024"]
    return subprocess.Popen([*command, "--quiet", *options], env=worker_environment(), stdout=subprocess.DEVNULL)


def phases(args: argparse.Namespace, folder: Path) -> None:
    """Beside a local run, with Flink's own record of its stages."""
    table = Table(f"{args.tokens:,} tokens, one thread a worker", "", "seconds", "beyond local", label_width=58)
    words, text = made_up_text(), folder / "text"
    text.mkdir()
    for i in range(FILES):
        write_lines(text / f"{i:02d}.txt", words, args.tokens // FILES)

    def run(name: str, options: Sequence[str]) -> tuple[float, float]:
        """Unix times of the command's start and end."""
        began, process = time.time(), started(text, folder / name, ["--threads", "1", *options])
        if process.wait():
            raise RuntimeError(f"the job ended with {process.returncode}")
        return began, time.time()

    began, ended = run("local", [])
    local = ended - began
    table.row("local, one process", local, "")
    embed = []
    for n in (1, 2):
        with cluster_of(FlinkCluster, folder / f"flink{n}", n) as cluster:
            spent = dict(spent_by_phase(cluster, *run(f"store{n}", cluster.beam_options())))
        whole = sum(spent.values())
        table.row(f"Flink, {n} TaskManager(s)", whole, whole - local)
        for phase, seconds in spent.items():
            table.row(f"  {phase}", seconds, "")
        embed.append(spent[EMBED])
    print(f"\ntwo TaskManagers embed {embed[0] / embed[1]:.2f} × as fast as one")


def spent_by_phase(cluster: FlinkCluster, began: float, ended: float) -> Iterator[tuple[str, float]]:
    """Where the seconds of the newest job's command went, in order."""
    newest = max(cluster.get("jobs/overview")["jobs"], key=lambda job: job["start-time"])
    job = cluster.get(f"jobs/{newest['jid']}")
    stages = {vertex["name"]: (vertex["start-time"] / 1000, vertex["end-time"] / 1000) for vertex in job["vertices"]}
    first = max(end for name, (_, end) in stages.items() if "List tasks" in name)
    embed_start, embed_end = next(times for name, times in stages.items() if "{Shards" in name)
    start, end = job["start-time"] / 1000, job["end-time"] / 1000
    yield "command: imports, model, preflight, job service, graph", start - began
    yield "workers start, import Beam, list the input", first - start
    yield "tokenise and plan", max(0.0, embed_start - first)
    yield EMBED, embed_end - embed_start
    yield "finish", end - embed_end
    yield "command: last messages, summary", ended - end


def starts(args: argparse.Namespace, folder: Path) -> None:
    """With workers that are kept from stage to stage and with none, each without a death and with one."""
    title = f"{args.engine}: {args.tokens:,} tokens, two machines of one core"
    table = Table(title, "a worker for the next stage", "seconds", "processor s", "Python workers", label_width=34)
    text = write_lines(folder / "text.txt", made_up_text(), args.tokens)
    for kill in (False, True):
        for name, options in CACHES.items():
            label = f"{name}, one killed" if kill else name
            with cluster_of(ENGINES[args.engine], folder / f"cluster-{name}-{kill}", 2) as cluster:
                table.row(label, *watched(cluster, text, folder / f"{name}-{kill}", options, kill=kill))


def watched(cluster: Cluster, text: Path, output: Path, options: Sequence[str], *, kill: bool) -> tuple[float, float, int]:
    """Run the job: its seconds, processor seconds of the machines, Python workers that were started. RuntimeError if it fails.

    ``kill``: a worker, by SIGKILL, once a few shards are written.
    """
    began, spent, seen = time.perf_counter(), dict[int, float](), set[int]()
    process = started(text, output, [*cluster.beam_options(), *options])
    while process.poll() is None:
        members = processes(cluster)
        spent |= processor_seconds(members)
        workers = python_workers(members)
        seen |= {worker.pid for worker in workers}
        if kill and workers and len(list((output / "_shards").glob("[0-9]*.json"))) >= SHARDS_BEFORE:
            workers[0].kill()
            kill = False
        time.sleep(SAMPLE_SECONDS)
    if process.returncode or kill:
        raise RuntimeError(f"the job ended with {process.returncode}" + (" before a worker was killed" if kill else ""))
    return time.perf_counter() - began, sum(spent.values()), len(seen)


def processes(cluster: Cluster) -> list[psutil.Process]:
    """The cluster's members and all below them."""
    members = [psutil.Process(member.process.pid) for member in cluster.members]
    return [each for member in members for each in (member, *member.children(recursive=True))]


def python_workers(members: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Beam's workers: each is the child of what watches it, by the same command."""
    parents: dict[psutil.Process, int] = {}
    for process in members:
        with suppress(psutil.NoSuchProcess):
            if "elmo_store.__main__ import worker" in " ".join(process.cmdline()):
                parents[process] = process.ppid()
    watching = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent in watching]


def processor_seconds(members: Sequence[psutil.Process]) -> dict[int, float]:
    """Of each process, by its number."""
    spent = {}
    for process in members:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent


TABLES = {"phases": phases, "starts": starts}


def main() -> None:
    parser = options_of(__doc__, [*TABLES], default="phases")
    parser.add_argument("--engine", choices=ENGINES, default="spark", help="of `starts` (default: spark)")
    parser.add_argument("--tokens", type=int, default=400_000, help="of the corpus (default: 400,000)")
    args = parser.parse_args()
    print(machine())
    for name in args.tables:
        with working_folder() as folder:
            TABLES[name](args, folder)


if __name__ == "__main__":
    main()
