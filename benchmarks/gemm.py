"""The matrix rate of this machine: what every engine figure is a share of."""

import statistics
import threading
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from model.engine.products import PackedLinear, onednn_problem

SQUARE = 4096


def median_seconds(job: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median time of a job after one unmeasured run."""
    seconds = []
    for i in range(repeats + 1):
        _wait(device)
        started = time.perf_counter()
        job()
        _wait(device)
        if i:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rates(dtype: torch.dtype, device: torch.device, lanes: int, width: tuple[int, int], repeats: int) -> dict[str, float]:
    """GFLOP/s of products, by name.

    Args:
        lanes: rows at the gates' shape.
        width: (inputs, outputs) of the gates' product.
        repeats: runs of which the median counts.
    """
    found: dict[str, float] = {}
    for rows, inputs, outputs in ((lanes, *width), (SQUARE, SQUARE, SQUARE)):
        shape = f"{rows}×{inputs}→{outputs}"
        for name, rate in _rates_at(rows, inputs, outputs, dtype, device, repeats).items():
            found[f"{name} {shape}"] = rate
    return found


def _rates_at(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device, repeats: int) -> dict[str, float]:
    flops = 2.0 * rows * inputs * outputs
    inner = max(1, int(2e10 / flops))  # long enough for the clock
    x = torch.randn(rows, inputs).to(device=device, dtype=dtype)
    weight = (torch.randn(outputs, inputs) * 0.03).to(device)
    dense = weight.to(dtype)
    turned = dense.t().contiguous()

    def measured(job: Callable[[], object]) -> float:
        return flops * inner / median_seconds(lambda: [job() for _ in range(inner)], repeats, device) / 1e9

    found = {"torch.mm": measured(lambda: torch.mm(x, turned)), "F.linear": measured(lambda: F.linear(x, dense))}
    if device.type == "cpu" and onednn_problem(dtype) is None:
        packed = PackedLinear(weight, None, dtype, rows)
        found["oneDNN packed"] = measured(lambda: packed(x))
        found["oneDNN packed, two streams"] = _two_streams(packed, x, inner, flops, repeats)
    return found


def _two_streams(packed: PackedLinear, x: torch.Tensor, inner: int, flops: float, repeats: int) -> float:
    """Both halves of the threads on a product of their own, as the engine's two directions do."""
    threads = torch.get_num_threads()

    def work(seconds: list[float], start: threading.Barrier) -> None:
        torch.set_num_threads(max(1, threads // 2))
        packed(x)
        for _ in range(repeats):
            start.wait()
            began = time.perf_counter()
            for _ in range(inner):
                packed(x)
            start.wait()
            seconds.append(time.perf_counter() - began)

    seconds: list[float] = []
    start = threading.Barrier(2)
    workers = [threading.Thread(target=work, args=(seconds, start)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.set_num_threads(threads)
    return 2 * flops * inner / statistics.median(seconds) / 1e9
