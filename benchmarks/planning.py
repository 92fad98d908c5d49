"""`python -m benchmarks.planning`: tokens/s of what a job's host does for a GPU before the GPU can compute. May import all rooms.

From the bytes of scratch parts (Parquet, as a job's workers get them) to what a device is asked to run, cold: each repetition
reads the parts anew and its strings are new objects. Parts are read, shards cut out, words numbered, sequences of both
directions made, planned with 2,048 lanes, and slots of the gate table found for each window. The x of new words is the
device's own work, their character ids are the host's and counted. A GPU that computes faster than the last line waits for its
host. What writers do is not here: it goes on beside it, in as many threads as a worker has (`benchmarks.compression`).
"""

import argparse
import statistics
import tempfile
import time
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engine import made_up_text, read_held_out, take
from benchmarks.processes import machine
from elmo_store.storage import Root
from model.characters import char_ids
from model.engine.cuda import GROUP_ROWS, LANES, TABLE_ROWS, WINDOW
from model.engine.host import Host
from model.engine.planner import DirectionPlan
from model.engine.words import GateTable
from transforms.plan import PartSlice, ShardTask, shard_tasks
from transforms.shard_text import PartReader, call_text, read_shard

SHARD_ROWS = 49_152  # as a job's
PART_SENTENCES = 16_384


class Gpu:
    """What the host must know of a GPU."""

    group_rows = GROUP_ROWS
    narrower = ()

    def __init__(self, lanes: int) -> None:
        self.lane_choices = [lanes]

    def windows(self, plan: DirectionPlan) -> list[tuple[int, int, int]]:
        """(first step, steps, lanes), all of the graph's size."""
        return [(first, min(WINDOW, plan.steps - first), plan.lanes) for first in range(0, plan.steps, WINDOW)]


def put_parts(root: Root, sentences: list[list[str]]) -> list[ShardTask]:
    """Scratch parts of these sentences as a job writes them, and the tasks of all their shards."""
    slices: list[PartSlice] = []
    rows = 0
    for first in range(0, len(sentences), PART_SENTENCES):
        some = sentences[first : first + PART_SENTENCES]
        lengths = [len(sentence) for sentence in some]
        sink = BytesIO()
        table = {"tokens": pa.array(some, pa.list_(pa.string())), "n_tokens": pa.array(lengths, pa.int32())}
        pq.write_table(pa.table(table), sink, compression="zstd")
        name = f"part-{first}.parquet"
        root.put(name, sink.getvalue())
        slices.append(PartSlice(len(slices), name, first, rows, sum(lengths)))
        rows += sum(lengths)
    return list(shard_tasks(slices, rows, SHARD_ROWS))


def host_work(root: Root, tasks: list[ShardTask], host: Host, table: GateTable, new_words: bool) -> dict[str, float]:
    """Seconds of each part of the host's work for one call."""
    seconds = {}
    began = time.perf_counter()

    def took(name: str) -> None:
        nonlocal began
        ended = time.perf_counter()
        seconds[name] = ended - began
        began = ended

    reader = PartReader(root)
    shards = [read_shard(reader, task, boundaries=False) for task in tasks]
    text = call_text(shards)
    took("parts read, shards cut out")
    prepared = host.prepare(text, boundaries=False)
    took("words numbered, both directions planned")
    for group in prepared.groups:
        for planned in group.planned:
            for first in range(0, planned.plan.steps, WINDOW):
                table.slots(planned.plan.words[first : first + WINDOW], prepared.n_words, 0)
    took("slots of the gate tables")
    if new_words:
        char_ids(prepared.vocabulary.words[: prepared.n_words])
        took("character ids of new words")
    return seconds


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of text, one call (default: 1000000)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"of the grid (default: {LANES})")
    parser.add_argument("--repeats", type=int, default=7, help="of which the median counts (default: 7)")
    args = parser.parse_args()
    sentences = take(read_held_out() or made_up_text(), args.tokens)
    tokens = sum(map(len, sentences))
    print(f"{machine()}; {tokens:,} tokens, {len(sentences):,} sentences, {args.lanes:,} lanes; medians of {args.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder).as_uri())
        tasks = put_parts(root, sentences)
        del sentences
        for name, known in (("a first call, every word new", False), ("a later call, words known", True)):
            runs = []
            for _ in range(args.repeats):
                host = Host(Gpu(args.lanes), "first", 1 << 18, 50)
                table = GateTable(TABLE_ROWS, lambda words, slots: None)
                if known:
                    host_work(root, tasks, host, table, new_words=False)
                runs.append(host_work(root, tasks, host, table, new_words=not known))
            report(name, runs, tokens)


def report(name: str, runs: list[dict[str, float]], tokens: int) -> None:
    """Print medians of each part, and of all."""
    print(f"\n{name}")
    for part in runs[0]:
        print(line(part, statistics.median(run[part] for run in runs), tokens))
    print(line("all, one thread", statistics.median(sum(run.values()) for run in runs), tokens))


def line(name: str, seconds: float, tokens: int) -> str:
    """One line of the table."""
    return f"    {name:42s} {seconds:8.3f} s {tokens / seconds / 1e6:8.2f} M tokens/s"


if __name__ == "__main__":
    main()
