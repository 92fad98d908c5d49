"""`python -m benchmarks.gpu.planning`: tokens/s of what a job's host does for a GPU before the GPU can compute.

From the bytes of scratch parts (Parquet, as a job's workers get them) to what a device is asked to run, every word new: parts are
read, shards cut out, words numbered, sequences of both directions made, planned with the GPU's lanes, and slots of the gate table
found for each window. First each step by itself, in one thread, then calls one after another as a job makes them: one thread
reads and plans the next call while another looks up this one's words. A GPU that computes faster than that waits for its host.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import chain, pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.gpu.paper import limits_of
from benchmarks.shared.support import Table, machine, options_of, working_folder
from benchmarks.shared.texts import Sentences, running_text, take
from elmo_store.format.markers import PartRange
from elmo_store.format.words import WordLimit
from elmo_store.storage.root import Root
from model.characters import BOS, EOS, char_ids
from model.engine.cuda import LANES, TABLE_ROWS
from model.engine.cuda_direction import WINDOW
from model.engine.device import GateTable
from model.engine.planning.host import Host, Prepared
from transforms.stages.plan import ShardTask, shard_tasks
from transforms.stages.shards import call_text, part_reader, read_shard

SHARD_ROWS, PART_SENTENCES = 49_152, 16_384  # as a job's
REPEATS = 7
LIMITS = limits_of(LANES)
STEPS = ("parts read, shards cut out", "words numbered, both directions planned", "slots of the gate tables", "character ids")


def put_parts(root: Root, sentences: Sentences) -> list[ShardTask]:
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


class Call:
    """A call of these shards, by a host that has seen none of their words."""

    def __init__(self, root: Root, tasks: list[ShardTask]) -> None:
        self._root, self._tasks = root, tasks
        self._host = Host(lambda: LIMITS, 1 << 18, WordLimit(), (BOS, EOS))
        self._table = GateTable(TABLE_ROWS)

    def prepare(self, ends: list[float]) -> Prepared:
        """Read and plan; ``ends`` gets the time after each step."""
        reader = part_reader(self._root)
        text = call_text([read_shard(reader, task, boundaries=False) for task in self._tasks])
        ends.append(time.perf_counter())
        prepared = self._host.prepare(text, boundaries=False)
        ends.append(time.perf_counter())
        return prepared

    def look_up(self, prepared: Prepared, ends: list[float]) -> None:
        """Slots of the gate table for each window, and character ids of its words, which are all new."""
        for planned in chain.from_iterable(chain.from_iterable(group.planned for group in prepared.groups)):
            for first in range(0, len(planned.plan.words), WINDOW):
                self._table.slots(planned.plan.words[first : first + WINDOW], prepared.n_words, 0)
        ends.append(time.perf_counter())
        char_ids(prepared.vocabulary[: prepared.n_words])
        ends.append(time.perf_counter())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of text, one call (default: 1000000)")
    sentences = take(running_text(), parser.parse_args().tokens)
    tokens = sum(map(len, sentences))
    with working_folder() as folder:
        root = Root(folder.as_uri())
        tasks = put_parts(root, sentences)
        runs = []
        for _ in range(REPEATS):
            call, times = Call(root, tasks), [time.perf_counter()]
            call.look_up(call.prepare(times), times)
            runs.append([end - start for start, end in pairwise(times)])
        calls = [Call(root, tasks) for _ in range(REPEATS)]
        began = time.perf_counter()
        with ThreadPoolExecutor(1) as ahead:
            prepared = [ahead.submit(call.prepare, []) for call in calls]
            for call, ready in zip(calls, prepared, strict=True):
                call.look_up(ready.result(), [])
        pipelined = (time.perf_counter() - began) / REPEATS
    title = f"{machine()}; {tokens:,} tokens, {len(sentences):,} sentences, {LANES:,} lanes; medians of {REPEATS}"
    table = Table(title, "", "seconds", "M tokens/s", label_width=44)
    medians = dict(zip(STEPS, map(statistics.median, zip(*runs, strict=True)), strict=True))
    medians["all, one thread"] = statistics.median(map(sum, runs))
    medians["calls one after another, two threads"] = pipelined
    for step, seconds in medians.items():
        table.row(step, seconds, tokens / seconds / 1e6)


if __name__ == "__main__":
    main()
