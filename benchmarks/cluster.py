"""What a Flink cluster costs and gains: the same job in one process, on one TaskManager and on two, and where the time goes.

    python -m benchmarks.cluster [--tokens N]
    python -m benchmarks.cluster --starts [--tokens N] [--rounds N]: what workers cost that are not kept from stage to stage

Needs Java and Maven (docs/deploy.md). The cluster is up before the clock starts; every worker has one thread, the local run too.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support import COMMAND, Table, machine, options_of, working_folder
from benchmarks.texts import made_up_text, write_lines
from deploy.cluster.engine import cluster_of
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster

FILES = 16
MODES = (("PIPELINED", 60_000), ("BATCH_FORCED", 60_000), ("BATCH_FORCED", 500), ("BATCH_FORCED", 1))  # and milliseconds kept
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


def start_seconds() -> float:
    """Processor seconds that one worker takes to import Beam."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "from apache_beam.runners.worker import sdk_worker_main"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts(n_tokens: int, rounds: int) -> None:
    """The same job in each of `MODES`, in turns: starts of Python, seconds."""
    print(f"one start of a worker: {start_seconds():.1f} processor seconds\n\nstages          kept ms   starts   job s")
    with working_folder() as folder, cluster_of(FlinkCluster, folder / "flink", 2) as cluster:
        write_lines(folder / "text.txt", made_up_text(), n_tokens)
        options, log = cluster.beam_options(), folder / "starts"
        script = cluster.folder / "elmo-store-worker"
        script.write_text(script.read_text("utf-8").replace("exec ", f"echo start >> {log}\nexec ", 1), "utf-8")
        for number in range(rounds):
            for mode, kept in MODES:
                log.write_text("")
                more = [f"--execution_mode_for_batch={mode}", f"--environment_cache_millis={kept}"]
                run(folder / "text.txt", folder / f"store-{number}-{mode}-{kept}", [*options, *more])
                job = max(cluster.get("jobs/overview")["jobs"], key=lambda job: job["start-time"])
                print(f"{mode:14} {kept:8,} {len(log.read_text().split()):8} {job['duration'] / 1000:7.1f}", flush=True)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tokens", type=int, default=400_000, help="of the corpus (default: 400,000)")
    parser.add_argument("--starts", action="store_true", help="count starts of workers")
    parser.add_argument("--rounds", type=int, default=2, help="with --starts (default: 2)")
    args = parser.parse_args()
    print(machine())
    if args.starts:
        starts(args.tokens, args.rounds)
        return
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
