"""The stages of a job without its engine, for tests and benchmarks of what grows with the corpus: states are zeros."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from safetensors.numpy import save

from elmo_store.format.layout import INPUTS, START_STATE
from elmo_store.format.manifest import (
    InputInfo,
    Manifest,
    ModelInfo,
    StartStateInfo,
    encode_inputs,
    read_manifest,
)
from elmo_store.storage.root import Root
from elmo_store.writer import write_shard
from model.options import BiLMOptions
from transforms.inputs.records import ReadSettings, describe_files
from transforms.stages.number import merge_ids, number_parts, runs_to_do
from transforms.stages.plan import BEGUN, NUMBER, SHARDS, ShardTask, plan_job
from transforms.stages.shards import part_reader, read_shard
from transforms.stages.split import listed_tasks, plan_splits, read_tasks, write_tasks
from transforms.stages.tokenise import tokenise_task

SHARD_ROWS, CHANNELS, TOKENS_A_LINE = 256, 8, 16
READ = ReadSettings(tokenizer="whitespace")
SHARDS_PER_TASK = 128
WRITERS = 16


def count_requests() -> list[int]:
    """A counter of the requests that obstore and s3fs make from now on; it stays 0 on other filesystems."""
    n = [0]
    try:
        from s3fs import S3FileSystem

        from elmo_store.storage.obstore_client import ObstoreFileSystem
    except ImportError:
        return n
    request = ObstoreFileSystem._call

    def counted_request(self: Any, *args: Any, **options: Any) -> Any:
        n[0] += 1
        return request(self, *args, **options)

    ObstoreFileSystem._call = counted_request  # type: ignore[method-assign]
    call = S3FileSystem._call_s3

    async def counted(self: Any, *args: Any, **options: Any) -> Any:
        n[0] += 1
        return await call(self, *args, **options)

    S3FileSystem._call_s3 = counted
    return n


def put_input(root: Root, first: int, stop: int, lines: int) -> None:
    """Files ``first … stop`` of the input."""
    filesystem, base = root.filesystem, root.path()
    text = "".join(
        " ".join(f"word{(i * 31 + j) % 5000}" for j in range(TOKENS_A_LINE)) + "\n"
        for i in range(lines)
    ).encode()
    if root.is_local:
        filesystem.makedirs(base, exist_ok=True)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(
            pool.map(
                lambda i: filesystem.pipe_file(f"{base}/{i:06d}.tok", text), range(first, stop)
            )
        )


def manifest_of(root: Root) -> Manifest:
    """The incomplete manifest of a job like embed's, with its start state in the store."""
    options = BiLMOptions(
        cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=CHANNELS, dim=16, n_layers=2, activation="relu",
        filters=((1, 8),), n_highway=1, char_embedding_dim=4,
    )  # fmt: skip
    root.put(
        START_STATE,
        save({"h": np.zeros((2, 2, CHANNELS), np.float32), "c": np.zeros((2, 2, 16), np.float32)}),
    )
    return Manifest(
        kind="states", complete=False, model=ModelInfo("none", "sha256:" + "0" * 64, options.to_dict()), tokenizer="whitespace/1",
        start_state=StartStateInfo("zero", "0" * 64), dtype="float16", precision="float32", boundaries=False,
        states=("x", "fwd1", "bwd1", "fwd2", "bwd2"), channels=CHANNELS, shard_rows=SHARD_ROWS, forms=("zarr",),
        compression="none", counts=None, input=InputInfo("sha256:" + "0" * 64, 0), job={}, software={},
    )  # fmt: skip


def preflight(source: str, options: dict[str, Any], root: Root) -> int:
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
    outputs = list(plan_job([0], root, READ, SHARDS_PER_TASK, 32, resumed))
    return [o.value for o in outputs if o.tag == NUMBER], [
        o.value for o in outputs if o.tag == SHARDS
    ]


def plan_alone(root: Root, resumed: bool) -> tuple[int, int]:
    """The plan as a worker does it: tasks leave it one by one."""
    n = {NUMBER: 0, SHARDS: 0, BEGUN: 0}
    for output in plan_job([0], root, READ, SHARDS_PER_TASK, 32, resumed):
        n[output.tag] += 1
    return n[NUMBER], n[SHARDS]


def write_all(root: Root, tasks: Sequence[Sequence[ShardTask]], numbers: Sequence[Any]) -> None:
    """All shards, parts and ids of the job, the states being zeros."""
    for number in numbers:
        number_parts(number, root)
    for run in runs_to_do([], root):
        merge_ids(run, root)
    manifest = read_manifest(root)
    plan_id = json.loads(root.get("_work/plan.json"))["id"]

    def write(batch: Sequence[ShardTask]) -> None:
        read_part = part_reader(root)
        for task in batch:
            states = np.zeros((task.n_rows, len(manifest.states), CHANNELS), np.float16)
            write_shard(
                root,
                manifest,
                read_shard(read_part, task, False).rows(),
                states,
                plan_id,
                {"tokens": task.n_rows},
            )

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, tasks))
