"""What a Flink cluster costs and gains: the same job in one process, on one TaskManager and on two, and where the time goes.

    python -m benchmarks.cluster [--tokens N] [--repeats N]

Needs Java and Maven (docs/deploy.md). The cluster is up before the clock starts; every worker has one thread, the local run too.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support import Table, machine, options_of
from benchmarks.texts import made_up_text, write_lines
from deploy.cluster.engine import cluster_of
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster

FILES = 16
EMBED = "embed: workers import PyTorch, compute, write"


def run(text: Path, output: Path, options: Sequence[str]) -> tuple[float, float]:
    """Unix times of the command's start and end."""
    command = [sys.executable, "-m", "elmo_store", "embed", str(text), "--output", str(output), "--input-format", "lines"]
    command += ["--shard-rows", "1024", "--threads", "1", "--quiet", *options]
    began = time.time()
    subprocess.run(command, env=worker_environment(), check=True)
    return began, time.time()


def phases(cluster: FlinkCluster, began: float, ended: float) -> dict[str, float]:
    """Where the seconds of the newest job's command went, in order, from Flink's own record of its stages."""
    newest = max(cluster.get("jobs/overview")["jobs"], key=lambda job: job["start-time"])
    job = cluster.get(f"jobs/{newest['jid']}")
    stages = {vertex["name"]: (vertex["start-time"] / 1000, vertex["end-time"] / 1000) for vertex in job["vertices"]}
    first = max(end for name, (_, end) in stages.items() if "List tasks" in name)
    embed_start, embed_end = next(times for name, times in stages.items() if "{Shards" in name)
    start, end = job["start-time"] / 1000, job["end-time"] / 1000
    return {
        "command: imports, model, preflight, job service, graph": start - began,
        "workers start, import Beam, list the input": first - start,
        "tokenise and plan": max(0.0, embed_start - first),
        EMBED: embed_end - embed_start,
        "finish": end - embed_end,
        "command: last messages, summary": ended - end,
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tokens", type=int, default=400_000, help="of the corpus (default: 400,000)")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, medians are printed (default: 1)")
    args = parser.parse_args()
    print(machine())
    title = f"{args.tokens:,} tokens, the default model, one thread a worker, median of {args.repeats}"
    table = Table(title, "", "seconds", "beyond local", label_width=58)
    with tempfile.TemporaryDirectory() as name:
        folder, words = Path(name), made_up_text()
        text = folder / "text"
        text.mkdir()
        for i in range(FILES):
            write_lines(text / f"{i:02d}.txt", words, args.tokens // FILES)
        times = [run(text, folder / f"local{i}", []) for i in range(args.repeats)]
        local = statistics.median(ended - began for began, ended in times)
        table.row("local, one process", local, "")
        embed: list[float] = []
        for n in (1, 2):
            with cluster_of(FlinkCluster, folder / f"flink{n}", n) as cluster:
                rows = []
                for i in range(args.repeats):
                    rows.append(phases(cluster, *run(text, folder / f"store{n}-{i}", cluster.beam_options())))
            whole = statistics.median(sum(row.values()) for row in rows)
            table.row(f"Flink, {n} TaskManager(s)", whole, whole - local)
            for phase in rows[0]:
                table.row(f"  {phase}", statistics.median(row[phase] for row in rows), "")
            embed.append(statistics.median(row[EMBED] for row in rows))
    print(f"\ntwo TaskManagers embed {embed[0] / embed[1]:.2f} × as fast as one")


if __name__ == "__main__":
    main()
