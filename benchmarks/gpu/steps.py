"""What `benchmarks.gpu.day` measures, each by itself: ``python -m benchmarks.gpu.steps stability|engine|job``.

stability  are a sentence's bytes the same alone, in any company and order (they must be, or this ends with 1), and with other
           lanes; and how far the states are from a CPU's in float32
engine     tokens/s of calls as large as a job's, by precision and lanes
job        ``elmo-store embed`` into memory-backed storage: tokens/s, what the markers say of where the time went, and how much
           of it the GPU was busy (nvidia-smi)

Full size, random weights. With --rehearse all of it is tiny and on the CPU: the device is `CudaDevice` without its graphs.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.job import run_job
from benchmarks.shared.support import machine, options_of
from benchmarks.shared.texts import SHAPES, Sentences, held_out_lines, made_up_text, take, write_lines, write_model
from model.engine import embedder
from model.engine.cuda import CudaDevice
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.engine.planning.host import Prepared
from model.engine.planning.text import Text
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.start_state import StartState

CALLS = 3  # of which tokens/s are taken
PARITY = {"float32": 1e-5, "tf32": 1e-3}  # goals; bfloat16's error is told, not judged
JOB_BYTES = {"float16": 5 * 512 * 2, "int8": 5 * 512 + 20}  # a token
SMI = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]


@contextmanager
def new_engine(weights: BiLMWeights, args: argparse.Namespace, precision: str, lanes: int) -> Iterator[Embedder]:
    """An engine on the GPU, or with ``args.rehearse`` the same code on the CPU."""
    device = "cpu" if args.rehearse else "cuda"
    settings = EngineSettings(precision=precision, device=device, lanes=lanes)  # type: ignore[arg-type]

    def rehearsed(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> CudaDevice:
        return CudaDevice(weights, start, settings, torch.device("cpu"))

    with mock.patch.object(embedder, "_device", rehearsed) if args.rehearse else nullcontext():
        engine = Embedder(weights, StartState.zero(weights.options), settings)
    yield engine
    del engine
    if not args.rehearse:
        torch.cuda.empty_cache()


def states_of(engine: Embedder, sentences: Sentences) -> list[np.ndarray[Any, Any]]:
    """Of each sentence [tokens, 2L+1, p], in float32."""
    states = engine.embed([SentenceRows(s, 0, len(s)) for s in sentences], dtype="float32")
    return np.split(states, np.cumsum([len(s) for s in sentences])[:-1])


def same(a: Sequence[np.ndarray[Any, Any]], b: Sequence[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def stability(weights: BiLMWeights, args: argparse.Namespace) -> bool:
    """Each precision's lines; whether what must be is."""
    sentences, right = take(distinct_text(), args.tokens or 60_000), True
    few = sentences[:: max(1, len(sentences) // 40)]
    exact = states_of(Embedder(weights, StartState.zero(weights.options), EngineSettings(device="cpu")), few)
    order = np.random.default_rng(0).permutation(len(sentences))
    for precision in args.precision:
        first: list[np.ndarray[Any, Any]] | None = None
        for lanes in args.lanes:
            with new_engine(weights, args, precision, lanes) as engine:
                states = states_of(engine, sentences)
                turned = states_of(engine, [sentences[i] for i in order])
                alone = [states_of(engine, [sentence])[0] for sentence in few[:5]]
                of_few = states_of(engine, few)
            checks = {
                "in another order": same(turned, [states[i] for i in order]),
                "in other company": same(of_few, states[:: max(1, len(sentences) // 40)]),
                "alone": same(alone, of_few[:5]),
            }
            first = first or states
            across = max(float(np.abs(a - b).max()) for a, b in zip(states, first, strict=True))
            error = max(float(np.abs(a - b).max()) for a, b in zip(of_few, exact, strict=True))
            right &= all(checks.values()) and error <= PARITY.get(precision, np.inf)
            told = ", ".join(f"{name} {'the same bytes' if held else 'OTHER BYTES'}" for name, held in checks.items())
            told += f"; from {args.lanes[0]} lanes at most {across:.1e}, from float32 on a CPU {error:.1e}"
            print(f"{precision} {lanes} lanes: {told}", flush=True)
    return right


def distinct_text() -> Iterator[list[str]]:
    """Endless sentences of which no two are the same, as repeated ones are computed once: held-out, or made up."""
    known = held_out_lines("tokenised") or take(made_up_text(), 700_000)
    for count in itertools.count():
        for sentence in known:
            yield [*sentence, str(count)]


def run_calls(engine: Embedder, prepared: Sequence[Prepared]) -> float:
    """Seconds of calls one after another, the states of one on their way while the next is computed."""
    began, last = time.perf_counter(), None
    for call in prepared:
        running = engine.run(call)
        if last is not None:
            last.result()
        last = running
    assert last is not None
    last.result()
    return time.perf_counter() - began


def engine(weights: BiLMWeights, args: argparse.Namespace) -> bool:
    """For each precision and number of lanes tokens/s of calls one after another."""
    text = distinct_text()
    texts = [Text.of([SentenceRows(s, 0, len(s)) for s in take(text, args.tokens or 835_584)]) for _ in range(CALLS + 2)]
    for precision, lanes in product(args.precision, args.lanes):
        with new_engine(weights, args, precision, lanes) as made:
            prepared = [made.prepare(text) for text in texts]
            run_calls(made, prepared[:2])  # tables are filled, memory is had
            rate = sum(len(text.words) for text in texts[2:]) / run_calls(made, prepared[2:])
            print(f"{precision}, {made._device.computes_on}, {made.cell}: {rate:,.0f} tokens/s", flush=True)
    return True


def busy_shares(lines: str) -> list[float]:
    """What nvidia-smi said of every 0.2 s, from the first to the last in which the GPU was busy."""
    shares = [int(line) / 100 for line in lines.split() if line.isdigit()]
    busy = [i for i, share in enumerate(shares) if share > 0]
    return shares[busy[0] : busy[-1] + 1] if busy else []


def job(args: argparse.Namespace) -> bool:
    """The command once."""
    tokens, needed = args.tokens or 6_000_000, JOB_BYTES[args.dtype]
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if tokens * needed * 1.1 > free:
        tokens = int(free / needed / 1.1)
        print(f"{folder} has {free / 2**30:.0f} GiB: {tokens:,} tokens")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        text = write_lines(Path(scratch) / "text.txt", distinct_text(), tokens)
        model = write_model(Path(scratch) / "model.safetensors", args.shape)
        options = ["--input-format", args.input_format, "--model", str(model), "--dtype", args.dtype, "--store", "zarr"]
        options += ["--precision", args.precision[0], "--device", "cpu" if args.rehearse else "cuda"]
        sampler = subprocess.Popen(SMI, stdout=subprocess.PIPE, text=True) if shutil.which(SMI[0]) else None
        try:
            run = run_job([str(text)], options, Path(scratch) / "store")
        finally:
            if sampler is not None:
                sampler.terminate()
        shares = busy_shares(sampler.communicate()[0]) if sampler is not None else []
    tokens, computing = int(run.sums["tokens"]), run.sums["seconds_computing"]
    print(f"{args.dtype}, {args.input_format}, {args.precision[0]}: {tokens:,} tokens in {run.seconds:.1f} s")
    print(f"    whole command {tokens / run.seconds:,.0f} tokens/s; while computing {tokens / computing:,.0f}")
    for name, seconds in sorted(run.sums.items()):
        if "seconds" in name:
            print(f"    {name:28s} {seconds:10.2f} s, summed over shards")
    busy = (
        f"device busy {statistics.mean(shares):.0%} of {len(shares) / 5:.0f} s" if shares else "no nvidia-smi: busy share unknown"
    )
    print(f"    {busy}")
    return True


def main() -> int:
    parser = options_of(__doc__)
    add = parser.add_argument
    add("step", choices=("stability", "engine", "job"))
    add("--precision", nargs="+", default=["tf32", "bfloat16"], help="a job's is the first (default: tf32 bfloat16)")
    add("--lanes", nargs="+", type=int, default=[2048, 1024, 4096], help="(default: 2048 1024 4096)")
    add("--tokens", type=int, help="(default: 60000 of stability, 835584 a call of engine, 6000000 of job)")
    add("--dtype", choices=tuple(JOB_BYTES), default="float16", help="of a job's store (default: float16)")
    add("--input-format", default="lines", help="of a job's text: lines, or text, which is tokenised (default: lines)")
    add("--rehearse", action="store_true", help="on the CPU, everything tiny")
    args = parser.parse_args()
    args.shape = "tiny" if args.rehearse else "full"
    if args.rehearse:
        args.lanes, args.tokens = [4, 8], 400
    print(machine(), flush=True)
    if args.step == "job":
        return 0 if job(args) else 1
    weights = random_weights(SHAPES[args.shape])
    return 0 if (stability if args.step == "stability" else engine)(weights, args) else 1


if __name__ == "__main__":
    sys.exit(main())
