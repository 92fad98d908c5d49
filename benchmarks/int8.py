"""`python -m benchmarks.int8`: what 8-bit products gain. A step's products, u8 × s8 and bfloat16 in turn. Imports torch, model.

Weights are quantised by channel, rows of x and h by row (their scale is applied behind the product). One thread, as a direction
has on two cores; the fastest of many short turns counts, so that a machine that others use can still tell the two apart. What
quantising costs, and what the product's error is against float32, stand beside it.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.processes import machine
from model.engine.onednn import PackedLinear

SHAPES = {"second layer's gates": (1024, 16384), "first layer's gates": (512, 16384), "projection": (4096, 512)}


def quantised_product(weight: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """x uint8 [rows, in], its zero at 128 → (x - 128) · Wᵀ by channel's scale, bfloat16 [rows, out]."""
    scale = weight.abs().amax(dim=1) / 127  # [out]
    levels = (weight / scale[:, None]).round().to(torch.int8)  # [out, in]
    packed = torch.ops.onednn.qlinear_prepack(levels, [rows, weight.shape[1]])
    zero = torch.zeros(len(weight), dtype=torch.int64)

    def product(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 128, packed, scale, zero, None, 1.0, 0, torch.bfloat16, "none", [], ""
        )
        return y

    return product


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [rows, in] → uint8 with zero at 128, and each row's scale."""
    scale = x.abs().amax(dim=1, keepdim=True) / 127  # [rows, 1]
    return (x / scale).round_().add_(128).to(torch.uint8), scale


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
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; {args.lanes} lanes, one thread, fastest of {args.turns} turns")
    print(f"{'product':22s}{'bfloat16 ms':>12s}{'u8 × s8 ms':>12s}{'quantising':>12s}{'as fast':>9s}{'error':>8s}")
    step = {"bfloat16": 0.0, "int8": 0.0}
    generator = torch.Generator().manual_seed(0)
    for name, (inputs, outputs) in SHAPES.items():
        weight = torch.randn(outputs, inputs, generator=generator) * 0.03
        x = torch.randn(args.lanes, inputs, generator=generator)
        rough, exact = PackedLinear(weight, None, torch.bfloat16, args.lanes), x @ weight.t()
        eighth, (levels, scale), short = quantised_product(weight, args.lanes), quantise(x), x.bfloat16()
        error = ((eighth(levels).float() * scale - exact).abs().mean() / exact.abs().mean()).item()
        jobs: dict[str, Callable[[], object]] = {
            "bfloat16": lambda rough=rough, short=short: rough(short),  # type: ignore[misc]
            "int8": lambda eighth=eighth, levels=levels: eighth(levels),  # type: ignore[misc]
            "quantise": lambda x=x: quantise(x),  # type: ignore[misc]
        }
        took = fastest(jobs, args.turns)
        step["bfloat16"] += took["bfloat16"]
        step["int8"] += took["int8"] + took["quantise"]
        ratio = took["bfloat16"] / (took["int8"] + took["quantise"])
        print(
            f"{name:22s}{took['bfloat16']:12.2f}{took['int8']:12.2f}{took['quantise']:12.2f}{ratio:8.2f}×{error:8.2%}", flush=True
        )
    print(f"{'all three':22s}{step['bfloat16']:12.2f}{step['int8']:12.2f}{'':12s}{step['bfloat16'] / step['int8']:8.2f}×")


if __name__ == "__main__":
    main()
