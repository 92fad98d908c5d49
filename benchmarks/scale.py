"""What one worker or the launcher does alone, and how it grows with the corpus: requests, seconds and memory of each stage.

    python -m benchmarks.scale --output s3://bucket/scale --storage-options '{"endpoint_url": "http://127.0.0.1:7070", …}'
        [--shards 40000] [--files 10000]

The server of the published figures: ``go install github.com/versity/versitygw/cmd/versitygw@latest``, then
``ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret versitygw -p 127.0.0.1:7070 posix FOLDER``.

The input is so many small files of plain text lines, about 256 tokens a shard of 256 rows. Every stage is the job's own and
runs in a process of its own; only the engine is left out: shards hold zeros (8 channels), written by threads, for what
computes is not what is measured. Stages that many workers share are given as one task of them, and how many tasks there are.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec

from benchmarks.shared.support import Table, machine, options_of, peak_resident
from elmo_store.format.manifest import write_manifest
from elmo_store.storage.root import Root
from pipeline.progress.snapshot import ProgressReader
from tests import job_stages
from transforms.runtime.results import Outcome, total
from transforms.runtime.work import START
from transforms.stages.finish import CheckTask, check, check_tasks, finish_job, left_to_do
from transforms.stages.plan import ShardTask


@dataclass(frozen=True)
class Cost:
    """Of a stage in a process of its own: its seconds, the requests to the object store, the most memory that it held."""

    seconds: float
    requests: int
    peak_bytes: int
    value: Any = None

    @classmethod
    def of(cls, work: Callable[..., Any], *arguments: Any) -> "Cost":
        """Measure ``work``."""
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., Any], arguments: Sequence[Any]) -> Cost:
    n = job_stages.count_requests()
    began = time.perf_counter()
    value = work(*arguments)
    seconds = time.perf_counter() - began
    return Cost(seconds, n[0], peak_resident(os.getpid()), value)


def last_step(root: Root, checked: Outcome) -> bool:
    return finish_job([checked], root) == [True]


def look(root: Root) -> str:
    return ProgressReader(root).look().line()


def left_in(tasks: Sequence[ShardTask], root: Root) -> int:
    return sum(map(len, left_to_do(tasks, root, job_stages.SHARDS_PER_TASK)))


def stages(
    url: str, options: dict[str, Any], shards: int, files: int
) -> Iterator[tuple[str, Cost, str]]:
    """One size: stage, cost, and how many tasks there are."""
    source, root = Root(f"{url}/input-{shards}", options), Root(f"{url}/store-{shards}", options)
    job_stages.put_input(
        source,
        0,
        files,
        max(1, shards * job_stages.SHARD_ROWS // job_stages.TOKENS_A_LINE // files),
    )
    write_manifest(root, job_stages.manifest_of(root))
    root.put_json(START, {"started": time.time(), "n_pieces": 1})
    cost = Cost.of(job_stages.preflight, f"{source}/", options, root)
    yield "preflight", cost, f"{files:,} files, {cost.value} reading tasks"
    job_stages.read_all(root, root, options)
    cost = Cost.of(job_stages.plan_alone, root, False)
    yield "plan", cost, f"{cost.value[0]} number tasks, {cost.value[1]} shard tasks"
    numbers, tasks = job_stages.plan(root, False)
    job_stages.write_all(root, tasks, numbers)
    yield "watch, a look", Cost.of(look, root), ""
    yield "resume: plan", Cost.of(job_stages.plan_alone, root, True), ""
    yield (
        "resume: a check",
        Cost.of(left_in, tasks[0], root),
        f"one of {len(tasks)} tasks that workers share",
    )
    by_folder: dict[str, list[CheckTask]] = {}
    for task in check_tasks([Outcome()], root):
        by_folder.setdefault(task.folder, []).append(task)
    for folder, of_folder in by_folder.items():
        yield (
            f"finish: {folder}",
            Cost.of(check, of_folder[0], root),
            f"one of {len(of_folder)} tasks that workers share",
        )
    checked = total(check(task, root) for of_folder in by_folder.values() for task in of_folder)
    yield "finish: last step", Cost.of(last_step, root, checked), ""
    yield "watch, complete", Cost.of(look, root), ""
    root.remove_tree()
    source.remove_tree()


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--output", required=True, help="an empty place: folder or URL")
    parser.add_argument("--storage-options", type=json.loads, default={}, help="JSON for fsspec")
    parser.add_argument("--shards", type=int, default=40_000)
    parser.add_argument("--files", type=int, default=10_000)
    args = parser.parse_args()
    if "://" in args.output:
        filesystem, path = fsspec.core.url_to_fs(args.output, **args.storage_options)
        filesystem.mkdirs(path.partition("/")[0], exist_ok=True)
    table = Table(machine(), "stage", "requests", "seconds", "MB peak", "", label_width=28)
    for name, cost, tasks in stages(args.output, args.storage_options, args.shards, args.files):
        table.row(name, cost.requests, cost.seconds, cost.peak_bytes / 1e6, f"  {tasks}")


if __name__ == "__main__":
    main()
