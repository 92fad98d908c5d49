"""The stages of a job, each in a process of its own: its seconds, requests and memory."""

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.shared.support import peak_resident
from elmo_store.format.manifest import write_manifest
from elmo_store.storage.data import Data, joined
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


class Served(Root):
    """The folder that versitygw shows: what is written here has the ETag that it would have been given there."""

    def put_stamped(self, rel: str, data: Data) -> str:
        """`Root.put_stamped` of the object as the server shows it."""
        self.put(rel, data)
        etag = f'"{hashlib.md5(joined(data)).hexdigest()}"'
        os.setxattr(self.path(rel), "user.etag", etag.encode())
        return f"ETag={etag}"


def last_step(root: Root, checked: Outcome) -> bool:
    return finish_job(root, checked).complete


def look(root: Root) -> str:
    return ProgressReader(root).look().line()


def left_in(tasks: Sequence[ShardTask], root: Root) -> int:
    return sum(map(len, left_to_do(tasks, root, job_stages.SHARDS_PER_TASK)))


def stages(url: str, options: dict[str, Any], shards: int, files: int, served: str) -> Iterator[tuple[str, Cost, str]]:
    """One size: stage, cost, and how many tasks there are. ``served``: the folder that the server shows, or ""."""
    source, root = Root(f"{url}/input-{shards}", options), Root(f"{url}/store-{shards}", options)
    fill_source, fill = source, root
    if served:
        beneath = f"{served.rstrip('/')}/{url.partition('://')[2]}"
        fill_source, fill = Served(f"{beneath}/input-{shards}"), Served(f"{beneath}/store-{shards}")
    job_stages.put_input(fill_source, 0, files, max(1, shards * job_stages.SHARD_ROWS // job_stages.TOKENS_A_LINE // files))
    write_manifest(root, job_stages.manifest_of(root))
    root.put_json(START, {"started": time.time(), "n_pieces": 1})
    cost = Cost.of(job_stages.preflight, f"{source}/", options, root)
    yield "preflight", cost, f"{files:,} files, {cost.value} reading tasks"
    job_stages.read_all(root, fill, options)
    cost = Cost.of(job_stages.plan_alone, root, False)
    yield "plan", cost, f"{cost.value[0]} number tasks, {cost.value[1]} shard tasks"
    numbers, tasks = job_stages.plan(fill, False)
    job_stages.write_all(fill, tasks, numbers)
    yield "watch, a look", Cost.of(look, root), ""
    yield "resume: plan", Cost.of(job_stages.plan_alone, root, True), ""
    yield "resume: a check", Cost.of(left_in, tasks[0], root), f"one of {len(tasks)} tasks that workers share"
    by_folder: dict[str, list[CheckTask]] = {}
    for task in check_tasks(Outcome(), root):
        by_folder.setdefault(task.folder, []).append(task)
    for folder, of_folder in by_folder.items():
        yield f"finish: {folder}", Cost.of(check, of_folder[0], root), f"one of {len(of_folder)} tasks that workers share"
    checked = total(check(task, fill) for of_folder in by_folder.values() for task in of_folder)
    yield "finish: last step", Cost.of(last_step, root, checked), ""
    yield "watch, complete", Cost.of(look, root), ""
    fill.remove_tree()
    fill_source.remove_tree()
