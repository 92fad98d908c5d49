"""`python -m benchmarks.int8`: what 8-bit products gain. A step's products, u8 × s8 and bfloat16 in turn.

Weights are quantised by channel, rows by row; quantising and scaling are in the time. One thread, as a direction has on two
cores; the fastest of many short turns counts, so that a machine that others use can still tell the two apart. The error is the
product's against float32; `python -m benchmarks.precision --precision bfloat16 int8` has the states'. Last, the whole engine.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.engine import SHAPES as SHAPES_OF_MODELS
from benchmarks.engine import made_up_text, measure, read_held_out, take
from benchmarks.processes import machine
from model.engine.embedder import Embedder, EngineSettings
from model.engine.products import Int8Linear, PackedLinear
from model.files.registry import random_weights
from model.start_state import StartState

SHAPES = {"second layer's gates": (1024, 16384), "first layer's gates": (512, 16384), "projection": (4096, 512)}


def fastest(jobs: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Milliseconds of each job's fastest turn, the jobs in turn."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(turns):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            best[name] = min(best[name], 1000 * (time.perf_counter() - began))
    return best


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.int8", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lanes", type=int, default=128, help="rows of a step (default: 128)")
    parser.add_argument("--turns", type=int, default=60, help="of which the fastest counts (default: 60)")
    parser.add_argument("--tokens", type=int, default=8192, help="of a call of the whole engine, 0 = none (default: 8192)")
    parser.add_argument("--repeats", type=int, default=5, help="calls of the engine (default: 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; {args.lanes} lanes, one thread, fastest of {args.turns} turns")
    print(f"{'product':22s}{'bfloat16 ms':>12s}{'int8 ms':>9s}{'as fast':>9s}{'error':>8s}")
    step = {"bfloat16": 0.0, "int8": 0.0}
    generator = torch.Generator().manual_seed(0)
    for name, (inputs, outputs) in SHAPES.items():
        weight = torch.randn(outputs, inputs, generator=generator) * 0.03
        x = torch.randn(args.lanes, inputs, generator=generator)
        exact, short = x @ weight.t(), x.bfloat16()
        products: dict[str, PackedLinear | Int8Linear] = {
            "bfloat16": PackedLinear(weight, None, torch.bfloat16, args.lanes),
            "int8": Int8Linear(weight, None, args.lanes),
        }
        error = ((products["int8"](short).float() - exact).abs().mean() / exact.abs().mean()).item()
        took = fastest({key: partial(product, short) for key, product in products.items()}, args.turns)
        for key, milliseconds in took.items():
            step[key] += milliseconds
        ratio = took["bfloat16"] / took["int8"]
        print(f"{name:22s}{took['bfloat16']:12.2f}{took['int8']:9.2f}{ratio:8.2f}×{error:8.2%}", flush=True)
    print(f"{'all three':22s}{step['bfloat16']:12.2f}{step['int8']:9.2f}{step['bfloat16'] / step['int8']:8.2f}×")
    if args.tokens:
        engines(args.tokens, args.repeats)


def engines(tokens: int, repeats: int) -> None:
    """The engine at full size in both precisions, call by call in turn, on the same stretches of text."""
    torch.set_num_threads(os.cpu_count() or 1)
    weights = random_weights(SHAPES_OF_MODELS["full"])
    start, text = StartState.zero(weights.options), read_held_out() or made_up_text()
    settings = [EngineSettings(precision="bfloat16", device="cpu"), EngineSettings(precision="int8", device="cpu")]
    pair = [Embedder(weights, start, each) for each in settings]
    runs = []
    for _ in range(repeats + 1):
        part = take(text, tokens)
        runs.append([measure(embedder, part) for embedder in pair])
    rough, eighth = (statistics.median(run[k].tokens / run[k].seconds for run in runs[1:]) for k in (0, 1))
    gains = [run[0].seconds / run[1].seconds for run in runs[1:]]
    low, middle, high = statistics.quantiles(gains, n=4, method="inclusive")
    print(f"engine, {repeats} × {tokens:,} tokens: bfloat16 {rough:,.0f} tokens/s, int8 {eighth:,.0f}: ", end="")
    print(f"{middle:.2f} × (quartiles {low:.2f} … {high:.2f})")


if __name__ == "__main__":
    main()
