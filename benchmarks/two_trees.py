"""Two checkouts in turns: ``python -m benchmarks.two_trees BEFORE AFTER`` prints a table; is a change slower by more than noise?

BEFORE and AFTER are folders with a .venv in which each is installed. What is timed is public: the command, and reads of the store
that it made. Each measure is a process of its own in its tree; a round runs both trees, the one that comes first changing. A
processor's seconds are shown (user and system, children included), which other programs on the machine disturb less than a
clock's: medians and the smallest of --rounds, and the ratio of the medians.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

from benchmarks.support import Table, machine, options_of
from benchmarks.texts import write_model

N_SENTENCES, N_READS, BATCH = 20_000, 4_000, 64
READS = f"""
import sys, time, random, elmo_store
store = elmo_store.open(sys.argv[1])
order = random.Random(0).choices(range({N_SENTENCES}), k={N_READS})
def one_by_one():
    for i in order: store.sentence(i).read()
def batches():
    for i in range(0, {N_READS}, {BATCH}): store.read_sentences(order[i : i + {BATCH}])
def scan():
    for _ in store.batches({BATCH}): pass
work = {{"one by one": one_by_one, "{BATCH} a call": batches, "scan": scan}}[sys.argv[2]]
work()
began = time.process_time()
work()
print(time.process_time() - began)
"""


def python(tree: Path) -> str:
    """The interpreter of a tree's environment."""
    return str(tree / ".venv/bin/python")


def command(tree: Path, *arguments: str) -> float:
    """Seconds of processor that ``elmo-store`` and its children take with these arguments in this tree."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python(tree), "-m", "elmo_store", *arguments], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def reads(tree: Path, store: Path, kind: str) -> float:
    """Seconds of processor of one kind of reads, warm."""
    done = subprocess.run([python(tree), "-c", READS, str(store), kind], cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def measures(trees: list[Path], folder: Path) -> dict[str, Callable[[Path], float]]:
    """What is timed, by name; makes the models, the text and each tree's stores in ``folder``."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    tiny, small = (str(write_model(folder / f"{shape}.safetensors", shape)) for shape in ("tiny", "small"))
    lines = (json.dumps({"text": [f"w{(i * j) % 5_000}" for j in range(1, 9 + i % 25)]}) for i in range(N_SENTENCES))
    text = folder / "text.jsonl"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def job(tree: Path, *arguments: str) -> float:
        return command(tree, "embed", *arguments, "--output", str(folder / f"job-{tree.name}"), "--overwrite", "--quiet")

    works: dict[str, Callable[[Path], float]] = {
        "--help": lambda tree: command(tree, "--help"),
        "embed, tiny model": lambda tree: job(tree, str(text), "--model", tiny),
        "embed, default model": lambda tree: job(tree, "examples/sample"),
        "embed, small biLM": lambda tree: job(tree, "examples/sample", "--model", small, "--max-sentences", "1000"),
    }
    for form, dtype in product(("zarr", "parquet"), ("float16", "int8")):
        stores = {tree: folder / f"{form}-{dtype}-{tree.name}" for tree in trees}
        for tree, store in stores.items():
            made = "--model", tiny, "--output", str(store), "--store", form, "--dtype", dtype
            command(tree, "embed", str(text), *made, "--quiet")
        for kind in ("one by one", f"{BATCH} a call", "scan"):
            works[f"{form}, {dtype}, {kind}"] = lambda tree, stores=stores, kind=kind: reads(tree, stores[tree], kind)  # type: ignore[misc]
    return works


def main() -> None:
    """Print the table."""
    parser = options_of(__doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    args = parser.parse_args()
    trees = [tree.resolve() for tree in args.trees]
    if trees[0].name == trees[1].name:
        sys.exit(f"both folders are called {trees[0].name}: their stores would be one")
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        table = Table("seconds of processor", "", "before", "least", "after", "least", "after/before", label_width=28)
        for name, work in measures(trees, Path(folder)).items():
            taken: dict[Path, list[float]] = {tree: [] for tree in trees}
            for i in range(args.rounds):
                for tree in trees if i % 2 else trees[::-1]:
                    taken[tree].append(work(tree))
            before, after = (taken[tree] for tree in trees)
            medians = statistics.median(before), statistics.median(after)
            table.row(name, medians[0], min(before), medians[1], min(after), medians[1] / medians[0])


if __name__ == "__main__":
    main()
