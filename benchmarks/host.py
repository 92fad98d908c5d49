"""`python -m benchmarks.host`: tokens/s a core of all that a job does beside the biLM, from text to a complete store.

The job is ``elmo-store embed`` in this process, with rows of 5 x 512 states in float16 and an engine that computes nothing: its
states are a buffer that is there already. All else is done as in any job: text is read and tokenised, calls are planned for a
GPU's lanes, shards are encoded, hashed, put and marked by as many threads as a GPU's job has, under a lease with its heartbeats.

The table says which steps take the processor seconds of this process, each without the steps within it. What Beam takes to begin
and end is measured by a job of next to no tokens, and told apart from the rate. The store is a folder in /dev/shm. Where other
programs run, `chrt -r 1` before the command (root) keeps these out. Options that are not its own go to ``elmo-store embed``.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import wraps
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import elmo_store as stores
from benchmarks.shared.support import Table, machine, options_of, working_folder
from benchmarks.shared.texts import SHAPES, running_text, write_lines
from elmo_store.format import markers
from elmo_store.format.markers import ObjectRecord
from elmo_store.forms import shards as forms
from elmo_store.storage import lease
from elmo_store.storage.root import Root
from model.characters import char_ids
from model.engine import embedder
from model.engine.cuda import GROUP_ROWS, LANES, LONG_LANES, long_tokens
from model.engine.cuda_direction import WINDOW
from model.engine.device import Device
from model.engine.planning.grid import Limits
from model.engine.planning.host import Host
from model.engine.states import States, Wanted, quantised
from model.files.registry import random_weights
from pipeline.jobs import embed_job
from pipeline.main import main as elmo_store
from transforms.runtime import owner, worker
from transforms.stages import embed, finish, number, plan, shards, tokenise

MODEL = SHAPES["wide"]
# Those of the GPU's engine.
LIMITS = Limits([LANES], WINDOW, WINDOW * LANES, (), True, (LONG_LANES,), long_tokens(LANES, GROUP_ROWS), GROUP_ROWS)
LITTLE_TOKENS = 1000
WRITERS, CALL_ROWS, SHARD_ROWS = 8, 131_072, 16_384
OUR_PACKAGES = ("elmo_store", "model", "pipeline", "transforms")


class BufferDevice(Device):
    """In place of a GPU: its states are those of one buffer."""

    device, hardware, cell = torch.device("cpu"), "none, a buffer", "none"
    directions, limits, word_capacity = (), LIMITS, 1 << 18

    def __init__(self, int8: bool) -> None:
        numbers = torch.randn(5, CALL_ROWS // 16 + 1, MODEL.projection_dim, generator=torch.Generator().manual_seed(0))
        self._values = numbers.to(torch.float16).repeat(1, 16, 1)
        self._scale: Tensor | None = None
        if int8:
            values, scale = zip(*map(quantised, numbers), strict=True)
            self._values, self._scale = torch.stack(values).repeat(1, 16, 1), torch.stack(scale, dim=1).repeat(16, 1)

    def vectors(self, words: Sequence[str]) -> Tensor:
        char_ids(words)
        return torch.zeros(len(words), MODEL.projection_dim)

    def result(self, wanted: Wanted, rows: int, width: int) -> States:
        return States(wanted, self._values, self._scale).rows(0, rows)

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        pass


class Spent:
    """Processor seconds of threads by step, each without the steps within it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._within = threading.local()  # seconds of the steps within the present one

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outside, self._within.seconds = getattr(self._within, "seconds", 0.0), 0.0
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.thread_time() - began
                with self._lock:
                    self.seconds[step] += seconds - self._within.seconds
                self._within.seconds = outside + seconds

        return call


STEPS: dict[str, Sequence[tuple[Any, str]]] = {
    "start of the job": [(embed_job, "open_job")],
    "read and tokenise": [(tokenise, "finished_task")],
    "plan the job": [(plan, "corpus_plan"), (plan, "id_of_plan"), (plan, "write_plan")],
    "number sentences, ids": [(number, "number_parts"), (number, "merge_ids")],
    "read the calls' text": [(embed, "read_call")],
    "plan the calls": [(embedder.Embedder, "prepare"), (Host, "planned")],
    "ask the engine": [(embedder.Embedder, "run"), (embedder.RunningCall, "result")],
    "free memory": [(worker, "release_memory")],
    "encode": [(forms, "encode_shard")],
    "tokens of rows": [(shards.Excerpt, "tokens")],
    "hash": [(ObjectRecord, "of")],
    "put": [(Root, "put")],
    "markers": [(markers, "write_marker"), (markers, "read_marker")],
    "lease, heartbeats": [(owner.Run, "confirm"), (lease.LeaseHolder, "_beat")],
    "writers, the rest": [(embed, "write")],
    "finish": [(finish, "check"), (finish, "finish_job")],
}


@contextmanager
def timed_steps() -> Iterator[Spent]:
    """All `STEPS` timed while the context lasts, under every name that our modules know them by."""
    spent = Spent()
    with ExitStack() as patches:
        for step, functions in STEPS.items():
            for owner, name in functions:
                original = vars(owner)[name]
                timed: Any = spent.timed(step, getattr(original, "__func__", original))
                for holder in [owner] if isinstance(owner, type) else _modules_with(name, original):
                    value = classmethod(timed) if isinstance(original, classmethod) else timed
                    patches.enter_context(mock.patch.object(holder, name, value))
        yield spent


def _modules_with(name: str, value: Any) -> list[Any]:
    return [
        module for module_name, module in sys.modules.items()
        if module_name.partition(".")[0] in OUR_PACKAGES and vars(module).get(name) is value
    ]  # fmt: skip


def run_job(args: argparse.Namespace, device: Device, text: Path, model: Path, output: str) -> None:
    """``embed`` in this process. RuntimeError unless it ends well."""
    job_of = embed_job.job_of

    def sized(*given: Any) -> embed_job.Job:
        return replace(job_of(*given), writers=WRITERS, shards_per_call=CALL_ROWS // SHARD_ROWS, read_processes=1)

    options = ["--input-format", "lines", "--model", str(model), "--output", output, "--overwrite", "--quiet"]
    with (
        mock.patch.object(embed_job, "job_of", sized),
        mock.patch.object(embedder, "_device", return_value=device),
        redirect_stdout(StringIO()),
    ):
        code = elmo_store(["embed", str(text), *options, "--shard-rows", str(SHARD_ROWS), *args.options])
    if code:
        raise RuntimeError(f"embed ended with {code}")


@dataclass(frozen=True)
class MeasuredJob:
    """One job: its tokens, seconds of the wall's clock, those of the processor, and the latter by step."""

    tokens: int
    wall: float
    cpu: float
    steps: Counter[str]


def measured(args: argparse.Namespace, text: Path, model: Path, output: str) -> MeasuredJob:
    device = BufferDevice("int8" in args.options)
    with timed_steps() as spent:
        began, busy = time.perf_counter(), time.process_time()
        run_job(args, device, text, model, output)
        wall, cpu = time.perf_counter() - began, time.process_time() - busy
    return MeasuredJob(stores.open(output).n_tokens, wall, cpu, spent.seconds)


def show(job: MeasuredJob, start: MeasuredJob, row_bytes: int) -> None:
    """The job's table; ``start``: a job of next to no tokens, whose modules were loaded before, as those of ``job``."""
    tokens, cpu = job.tokens, job.cpu
    title = f"{tokens:,} tokens, {tokens * row_bytes / 1e9:.1f} GB; {WRITERS} writers, calls of {CALL_ROWS:,} rows"
    table = Table(f"{title}, shards of {SHARD_ROWS:,}", "step", "cpu s", "us a token", "share", label_width=28)
    for step, seconds in [*job.steps.most_common(), ("Beam, all else", cpu - job.steps.total())]:
        table.row(step, seconds, seconds / tokens * 1e6, f"{seconds / cpu:.1%}")
    table.row("all", cpu, cpu / tokens * 1e6, "100%")
    rate, wall = (tokens - start.tokens) / (cpu - start.cpu), tokens / job.wall
    print(f"\n{rate:,.0f} tokens/s a core beyond the start, {tokens / cpu:,.0f} with it; {wall:,.0f} of the wall's clock")
    print(f"the start, a job of {start.tokens:,} tokens: {start.cpu:.2f} s of a core")


def main() -> None:
    parser = options_of(__doc__)
    tokens = "of held-out text (default: 600000; each takes 5 KB of the storage)"
    parser.add_argument("--tokens", type=int, default=600_000, help=tokens)
    args, options = parser.parse_known_args()
    args.options = options
    print(machine())
    with working_folder() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as output:
        text, model = write_lines(folder / "text.txt", running_text(), args.tokens), folder / "model.safetensors"
        little = write_lines(folder / "little.txt", running_text(), LITTLE_TOKENS)
        random_weights(MODEL).save_safetensors(model)
        _, start = (measured(args, little, model, f"{output}/{k}") for k in range(2))  # the first loads modules
        job = measured(args, text, model, f"{output}/store")
        show(job, start, stores.open(f"{output}/store").manifest.row_bytes)


if __name__ == "__main__":
    main()
