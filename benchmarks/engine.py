"""The engine on this machine: ``python -m benchmarks.engine [TABLE …]`` prints tables (default: `engine`).

engine     for each precision, random weights, real text, medians: (a) the best product that libraries reach here, (b) the LSTM's
           rate counted as if it multiplied everything (151 MFLOP a token at full size), its share of (a), and what was really
           multiplied, (c) tokens/s
precision  how far each precision's states are from float32's, state by state; float32 is tested against float64
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from benchmarks.shared.support import Table, in_turns, machine, options_of
from benchmarks.shared.texts import SHAPES, Sentences, running_text, take
from elmo_store.format.layout import state_names
from model.engine.cpu import step_lanes
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.engine.products import Int8Linear, PackedLinear, onednn_problem
from model.files.registry import load_model, random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState

SQUARE = 4096
TABLES = ("engine", "precision")


@dataclass
class EngineRun:
    """One measured call: what it took and what it really multiplied."""

    tokens: int
    seconds: float
    lstm_seconds: float
    lstm_flops: float


def lstm_flops(options: BiLMOptions) -> float:
    """Multiplications and additions of all layers and directions for one token, nothing saved."""
    p, d = options.projection_dim, options.dim
    return 2.0 * 2 * options.n_layers * (2 * p * 4 * d + d * p)


def measure(embedder: Embedder, sentences: Sentences) -> EngineRun:
    """Embed these sentences once."""
    options, before = embedder.options, replace(embedder.stats)
    requests = [SentenceRows(s, 0, len(s)) for s in sentences]
    began = time.perf_counter()
    embedder.embed(requests)
    seconds = time.perf_counter() - began
    after = embedder.stats
    row = 2.0 * options.projection_dim * 4 * options.dim  # W_ih · x of one word in one direction
    cell = lstm_flops(options) / 2 - row  # the rest of one token in one direction
    flops = (after.cells_used - before.cells_used) * cell + (after.table_computed - before.table_computed) * row
    return EngineRun(sum(map(len, sentences)), seconds, after.seconds_lstm - before.seconds_lstm, flops)


def product_rates(settings: EngineSettings, device: torch.device, width: tuple[int, int], rounds: int) -> dict[str, float]:
    """GFLOP/s of products by name, at the gates' shape (lanes, ``width``: inputs, outputs) and of squares."""
    rates: dict[str, float] = {}
    for rows, inputs, outputs in ((settings.lanes or 1, *width), (SQUARE, SQUARE, SQUARE)):
        flops = 2.0 * rows * inputs * outputs
        calls = max(1, int(2e10 / flops))  # long enough for the clock
        works = _products(rows, inputs, outputs, settings, device)
        taken = in_turns({name: _repeated(work, calls, device) for name, work in works.items()}, rounds)
        rates |= {f"{name} {rows}×{inputs}→{outputs}": flops * calls / taken[name] / 1e9 for name in works}
    return rates


def _products(
    rows: int, inputs: int, outputs: int, settings: EngineSettings, device: torch.device
) -> dict[str, Callable[[], object]]:
    x = torch.randn(rows, inputs).to(device=device, dtype=settings.dtype)
    weight = (torch.randn(outputs, inputs) * 0.03).to(device)
    dense = weight.to(settings.dtype)
    turned = dense.t().contiguous()
    works: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(x, turned), "F.linear": lambda: F.linear(x, dense)}
    if device.type == "cpu" and onednn_problem(settings.dtype) is None:
        packed = PackedLinear(weight, None, settings.dtype, rows)
        works["oneDNN packed"] = lambda: packed(x)
    if settings.precision == "int8":
        eighth = Int8Linear(weight, None, rows)
        works["u8 × s8, quantising and scaling included"] = lambda: eighth(x)
    return works


def _repeated(work: Callable[[], object], calls: int, device: torch.device) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def engine(weights: BiLMWeights, settings: EngineSettings, args: argparse.Namespace, text: Iterator[list[str]]) -> None:
    """One precision's part of the table, printed as it is measured."""
    options, device = weights.options, torch.device("cuda" if settings.on_cuda else "cpu")
    print(f"\n== {settings.precision}\n(a) GFLOP/s of products")
    rates = product_rates(settings, device, (2 * options.projection_dim, 4 * options.dim), args.repeats)
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"    {name:60s} {rate:9.0f}", flush=True)
    embedder = Embedder(weights, StartState.zero(options), settings)
    cold, *runs = [measure(embedder, take(text, args.tokens)) for _ in range(args.repeats + 1)]
    per_second = [run.tokens / run.seconds for run in runs]
    tokens_s = statistics.median(per_second)
    best, flops = max(rates.values()), lstm_flops(options)
    lstm = statistics.median(run.tokens * flops / run.lstm_seconds / 1e9 for run in runs)
    really = statistics.median(run.lstm_flops / run.lstm_seconds / 1e9 for run in runs)
    print(f"(b) LSTM, counted as {flops / 1e6:.0f} MFLOP a token: {lstm:.0f} GFLOP/s = {lstm / best:.0%} of (a);")
    whole = tokens_s * flops / 1e9
    print(f"    really multiplied {really:.0f} GFLOP/s = {really / best:.0%}; whole engine, counted so: {whole / best:.0%}")
    print(
        f"(c) engine {tokens_s:,.0f} tokens/s (from {min(per_second):,.0f} to {max(per_second):,.0f}; the first call, tables "
        f"empty, {cold.tokens / cold.seconds:,.0f}); median of {args.repeats} × {args.tokens:,} tokens",
        flush=True,
    )


def precision(weights: BiLMWeights, args: argparse.Namespace, text: Iterator[list[str]]) -> None:
    """How far states in each precision are from those in float32."""
    requests = [SentenceRows(s, 0, len(s)) for s in take(text, args.tokens or 4096)]

    def states(precision: str) -> npt.NDArray[np.float64]:
        settings = EngineSettings(precision=precision, device=args.device)  # type: ignore[arg-type]
        return Embedder(weights, StartState.zero(weights.options), settings).embed(requests, dtype="float32").astype(np.float64)

    exact = states("float32")
    for name in args.precision or ["bfloat16"]:
        rough = states(name)
        table = Table(name, "state", "max error", "mean error", "relative", "mean cosine", "min cosine", label_width=8)
        for k, state in enumerate(state_names(weights.options.n_layers)):
            a, b = exact[:, k], rough[:, k]
            error, cosine = np.abs(b - a), (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
            errors = (error.max(), error.mean(), np.linalg.norm(b - a) / np.linalg.norm(a))
            table.row(state, *(f"{value:.2e}" for value in errors), f"{cosine.mean():.6f}", f"{cosine.min():.6f}")


def main() -> None:
    parser = options_of(__doc__, TABLES, default="engine")
    add = parser.add_argument
    add("--model", help="NAME|FOLDER|URL (default: random weights of --shape)")
    add("--shape", choices=SHAPES, default="full", help="of random weights: full = 2×4096, projection 512 (default: full)")
    add("--precision", nargs="+", help="(default: float32 bfloat16, on a GPU tf32 too; bfloat16 against float32)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(default: auto)")
    add("--tokens", type=int, help="in a call (default: 32768 on a CPU, 1048576 on a GPU; 4096 of precision)")
    add("--repeats", type=int, default=5, help="calls of which the median counts (default: 5)")
    args = parser.parse_args()
    on_gpu = EngineSettings(device=args.device).on_cuda
    print(machine())
    text = running_text()
    weights = load_model(args.model)[1] if args.model else random_weights(SHAPES[args.shape])
    if "precision" in args.tables:
        precision(weights, args, text)
    if "engine" in args.tables:
        args.tokens = args.tokens or (1 << 20 if on_gpu else 1 << 15)
        for name in args.precision or ["float32", *(["tf32"] if on_gpu else []), "bfloat16"]:
            lanes = 2048 if on_gpu else step_lanes(weights.options.dim, name)
            settings = EngineSettings(precision=name, device=args.device, lanes=lanes)
            engine(weights, settings, args, text)


if __name__ == "__main__":
    main()
