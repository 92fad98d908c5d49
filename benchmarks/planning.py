"""`python -m benchmarks.planning`: tokens/s of what a job's host does for a GPU before the GPU can compute.

From the bytes of scratch parts (Parquet, as a job's workers get them) to what a device is asked to run, cold: each repetition
reads the parts anew and its strings are new objects. Parts are read, shards cut out, words numbered, sequences of both
directions made, planned with 2,048 lanes, and slots of the gate table found for each window. The x of new words is the device's
own work, their character ids are the host's and counted. First each part by itself, in one thread, then calls one after another
as a job makes them: one thread reads and plans the next call while another looks up this one's words. A GPU that computes
faster than that waits for its host. What writers do is not here: it goes on beside it, in as many threads as a worker has
(`benchmarks.compression`).
"""

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support import Table, machine, options_of
from benchmarks.texts import running_text, take
from elmo_store.format.markers import PartRange
from elmo_store.storage.root import Root
from model.characters import char_ids
from model.engine.cuda import GROUP_ROWS, LANES, LONG_LANES, LONG_TOKENS, TABLE_ROWS, WINDOW
from model.engine.gates import GateTable
from model.engine.planning.grid import Limits
from model.engine.planning.host import Host, Prepared
from model.engine.planning.text import Text
from transforms.stages.plan import ShardTask, shard_tasks
from transforms.stages.shards import call_text, part_reader, read_shard

SHARD_ROWS = 49_152  # as a job's
PART_SENTENCES = 16_384


def gpu_limits(lanes: int) -> Limits:
    """What the host must know of a GPU; all windows are of the graph's size."""
    return Limits([lanes], WINDOW, WINDOW * lanes, (), (LONG_LANES,), LONG_TOKENS, GROUP_ROWS)


def put_parts(root: Root, sentences: list[list[str]]) -> list[ShardTask]:
    """Scratch parts of these sentences as a job writes them, and the tasks of all their shards."""
    slices: list[tuple[str, PartRange]] = []
    rows = 0
    for first in range(0, len(sentences), PART_SENTENCES):
        part = sentences[first : first + PART_SENTENCES]
        lengths = [len(sentence) for sentence in part]
        sink = BytesIO()
        table = {"tokens": pa.array(part, pa.list_(pa.string())), "n_tokens": pa.array(lengths, pa.int32())}
        pq.write_table(pa.table(table), sink, compression="zstd")
        name = f"part-{first}.parquet"
        root.put(name, sink.getvalue())
        slices.append((name, PartRange(len(slices), first, len(part), rows, sum(lengths))))
        rows += sum(lengths)
    return list(shard_tasks(slices, rows, SHARD_ROWS))


@dataclass(frozen=True)
class Call:
    """A call's host and the table of its device; ``new_words``: the host has seen none of them."""

    host: Host
    table: GateTable
    new_words: bool

    @classmethod
    def first(cls, lanes: int) -> "Call":
        """Every word is new."""
        return cls(Host(lambda: gpu_limits(lanes), 1 << 18, 50), GateTable(TABLE_ROWS, lambda words, slots: None), True)

    def read(self, root: Root, tasks: list[ShardTask]) -> Text:
        """Parts read, shards cut out."""
        reader = part_reader(root)
        return call_text([read_shard(reader, task, boundaries=False) for task in tasks])

    def plan(self, text: Text) -> Prepared:
        """Words numbered, both directions planned."""
        return self.host.prepare(text, boundaries=False)

    def find_slots(self, prepared: Prepared) -> None:
        """Slots of the gate table for each window."""
        for group in prepared.groups:
            for planned in chain.from_iterable(group.planned):
                for first in range(0, len(planned.plan.words), WINDOW):
                    self.table.slots(planned.plan.words[first : first + WINDOW], prepared.n_words, 0)

    def spell(self, prepared: Prepared) -> None:
        """Character ids of new words."""
        if self.new_words:
            char_ids(prepared.vocabulary[: prepared.n_words])


def part_seconds(root: Root, tasks: list[ShardTask], call: Call) -> dict[str, float]:
    """Seconds of each part of the host's work for one call, one after the other."""
    times = [time.perf_counter()]
    text = call.read(root, tasks)
    times.append(time.perf_counter())
    prepared = call.plan(text)
    times.append(time.perf_counter())
    call.find_slots(prepared)
    times.append(time.perf_counter())
    call.spell(prepared)
    times.append(time.perf_counter())
    names = ["parts read, shards cut out", "words numbered, both directions planned", "slots of the gate tables"]
    names += ["character ids of new words"] if call.new_words else []
    return {name: times[i + 1] - times[i] for i, name in enumerate(names)}


def pipelined_seconds(root: Root, tasks: list[ShardTask], calls: list[Call]) -> float:
    """Seconds a call of calls one after another, the next one being prepared by another thread."""
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as ahead:
        prepared = [ahead.submit(lambda call=call: call.plan(call.read(root, tasks))) for call in calls]  # type: ignore[misc]
        for call, ready in zip(calls, prepared, strict=True):
            call.spell(ready.result())
            call.find_slots(ready.result())
    return (time.perf_counter() - began) / len(calls)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of text, one call (default: 1000000)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"of the grid (default: {LANES})")
    parser.add_argument("--repeats", type=int, default=7, help="of which the median counts (default: 7)")
    args = parser.parse_args()
    sentences = take(running_text(), args.tokens)
    tokens = sum(map(len, sentences))
    print(f"{machine()}; {tokens:,} tokens, {len(sentences):,} sentences, {args.lanes:,} lanes; medians of {args.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder).as_uri())
        tasks = put_parts(root, sentences)
        del sentences
        firsts = [Call.first(args.lanes) for _ in range(2 * args.repeats)]
        parts = [part_seconds(root, tasks, call) for call in firsts[::2]]
        report("a first call, every word new", parts, pipelined_seconds(root, tasks, firsts[1::2]), tokens)
        known = replace(firsts[0], new_words=False)
        parts = [part_seconds(root, tasks, known) for _ in range(args.repeats)]
        report("a later call, words known", parts, pipelined_seconds(root, tasks, [known] * args.repeats), tokens)


def report(name: str, runs: list[dict[str, float]], pipelined: float, tokens: int) -> None:
    """Medians of each part, of all, and of calls one after another."""
    table = Table(name, "", "seconds", "M tokens/s", label_width=44)
    medians = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    medians["all, one thread"] = statistics.median(sum(run.values()) for run in runs)
    for part, seconds in {**medians, "calls one after another, two threads": pipelined}.items():
        table.row(part, seconds, tokens / seconds / 1e6)


if __name__ == "__main__":
    main()
