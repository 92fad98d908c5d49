"""The engine on this machine: ``python -m benchmarks.engine [TABLE …]`` prints tables (default: `engine`).

engine     for each precision, random weights, real text, medians: (a) the rate of the gates' product alone, (b) the LSTM's rate
           counted as if it multiplied everything (151 MFLOP a token at full size) and its share of (a), (c) tokens/s
precision  how far each precision's states are from float32's, state by state; float32 is tested against float64
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.shared.support import Table, in_turns, machine, options_of
from benchmarks.shared.texts import SHAPES, running_text, take
from elmo_store.format.layout import state_names
from model.engine.cpu import step_lanes
from model.engine.embedder import Embedder, EngineSettings
from model.engine.products import Int8Linear, Linear, PackedLinear
from model.files.registry import load_model, random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState

TABLES = ("engine", "precision")


def product_rate(
    options: BiLMOptions, settings: EngineSettings, device: torch.device, rounds: int
) -> float:
    """GFLOP/s of the product that makes the gates of ``settings.lanes`` rows, as the engine computes it."""
    rows, inputs, outputs = settings.lanes or 1, 2 * options.projection_dim, 4 * options.dim
    flops = 2.0 * rows * inputs * outputs
    calls = max(1, int(2e10 / flops))  # long enough for the clock
    x = torch.randn(rows, inputs).to(device, settings.dtype)
    weight = (torch.randn(outputs, inputs) * 0.03).to(device)
    packed = PackedLinear(weight, None, settings.dtype, rows, device.type == "cpu")
    product: Linear = Int8Linear(weight, None, rows) if settings.quantised else packed

    def run() -> None:
        for _ in range(calls):
            product(x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return flops * calls / in_turns({"": run}, rounds)[""] / 1e9


def measure(embedder: Embedder, sentences: list[list[str]]) -> tuple[float, float]:
    """Tokens/s of the engine and of its LSTM alone, embedding these sentences once."""
    began = time.perf_counter()
    running = embedder.run(embedder.prepare(sentences))
    running.result()
    tokens = sum(map(len, sentences))
    return tokens / (time.perf_counter() - began), tokens / running.stats.seconds_lstm


def engine(
    weights: BiLMWeights,
    settings: EngineSettings,
    args: argparse.Namespace,
    text: Iterator[list[str]],
) -> None:
    """One precision's part of the table."""
    options, device = weights.options, torch.device("cuda" if settings.on_cuda else "cpu")
    p, d = options.projection_dim, options.dim
    flops = (
        2.0 * 2 * options.n_layers * (2 * p * 4 * d + d * p)
    )  # of one token, all layers and directions, nothing saved
    best = product_rate(options, settings, device, args.repeats)
    embedder = Embedder(weights, StartState.zero(options), settings)
    calls = (take(text, args.tokens) for _ in range(args.repeats + 1))
    (cold, _), *runs = [measure(embedder, call) for call in calls]
    rates = [rate for rate, _ in runs]
    lstm = statistics.median(rate for _, rate in runs) * flops / 1e9
    print(f"\n== {settings.precision}\n(a) product {best:.0f} GFLOP/s")
    print(
        f"(b) LSTM, counted as {flops / 1e6:.0f} MFLOP a token: {lstm:.0f} GFLOP/s = {lstm / best:.0%} of (a)"
    )
    print(
        f"(c) engine {statistics.median(rates):,.0f} tokens/s (from {min(rates):,.0f} to {max(rates):,.0f}; the first call, "
        f"tables empty, {cold:,.0f}); median of {args.repeats} × {args.tokens:,} tokens",
        flush=True,
    )


def precision(weights: BiLMWeights, args: argparse.Namespace, text: Iterator[list[str]]) -> None:
    """How far states in each precision are from those in float32."""
    sentences = take(text, args.tokens or 4096)

    def states(precision: str) -> npt.NDArray[np.float64]:
        settings = EngineSettings(precision=precision, device=args.device)  # type: ignore[arg-type]
        return (
            Embedder(weights, StartState.zero(weights.options), settings)
            .embed(sentences, dtype="float32")
            .astype(np.float64)
        )

    exact = states("float32")
    for name in args.precision or ["bfloat16"]:
        rough = states(name)
        table = Table(
            name,
            "state",
            "max error",
            "mean error",
            "relative",
            "mean cosine",
            "min cosine",
            label_width=8,
        )
        for k, state in enumerate(state_names(weights.options.n_layers)):
            a, b = exact[:, k], rough[:, k]
            error, cosine = (
                np.abs(b - a),
                (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)),
            )
            errors = (error.max(), error.mean(), np.linalg.norm(b - a) / np.linalg.norm(a))
            table.row(
                state,
                *(f"{value:.2e}" for value in errors),
                f"{cosine.mean():.6f}",
                f"{cosine.min():.6f}",
            )


def main() -> None:
    parser = options_of(__doc__, TABLES, default="engine")
    add = parser.add_argument
    add("--model", help="NAME|FOLDER|URL (default: random weights of --shape)")
    add(
        "--shape",
        choices=SHAPES,
        default="full",
        help="of random weights: full = 2×4096, projection 512 (default: full)",
    )
    add(
        "--precision",
        nargs="+",
        help="(default: float32 bfloat16, on a GPU tf32 too; bfloat16 against float32)",
    )
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(default: auto)")
    add(
        "--tokens",
        type=int,
        help="in a call (default: 32768 on a CPU, 1048576 on a GPU; 4096 of precision)",
    )
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
