"""`python -m benchmarks.host`: tokens/s a core of all that a job does beside the biLM, from text to a complete store.

The job is ``elmo-store embed`` in this process, with rows of 5 x 512 states in float16 and an engine that computes nothing: its
states are a buffer that is there already. All else is done as in any job: text is read and tokenised, calls are planned for a
GPU's lanes, shards are encoded, hashed, put and marked by as many threads as a GPU's job has, under a lease with its heartbeats.

What Beam takes to begin and end is measured by a job of next to no tokens, and told apart from the rate. Stores are folders in
/dev/shm. A virtual machine's host takes free memory back, and to write it again costs more than all that a job does, so what is
free is held first, half a minute. Where other programs run, `chrt -r 1` before the command (root) keeps these out. Options
that are not its own go to ``elmo-store embed``.
"""

import argparse
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import elmo_store as stores
from benchmarks.shared.support import Table, machine, options_of, working_folder
from benchmarks.shared.texts import SHAPES, running_text, write_lines
from elmo_store.format.characters import char_ids
from model.engine import embedder
from model.engine.cuda import GROUP_ROWS, LANES, LONG_LANES, WINDOW, long_tokens
from model.engine.device import Device
from model.engine.planning.grid import Limits
from model.engine.states import States, Wanted, quantised
from model.files.registry import random_weights
from pipeline.jobs import embed_job
from pipeline.main import main as elmo_store

MODEL = SHAPES["wide"]
LIMITS = Limits(
    [LANES], WINDOW, WINDOW * LANES, (LONG_LANES,), long_tokens(LANES, GROUP_ROWS), GROUP_ROWS
)  # a GPU's
TOKENS, LITTLE_TOKENS, JOBS, BLOCK_BYTES = 300_000, 1000, 8, 1 << 18
WRITERS, CALL_ROWS, SHARD_ROWS = 8, 131_072, 16_384


class BufferDevice(Device):
    """In place of a GPU: its states are those of one buffer."""

    device, hardware, cell = torch.device("cpu"), "none, a buffer", "none"
    directions, limits, word_capacity = (), LIMITS, 1 << 18

    def __init__(self, int8: bool) -> None:
        numbers = torch.randn(
            5, CALL_ROWS // 16 + 1, MODEL.projection_dim, generator=torch.Generator().manual_seed(0)
        )
        self._values = numbers.to(torch.float16).repeat(1, 16, 1)
        self._scale: Tensor | None = None
        if int8:
            values, scale = zip(*map(quantised, numbers), strict=True)
            self._values, self._scale = (
                torch.stack(values).repeat(1, 16, 1),
                torch.stack(scale, dim=1).repeat(16, 1),
            )

    def vectors(self, words: Sequence[str]) -> Tensor:
        char_ids(words)
        return torch.zeros(len(words), MODEL.projection_dim)

    def result(self, wanted: Wanted, rows: int, width: int) -> States:
        return States(wanted, self._values, self._scale).rows(0, rows)

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        pass


def hold_free_memory() -> mmap.mmap:
    """A page of each ``BLOCK_BYTES`` of what is free: a host takes back larger blocks alone, of which nothing is in use."""
    size = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // BLOCK_BYTES * 8 // 10 * BLOCK_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    for _ in range(0, size, BLOCK_BYTES):
        memory.write(bytes(BLOCK_BYTES))
    for block in range(0, size, BLOCK_BYTES):
        memory.madvise(mmap.MADV_DONTNEED, block + mmap.PAGESIZE, BLOCK_BYTES - mmap.PAGESIZE)
    return memory


def measured(
    args: argparse.Namespace, text: Path, model: Path, output: str
) -> tuple[int, float, float]:
    """``embed`` in this process: its tokens, seconds of the wall's clock, and those of the processor."""
    device, job_of = BufferDevice("int8" in args.options), embed_job.job_of

    def sized(*given: Any) -> embed_job.Job:
        return replace(
            job_of(*given),
            writers=WRITERS,
            shards_per_call=CALL_ROWS // SHARD_ROWS,
            read_processes=1,
        )

    options = [
        "--input-format",
        "lines",
        "--model",
        str(model),
        "--output",
        output,
        "--overwrite",
        "--quiet",
    ]
    began, busy = time.perf_counter(), time.process_time()
    with (
        mock.patch.object(embed_job, "job_of", sized),
        mock.patch.object(embedder, "_device", return_value=device),
        redirect_stdout(StringIO()),
    ):
        code = elmo_store(
            ["embed", str(text), *options, "--shard-rows", str(SHARD_ROWS), *args.options]
        )
    if code:
        raise RuntimeError(f"embed ended with {code}")
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    tokens = stores.open(output).n_tokens
    shutil.rmtree(output)
    return tokens, wall, cpu


def main() -> None:
    parser = options_of(__doc__)
    args, options = parser.parse_known_args()
    args.options = options
    print(machine())
    with (
        working_folder() as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as output,
        hold_free_memory(),
    ):
        text, model = (
            write_lines(folder / "text.txt", running_text(), TOKENS),
            folder / "model.safetensors",
        )
        little = write_lines(folder / "little.txt", running_text(), LITTLE_TOKENS)
        random_weights(MODEL).save_safetensors(model)
        _, start = (
            measured(args, little, model, f"{output}/{k}") for k in range(2)
        )  # the first loads modules
        jobs = [measured(args, text, model, f"{output}/store") for _ in range(JOBS)]
    title = f"{WRITERS} writers, calls of {CALL_ROWS:,} rows, shards of {SHARD_ROWS:,}"
    table = Table(
        title, "job", "tokens", "seconds", "cpu s", "tokens/s", "a core, beyond the start"
    )
    table.row("start", *start, start[0] / start[1], "")
    rates = [(tokens - start[0]) / (cpu - start[2]) for tokens, _, cpu in jobs]
    for k, (tokens, wall, cpu) in enumerate(jobs):
        table.row(str(k + 1), tokens, wall, cpu, tokens / wall, rates[k])
    print(f"\n{median(rates):,.0f} tokens/s a core beyond the start, the median")


if __name__ == "__main__":
    main()
