"""What a Flink cluster costs and gains: the same job in one process, on one TaskManager and on two, and where the time goes.

    python -m benchmarks.cluster [--tokens N]

Needs Java and Maven (docs/deploy.md). The cluster is up before the clock starts; every worker has one thread, the local run too.
"""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support import COMMAND, Table, machine, options_of, working_folder
from benchmarks.texts import made_up_text, write_lines
from deploy.cluster.engine import cluster_of
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster

FILES = 16
EMBED = "embed: workers import PyTorch, compute, write"


def run(text: Path, output: Path, options: Sequence[str]) -> tuple[float, float]:
    """Unix times of the command's start and end."""
    command = [*COMMAND, "embed", str(text), "--output", str(output), "--input-format", "lines"]
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
    args = parser.parse_args()
    print(machine())
    title = f"{args.tokens:,} tokens, the default model, one thread a worker"
    table = Table(title, "", "seconds", "beyond local", label_width=58)
    with working_folder() as folder:
        words, text = made_up_text(), folder / "text"
        text.mkdir()
        for i in range(FILES):
            write_lines(text / f"{i:02d}.txt", words, args.tokens // FILES)
        began, ended = run(text, folder / "local", [])
        local = ended - began
        table.row("local, one process", local, "")
        embed = []
        for n in (1, 2):
            with cluster_of(FlinkCluster, folder / f"flink{n}", n) as cluster:
                spent = phases(cluster, *run(text, folder / f"store{n}", cluster.beam_options()))
            whole = sum(spent.values())
            table.row(f"Flink, {n} TaskManager(s)", whole, whole - local)
            for phase, seconds in spent.items():
                table.row(f"  {phase}", seconds, "")
            embed.append(spent[EMBED])
    print(f"\ntwo TaskManagers embed {embed[0] / embed[1]:.2f} × as fast as one")


if __name__ == "__main__":
    main()
