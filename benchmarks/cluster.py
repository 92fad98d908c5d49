"""What a Flink cluster costs and gains: the same job in one process, on one TaskManager and on two, and where the time goes.

    python -m benchmarks.cluster [--tokens N] [--repeats N]

Needs Java and Maven (docs/deploy.md). The cluster is up before the clock starts; every worker has one thread, the local run too.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import machine
from deploy.cluster.processes import worker_environment
from deploy.flink.cluster import FlinkCluster, flink_cluster

Phases = dict[str, float]  # seconds, in the order in which they pass


def corpus(folder: Path, n_tokens: int) -> Path:
    """Sixteen files of sentences of 3 to 40 words from a vocabulary of 6,000, the commoner the shorter."""
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbgk", k=2 + i % 9)) for i in range(6000)]
    weights = [1 / (i + 2) for i in range(len(words))]
    folder.mkdir()
    for k in range(16):
        left, lines = n_tokens // 16, []
        while left > 0:
            n = min(left, draw.randint(3, 40))
            lines.append(" ".join(draw.choices(words, weights, k=n)))
            left -= n
        (folder / f"{k:02d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(text: Path, output: Path, options: Sequence[str]) -> tuple[float, float]:
    """Unix times of the command's start and end. RuntimeError if it fails."""
    command = [sys.executable, "-m", "elmo_store", "embed", str(text), "--output", str(output), "--input-format", "lines"]
    command += ["--shard-rows", "1024", "--threads", "1", "--quiet", *options]
    began = time.time()
    done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return began, time.time()


def phases(cluster: FlinkCluster, began: float, ended: float) -> Phases:
    """Where the seconds of the newest job's command went, from Flink's own record of its stages."""
    newest = max(cluster.get("jobs/overview")["jobs"], key=lambda job: job["start-time"])
    job = cluster.get(f"jobs/{newest['jid']}")
    stages = {vertex["name"]: (vertex["start-time"] / 1000, vertex["end-time"] / 1000) for vertex in job["vertices"]}
    first = max(end for name, (_, end) in stages.items() if "List tasks" in name)
    embed_start, embed_end = next(times for name, times in stages.items() if "{Shards" in name)
    start, end = job["start-time"] / 1000, job["end-time"] / 1000
    return {
        "command: imports, model, door, job service, graph": start - began,
        "workers start, import Beam, list the input": first - start,
        "tokenise and plan": max(0.0, embed_start - first),
        "embed: workers import PyTorch, compute, write": embed_end - embed_start,
        "finish": end - embed_end,
        "command: last messages, summary": ended - end,
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400_000, help="of the corpus (default: 400,000)")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, medians are printed (default: 1)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = corpus(folder / "text", args.tokens)
        number = iter(range(10_000))
        print(f"{machine()}; {args.tokens:,} tokens, the default model, one thread a worker, median of {args.repeats}")
        local = []
        for _ in range(args.repeats):
            began, ended = run(text, folder / f"store{next(number)}", [])
            local.append(ended - began)
        print(f"\n{'local, one process':<58}{statistics.median(local):8.1f} s")
        embed: dict[int, float] = {}
        for n in (1, 2):
            with flink_cluster(folder / f"flink{n}", n) as cluster:
                rows = []
                for _ in range(args.repeats):
                    began, ended = run(text, folder / f"store{next(number)}", cluster.beam_options())
                    rows.append(phases(cluster, began, ended))
            whole = statistics.median(sum(row.values()) for row in rows)
            print(f"\n{f'Flink, {n} TaskManager(s)':<58}{whole:8.1f} s   local + {whole - statistics.median(local):.1f} s")
            for phase in rows[0]:
                print(f"  {phase:<56}{statistics.median(row[phase] for row in rows):8.1f} s")
            embed[n] = statistics.median(row["embed: workers import PyTorch, compute, write"] for row in rows)
        print(f"\ntwo TaskManagers embed {embed[1] / embed[2]:.2f} × as fast as one")


if __name__ == "__main__":
    main()
