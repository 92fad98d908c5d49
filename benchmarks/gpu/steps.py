"""What `benchmarks.gpu.day` measures, each by itself: ``python -m benchmarks.gpu.steps engine|job``.

engine     tokens/s of calls as large as a job's, by precision and lanes
job        ``elmo-store embed`` into memory-backed storage: tokens/s, and what the markers say of where the time went

Full size, random weights. With --rehearse all of it is tiny and on the CPU: the device is `CudaDevice` without its graphs.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.job import run_job
from benchmarks.shared.support import machine, options_of
from benchmarks.shared.texts import SHAPES, running_text, take, write_lines, write_model
from model.engine import embedder
from model.engine.cuda import CudaDevice
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.engine.planning.host import Prepared
from model.engine.planning.text import Text
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.start_state import StartState

CALLS = 3  # of which tokens/s are taken


def new_engine(weights: BiLMWeights, args: argparse.Namespace, precision: str, lanes: int) -> Embedder:
    """An engine on the GPU, or with ``args.rehearse`` the same code on the CPU."""
    if not args.rehearse:
        torch.cuda.empty_cache()  # of the last engine
    settings = EngineSettings(precision=precision, device="cpu" if args.rehearse else "cuda", lanes=lanes)  # type: ignore[arg-type]
    start = StartState.zero(weights.options)

    def rehearsed(*given: Any) -> CudaDevice:
        return CudaDevice(weights, start, settings, torch.device("cpu"))

    with mock.patch.object(embedder, "_device", rehearsed) if args.rehearse else nullcontext():
        return Embedder(weights, start, settings)


def distinct_text() -> Iterator[list[str]]:
    """Endless sentences of which no two are the same, as repeated ones are computed once: held-out, or made up."""
    known = take(running_text(), 700_000)
    for count in itertools.count():
        for sentence in known:
            yield [*sentence, str(count)]


def run_calls(engine: Embedder, prepared: Sequence[Prepared]) -> float:
    """Seconds of calls one after another, the states of one on their way while the next is computed."""
    began = time.perf_counter()
    last = engine.run(prepared[0])
    for call in prepared[1:]:
        running = engine.run(call)
        last.result()
        last = running
    last.result()
    return time.perf_counter() - began


def engine(weights: BiLMWeights, args: argparse.Namespace) -> None:
    """For each precision and number of lanes tokens/s of calls one after another."""
    text = distinct_text()
    texts = [Text.of([SentenceRows(s, 0, len(s)) for s in take(text, args.tokens or 835_584)]) for _ in range(CALLS + 2)]
    for precision, lanes in product(args.precision, args.lanes):
        made = new_engine(weights, args, precision, lanes)
        prepared = [made.prepare(text) for text in texts]
        run_calls(made, prepared[:2])  # tables are filled, memory is had
        rate = sum(len(text.words) for text in texts[2:]) / run_calls(made, prepared[2:])
        print(f"{precision}, {made._device.computes_on}, {made.cell}: {rate:,.0f} tokens/s", flush=True)
        del made  # and its memory


def job(args: argparse.Namespace) -> None:
    """The command once."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        text = write_lines(Path(scratch) / "text.txt", distinct_text(), args.tokens or 6_000_000)
        model = write_model(Path(scratch) / "model.safetensors", args.shape)
        options = ["--input-format", args.input_format, "--model", str(model), "--dtype", args.dtype, "--store", "zarr"]
        options += ["--precision", args.precision[0], "--device", "cpu" if args.rehearse else "cuda"]
        run = run_job([str(text)], options, Path(scratch) / "store")
    tokens, computing = int(run.sums["tokens"]), run.sums["seconds_computing"]
    print(f"{args.dtype}, {args.input_format}, {args.precision[0]}: {tokens:,} tokens in {run.seconds:.1f} s")
    print(f"    whole command {tokens / run.seconds:,.0f} tokens/s; while computing {tokens / computing:,.0f}")
    for name, seconds in sorted(run.sums.items()):
        if "seconds" in name:
            print(f"    {name:28s} {seconds:10.2f} s, summed over shards")


def main() -> None:
    parser = options_of(__doc__)
    add = parser.add_argument
    add("step", choices=("engine", "job"))
    add("--precision", nargs="+", default=["tf32", "bfloat16"], help="a job's is the first (default: tf32 bfloat16)")
    add("--lanes", nargs="+", type=int, default=[2048, 1024, 4096], help="(default: 2048 1024 4096)")
    add("--tokens", type=int, help="(default: 835584 a call of engine; 6000000 of job, which take 34 GB of memory)")
    add("--dtype", choices=("float16", "int8"), default="float16", help="of a job's store (default: float16)")
    add("--input-format", default="lines", help="of a job's text: lines, or text, which is tokenised (default: lines)")
    add("--rehearse", action="store_true", help="on the CPU, everything tiny")
    args = parser.parse_args()
    args.shape = "tiny" if args.rehearse else "full"
    if args.rehearse:
        args.lanes, args.tokens = [4, 8], 400
    print(machine(), flush=True)
    if args.step == "job":
        job(args)
    else:
        engine(random_weights(SHAPES[args.shape]), args)


if __name__ == "__main__":
    main()
