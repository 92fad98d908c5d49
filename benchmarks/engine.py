"""`python -m benchmarks.engine`: the engine against this machine's matrix rate, in one run.

Random weights of the published full size, real text, medians. For each precision: (a) the best product that libraries reach
here, (b) the LSTM's rate counted as if it multiplied everything (151 MFLOP a token at full size), its share of (a), and what
was really multiplied, (c) tokens/s, (d) a padded torch.nn.LSTM(proj_size) stack, (e) what each saving gains. The whole job,
text to store, is `python -m benchmarks.job`.
"""

import argparse
import contextlib
import gc
import json
import lzma
import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks import gemm, gpu_model
from benchmarks.data import data_folder
from benchmarks.processes import peak_resident
from model.engine import cell, cpu, products, word_vectors
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SHAPES = {
    "full": BiLMOptions(3.0, 3.0, True, 512, 4096, 2, "relu", PUBLISHED_FILTERS, 2, 16),
    "small": BiLMOptions(3.0, 3.0, True, 128, 1024, 2, "relu", PUBLISHED_FILTERS, 1, 16),
}
HELD_OUT = data_folder() / "corpus" / "tokenised" / "heldout"
HELD_OUT_TEXTS = ("wikipedia", "gutenberg")
# What switches each saving off: a name of a module, and its value while an engine is made and used.
SAVINGS: dict[str, tuple[ModuleType, str, Any]] = {
    "table of first-layer gates": (cpu, "TABLE_BYTES", 0),
    "short words at their own width": (word_vectors, "WIDTH_STEP", 50),
    "packed products": (products, "onednn_problem", lambda dtype: "switched off"),
    "the cell in C": (cell, "kernel_module", lambda name, device: "switched off"),
}

Sentences = list[list[str]]


def lstm_flops(options: BiLMOptions) -> float:
    """Multiplications and additions of all layers and directions for one token, nothing saved."""
    p, d = options.projection_dim, options.dim
    return 2.0 * 2 * options.n_layers * (2 * p * 4 * d + d * p)


@dataclass
class Run:
    """One measured call: what it took and what it really multiplied."""

    tokens: int
    seconds: float
    lstm_seconds: float
    lstm_flops: float


def measure(embedder: Embedder, sentences: Sentences) -> Run:
    """Embed these sentences once."""
    options, before = embedder.options, replace(embedder.stats)
    requests = [SentenceRows(s, 0, len(s)) for s in sentences]
    tokens = sum(map(len, sentences))
    started = time.perf_counter()
    embedder.embed(requests)
    seconds = time.perf_counter() - started
    after = embedder.stats
    p, d = options.projection_dim, options.dim
    row = 2.0 * p * 4 * d  # W_ih · x of one word in one direction
    cell = lstm_flops(options) / 2 - row  # the rest of one token in one direction
    real = (after.cells_used - before.cells_used) * cell + (after.table_computed - before.table_computed) * row
    return Run(tokens, seconds, after.seconds_lstm - before.seconds_lstm, real)


class PlainStack:
    """What everyone knows: L layers of torch.nn.LSTM(proj_size) a direction, padded batches, x taken as given.

    No character CNN, no clips, no skip connections, and the output is thrown away: it only has to be fast.
    """

    def __init__(self, options: BiLMOptions, dtype: torch.dtype, device: torch.device, batch: int) -> None:
        p, d = options.projection_dim, options.dim
        make = torch.nn.LSTM
        self._layers = [
            [make(p, d, proj_size=p).to(device=device, dtype=dtype).eval() for _ in range(options.n_layers)] for _ in range(2)
        ]
        self._batch, self._width, self._dtype, self._device = batch, p, dtype, device

    @torch.no_grad()
    def run(self, lengths: list[int]) -> None:
        """Sentences of these lengths, boundaries included, in batches as they come."""
        for low in range(0, len(lengths), self._batch):
            part = lengths[low : low + self._batch]
            x = torch.randn(max(part) + 2, len(part), self._width).to(device=self._device, dtype=self._dtype)  # [T, B, p]
            for direction in self._layers:
                output = x
                for layer in direction:
                    output = layer(output)[0]


def read_text(paths: list[Path]) -> Iterator[list[str]]:
    """Sentences of files with one tokenised sentence a line, plain or .xz; over and over."""
    while True:
        yield from (line.split() for line in read_lines(paths))


def read_lines(paths: list[Path]) -> Iterator[str]:
    """Lines of files, plain or .xz, without their ends."""
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") if path.suffix == ".xz" else path.open(encoding="utf-8") as f:
            yield from (line.rstrip("\n") for line in f)


def read_held_out() -> Iterator[list[str]] | None:
    """Sentences of held-out Wikipedia and fiction, where the data folder has them."""
    return read_text([HELD_OUT / f"{name}.txt.xz" for name in HELD_OUT_TEXTS]) if HELD_OUT.is_dir() else None


def take(text: Iterator[list[str]], tokens: int) -> Sentences:
    """The next sentences, at least so many tokens."""
    taken, n = [], 0
    while n < tokens:
        taken.append(next(text))
        n += len(taken[-1])
    return taken


def made_up_text() -> Iterator[list[str]]:
    """Words by Zipf's law, for a machine that has no text at hand; repeats less than real text does."""
    rng = np.random.default_rng(0)
    while True:
        yield [f"w{min(int(k), 200_000)}" for k in rng.zipf(1.3, int(rng.integers(3, 45)))] + ["."]


def forget_peak() -> None:
    """Begin to look for the largest resident memory anew, where the kernel lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_gib() -> float:
    """Largest resident memory of this process since then."""
    return peak_resident(os.getpid()) / 2**30


def machine(device: torch.device) -> str:
    """The processor's name and what PyTorch makes of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def bench_precision(
    weights: BiLMWeights, precision: str, device: torch.device, args: argparse.Namespace, text: Iterator[list[str]]
) -> dict[str, Any]:
    """One precision's part of the table, printed as it is measured."""
    options = weights.options
    start = StartState.zero(options)
    settings = EngineSettings(precision=precision, device=device.type, lanes=args.lanes)  # type: ignore[arg-type]
    say(f"\n== {precision}")
    lanes = args.lanes or (128 if device.type == "cpu" else 2048)
    width = (2 * options.projection_dim, 4 * options.dim)
    rates = gemm.rates(settings.dtype, device, lanes, width, args.repeats)
    best_name = max(rates, key=rates.__getitem__)
    best = rates[best_name]
    say("(a) GFLOP/s of products")
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        say(f"    {name:52s} {rate:9.0f}")

    forget_peak()
    embedder = Embedder(weights, start, settings)
    cold = measure(embedder, take(text, args.tokens))
    runs = [measure(embedder, take(text, args.tokens)) for _ in range(args.repeats)]
    per_second = [run.tokens / run.seconds for run in runs]
    tokens_s = statistics.median(per_second)
    counted = [run.tokens * lstm_flops(options) / run.lstm_seconds / 1e9 for run in runs]
    really = statistics.median(run.lstm_flops / run.lstm_seconds / 1e9 for run in runs)
    whole = tokens_s * lstm_flops(options) / 1e9
    lstm = statistics.median(counted)
    stats = embedder.stats
    say(f"(b) LSTM, counted as {lstm_flops(options) / 1e6:.0f} MFLOP a token: {lstm:.0f} GFLOP/s = {lstm / best:.0%} of (a);")
    say(f"    really multiplied {really:.0f} GFLOP/s = {really / best:.0%}; whole engine, counted so: {whole / best:.0%}")
    say(
        f"(c) engine {tokens_s:,.0f} tokens/s (from {min(per_second):,.0f} to {max(per_second):,.0f}; the first call, tables "
        f"empty, {cold.tokens / cold.seconds:,.0f}); median of {args.repeats} × {args.tokens:,} tokens"
    )
    if device.type == "cuda":
        say(gpu_model.beside(options, lanes, precision, machine(device), tokens_s))
    say(
        f"    lane fill {stats.lane_fill:.1%}, table hits {stats.table_hits:.1%}, word hits {stats.word_hits:.1%}, shared "
        f"{1 - stats.cells_used / stats.cells_asked:.1%} of cells, peak memory {peak_gib():.2f} GiB"
    )
    found: dict[str, Any] = {
        "gemm": rates,
        "lstm_gflops": lstm,
        "share_of_gemm": lstm / best,
        "engine_share_of_gemm": whole / best,
        "really_gflops": really,
        "tokens_per_second": tokens_s,
        "cold_tokens_per_second": cold.tokens / cold.seconds,
        "peak_gib": peak_gib(),
        "stats": asdict(stats),
    }
    del embedder
    gc.collect()
    if not args.skip_baseline:
        found["baseline"] = bench_baseline(options, settings.dtype, device, args, take(text, args.baseline_tokens), tokens_s)
    if not args.skip_savings:
        found["savings"] = bench_savings(weights, start, settings, args, text)
    return found


def bench_baseline(
    options: BiLMOptions,
    dtype: torch.dtype,
    device: torch.device,
    args: argparse.Namespace,
    sentences: Sentences,
    engine: float,
) -> float:
    """Tokens/s of the padded stack."""
    stack = PlainStack(options, dtype, device, args.baseline_batch)
    lengths = [len(s) for s in sentences]
    say(f"(d) torch.nn.LSTM(proj_size) × {2 * options.n_layers}, batches of {args.baseline_batch}, no characters, no output:")
    rates = []
    for name, ordered in (("as they come", lengths), ("sorted by length", sorted(lengths))):
        seconds = gemm.median_seconds(lambda ordered=ordered: stack.run(ordered), args.repeats, device)  # type: ignore[misc]
        rates.append(sum(lengths) / seconds)
        say(f"    sentences {name:18s} {rates[-1]:,.0f} tokens/s; the engine is {engine / rates[-1]:.1f} × as fast")
    return max(rates)


def bench_savings(
    weights: BiLMWeights,
    start: StartState,
    settings: EngineSettings,
    args: argparse.Namespace,
    text: Iterator[list[str]],
) -> dict[str, float]:
    """What each saving gains: the engine with it and without it, call by call in turn, on the same stretches of text.

    In turn, because a machine that others use drifts by more within minutes than a saving is worth.
    """
    parts = [take(text, args.side_tokens) for _ in range(args.repeats + 1)]
    say(f"(e) tokens/s with and without, {args.repeats} × {args.side_tokens:,} tokens")
    found: dict[str, float] = {}
    for name, off in SAVINGS.items():
        embedder = Embedder(weights, start, settings)
        with mock.patch.object(*off):
            plain = Embedder(weights, start, settings)
        runs = []
        for part in parts:
            saving = measure(embedder, part)
            with mock.patch.object(*off):
                runs.append([saving, measure(plain, part)])
        del runs[0], embedder, plain
        without, with_it = (statistics.median(run[k].tokens / run[k].seconds for run in runs) for k in (1, 0))
        low, middle, high = statistics.quantiles([run[1].seconds / run[0].seconds - 1 for run in runs], n=4, method="inclusive")
        found[name] = middle
        verdict = (
            f"gains {middle:.0%} (quartiles {low:.0%} … {high:.0%})"
            if low > 0 or high < 0
            else f"no gain to be seen ({low:.0%} … {high:.0%})"
        )
        gc.collect()
        say(f"    {name:42s} {with_it:9,.0f} {without:9,.0f}  {verdict}")
    return found


def say(line: str) -> None:
    """Print at once: a run takes minutes."""
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add(
        "--text",
        type=Path,
        nargs="+",
        help="files of one tokenised sentence a line, plain or .xz (default: see docs/development/data.md)",
    )
    add("--shape", choices=SHAPES, default="full", help="of the random model: full = 2×4096, projection 512")
    add("--precision", nargs="+", help="default: float32 bfloat16 on a CPU, and tf32 on a GPU")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--lanes", type=int, help="default: 128 on a CPU, 2048 on a GPU")
    add("--tokens", type=int, help="tokens in a call (default: 32768 on a CPU, 1048576 on a GPU)")
    add("--side-tokens", type=int, help="tokens in a call for (e) (default: half of --tokens)")
    add("--baseline-tokens", type=int, help="tokens in a call for (d) (default: an eighth of --tokens)")
    add("--repeats", type=int, default=5, help="calls of which the median counts")
    add("--baseline-batch", type=int, default=64, help="sentences in a batch of (d)")
    add("--skip-baseline", action="store_true")
    add("--skip-savings", action="store_true")
    add("--json", type=Path, help="also write the figures here")
    add("--model-only", action="store_true", help="print what GPUs should reach on paper, and compute nothing")
    args = parser.parse_args()
    if args.model_only:
        say("\n".join(gpu_model.table(SHAPES[args.shape])))
        return
    device = torch.device("cuda" if EngineSettings(device=args.device).on_cuda else "cpu")
    on_gpu = device.type == "cuda"
    args.tokens = args.tokens or (1 << 20 if on_gpu else 1 << 15)
    args.side_tokens = args.side_tokens or args.tokens // 2
    args.baseline_tokens = args.baseline_tokens or args.tokens // 8
    held_out = read_held_out()
    text = read_text(args.text) if args.text else held_out or made_up_text()
    name = ", ".join(map(str, args.text)) if args.text else "held-out Wikipedia, fiction" if held_out else "made up"
    say(f"{machine(device)}; PyTorch {torch.__version__}; text: {name}")
    weights = random_weights(SHAPES[args.shape])
    found = {"machine": machine(device), "shape": args.shape, "tokens": args.tokens, "repeats": args.repeats}
    for precision in args.precision or ["float32", *(["tf32"] if on_gpu else []), "bfloat16"]:
        found[precision] = bench_precision(weights, precision, device, args, text)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
