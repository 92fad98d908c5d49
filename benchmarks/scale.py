"""What one worker or the launcher does alone, and how it grows with the corpus: requests, seconds and memory of each stage.

    python -m benchmarks.scale --output s3://bucket/scale --storage-options '{"endpoint_url": "http://127.0.0.1:7070", …}'
        [--shards 40000] [--files 10000] [--steps 0.25,0.5,1] [--served FOLDER]

The server of the published figures: ``go install github.com/versity/versitygw/cmd/versitygw@latest``, then
``ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret versitygw -p 127.0.0.1:7070 posix FOLDER``; such a server shows what lies in
FOLDER, so that with ``--served FOLDER`` the input and the shards are put there as files, which takes minutes instead of an hour.

The input is so many small files of plain text lines, about 256 tokens a shard of 256 rows. Every stage is the job's own and
runs in a process of its own; only the engine is left out: shards hold zeros (8 channels), written by threads, for what
computes is not what is measured. Stages that many workers share are given as one task of them, and how many tasks there are.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
from safetensors.numpy import save

from elmo_store.format.inputs import encode_inputs
from elmo_store.format.layout import INPUTS, START_STATE
from elmo_store.format.manifest import InputInfo, Manifest, ModelInfo, StartStateInfo, read_manifest, write_manifest
from elmo_store.storage.root import Root
from model.options import BiLMOptions
from pipeline.progress.snapshot import ProgressReader
from transforms.inputs.records import ReadSettings, describe_files
from transforms.runtime.results import Outcome
from transforms.runtime.work import START
from transforms.stages.done import Checked, CheckTask, check, check_tasks, left_to_do
from transforms.stages.finish import finish_job
from transforms.stages.index_ids import merge_ids, runs_to_do
from transforms.stages.number import number_parts
from transforms.stages.plan import ShardTask
from transforms.stages.plan_shards import NUMBER, SHARDS, plan_job
from transforms.stages.scratch import tokenise_task
from transforms.stages.shard_text import PartReader, read_shard
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.unpack import listed_tasks, write_tasks
from transforms.stages.write import write_shard

SHARD_ROWS, CHANNELS, TOKENS_A_LINE = 256, 8, 16
READ = ReadSettings(tokenizer="whitespace")
SHARDS_PER_TASK = 128
WRITERS = 16


@dataclass(frozen=True)
class Cost:
    seconds: float
    requests: int
    peak_bytes: int
    value: Any = None


class Served(Root):
    """The folder that versitygw shows: what is written here has the ETag that it would have been given there."""

    def put_stamped(self, rel: str, data: bytes | bytearray) -> str:
        """`Root.put_stamped` of the object as the server shows it."""
        self.put(rel, data)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        os.setxattr(self.path(rel), "user.etag", etag.encode())
        return f"ETag={etag}"


def measured(work: Callable[..., Any], *arguments: Any) -> Cost:
    """``work`` in a process of its own: its seconds, the requests to the object store, the most memory that it held."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., Any], arguments: Sequence[Any]) -> Cost:
    n = count_requests()
    began = time.perf_counter()
    value = work(*arguments)
    seconds = time.perf_counter() - began
    return Cost(seconds, n[0], _peak_bytes(), value)


def _peak_bytes() -> int:
    """The most memory that this process held. Not its ru_maxrss, which begins with that of the process that started it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def count_requests() -> list[int]:
    """A counter of the calls that s3fs makes from now on; it stays 0 on other filesystems."""
    n = [0]
    try:
        from s3fs import S3FileSystem
    except ImportError:
        return n
    call = S3FileSystem._call_s3

    async def counted(self: Any, *args: Any, **options: Any) -> Any:
        n[0] += 1
        return await call(self, *args, **options)

    S3FileSystem._call_s3 = counted
    return n


def put_input(root: Root, first: int, stop: int, lines: int) -> None:
    """Files ``first … stop`` of the input."""
    filesystem, base = root.filesystem, root.path()
    text = "".join(" ".join(f"word{(i * 31 + j) % 5000}" for j in range(TOKENS_A_LINE)) + "\n" for i in range(lines)).encode()
    if root.is_local:
        filesystem.makedirs(base, exist_ok=True)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda i: filesystem.pipe_file(f"{base}/{i:06d}.tok", text), range(first, stop)))


def manifest_of(root: Root) -> Manifest:
    """The incomplete manifest of a job like embed's, with its start state in the store."""
    options = BiLMOptions(
        cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=CHANNELS, dim=16, n_layers=2, activation="relu",
        filters=((1, 8),), n_highway=1, char_embedding_dim=4,
    )  # fmt: skip
    root.put(START_STATE, save({"h": np.zeros((2, 2, CHANNELS), np.float32), "c": np.zeros((2, 2, 16), np.float32)}))
    return Manifest(
        kind="states", complete=False, model=ModelInfo("none", "sha256:" + "0" * 64, options.to_dict()), tokenizer="whitespace/1",
        start_state=StartStateInfo("zero", "0" * 64), dtype="float16", precision="float32", boundaries=False,
        states=("x", "fwd1", "bwd1", "fwd2", "bwd2"), channels=CHANNELS, shard_rows=SHARD_ROWS, forms=("zarr",),
        compression="none", counts=None, input=InputInfo("sha256:" + "0" * 64, 0), job={}, software={},
    )  # fmt: skip


def door(source: str, options: dict[str, Any], root: Root) -> int:
    """What the launcher does with the input: list, cut, bundle, put the lists of files and tasks."""
    splits = plan_splits([source], "lines", READ, storage_options=options)
    tasks = list(read_tasks(splits))
    write_tasks(root, tasks)
    root.put(INPUTS, encode_inputs(describe_files(splits)))
    return len(tasks)


def read_all(root: Root, fill: Root, options: dict[str, Any]) -> None:
    for task in listed_tasks(root):
        tokenise_task(fill, task, READ, options)


def plan(root: Root, resumed: bool) -> tuple[list[Any], list[list[ShardTask]]]:
    outputs = list(plan_job(root, READ, SHARDS_PER_TASK, 32, resumed))
    return [o.value for o in outputs if o.tag == NUMBER], [o.value for o in outputs if o.tag == SHARDS]


def plan_alone(root: Root, resumed: bool) -> tuple[int, int]:
    """The plan as a worker does it: tasks leave it one by one."""
    n = {NUMBER: 0, SHARDS: 0}
    for output in plan_job(root, READ, SHARDS_PER_TASK, 32, resumed):
        n[output.tag] += 1
    return n[NUMBER], n[SHARDS]


def write_all(root: Root, tasks: Sequence[Sequence[ShardTask]], numbers: Sequence[Any]) -> None:
    """All shards, parts and ids of the job, the states being zeros."""
    for number in numbers:
        number_parts(root, number)
    for run in runs_to_do(root):
        merge_ids(root, run)
    manifest = read_manifest(root)
    plan_id = json.loads(root.get("_work/plan.json"))["id"]

    def write(batch: Sequence[ShardTask]) -> None:
        reader = PartReader(root)
        for task in batch:
            states = np.zeros((task.n_rows, len(manifest.states), CHANNELS), np.float16)
            write_shard(root, manifest, read_shard(reader, task, False), states, plan_id, {"tokens": task.n_rows})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, tasks))


def last_step(root: Root, found: Checked) -> bool:
    return finish_job(root, found).complete


def look(root: Root) -> str:
    return ProgressReader(root).look().line()


def step(place: str, options: dict[str, Any], shards: int, files: int, served: str) -> None:
    """One size, printed as rows of the table. ``served``: the folder that the server shows, "" where it shows none."""
    source, root = Root(f"{place}/input-{shards}", options), Root(f"{place}/store-{shards}", options)
    beneath = f"{served.rstrip('/')}/{place.partition('://')[2]}" if served else ""
    fill_source, fill = (
        Served(f"{beneath}/{one}-{shards}") if served else root_ for one, root_ in (("input", source), ("store", root))
    )
    lines = max(1, shards * SHARD_ROWS // TOKENS_A_LINE // files)
    put_input(fill_source, 0, files, lines)
    write_manifest(root, manifest_of(root))
    root.put_json(START, {"started": time.time(), "n_pieces": 1, "n_bytes": 1})
    rows: list[tuple[str, Cost, str]] = []
    cost = measured(door, f"{source}/", options, root)
    rows.append(("door", cost, f"{files:,} files, {cost.value} reading tasks"))
    read_all(root, fill, options)
    cost = measured(plan_alone, root, False)
    rows.append(("plan", cost, f"{cost.value[0]} number tasks, {cost.value[1]} shard tasks"))
    numbers, tasks = plan(fill, False)
    began = time.perf_counter()
    write_all(fill, tasks, numbers)
    print(f"  wrote {sum(map(len, tasks)):,} shards in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    rows.append(("watch, a look", measured(look, root), ""))
    rows.append(("resume: plan", measured(plan_alone, root, True), ""))
    cost = measured(left_in, tasks[0], root)
    rows.append(("resume: a check", cost, f"one of {len(tasks)} tasks that workers share"))
    looks: dict[str, list[CheckTask]] = {}
    for task in check_tasks(Outcome(), root):
        looks.setdefault(task.room, []).append(task)
    for room, of_room in looks.items():
        cost = measured(check, of_room[0], root)
        rows.append((f"finish: {room}", cost, f"one of {len(of_room)} tasks that workers share"))
    began = time.perf_counter()
    found = sum((check(task, fill) for of_room in looks.values() for task in of_room), Checked())
    print(f"  looked at everything in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    rows.append(("finish: last step", measured(last_step, root, found), ""))
    rows.append(("watch, complete", measured(look, root), ""))
    for name, cost, what in rows:
        print(f"{shards:>8,}  {name:<18}{cost.requests:>9,}{cost.seconds:>9.2f}{cost.peak_bytes / 1e6:>9.0f}  {what}", flush=True)
    fill.remove_tree()
    fill_source.remove_tree()


def left_in(tasks: Sequence[ShardTask], root: Root) -> int:
    return sum(map(len, left_to_do(tasks, root, SHARDS_PER_TASK)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="an empty place: folder or URL")
    parser.add_argument("--storage-options", type=json.loads, default={}, help="JSON for fsspec")
    parser.add_argument("--shards", type=int, default=40_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--steps", default="0.25,0.5,1")
    parser.add_argument("--served", default="", help="the folder that the server at --output shows (default: put by requests)")
    args = parser.parse_args()
    if "://" in args.output:
        filesystem, path = fsspec.core.url_to_fs(args.output, **args.storage_options)
        filesystem.mkdirs(path.partition("/")[0], exist_ok=True)
    print(f"{'shards':>8}  {'stage':<18}{'requests':>9}{'s':>9}{'MB peak':>9}")
    for share in map(float, args.steps.split(",")):
        step(args.output, args.storage_options, round(args.shards * share), round(args.files * share), args.served)


if __name__ == "__main__":
    main()
