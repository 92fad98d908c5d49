"""The whole job, text to store: ``python -m benchmarks.job`` prints tokens/s, peak memory, bytes a token and where seconds went.

May import every room. Each run is the command ``elmo-store embed`` in a process of its own, start of Python and loading of the
model included; then the engine alone computes the same tokens in this process, for the ratio. Medians of --runs.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import elmo_store as stores
from benchmarks.processes import elmo_store, machine, run_measured
from model.embedder import Embedder, EngineSettings, SentenceRows
from model.registry import load_model
from model.start_state import compute_warm
from pipeline.report import Totals, all_markers, totals

SHARE = 0.85  # of the engine's own rate: what a whole job should reach
SAMPLE = Path(__file__).resolve().parent.parent / "examples" / "sample"


@dataclass(frozen=True)
class JobRun:
    """One run of the command. ``totals`` are sums over shards; ``working`` is from the plan's end to the last shard's end."""

    seconds: float
    peak_bytes: int
    totals: Totals


def run_job(inputs: list[str], model: list[str], options: list[str], folder: Path) -> JobRun:
    """Run ``embed`` once into a folder that is empty."""
    output = folder / "store"
    command = elmo_store("embed", *inputs, "--output", str(output), "--overwrite", "--quiet", *model, *options)
    measured = run_measured(command)
    store = stores.open(str(output))
    markers = all_markers(store.root, store.manifest.sizes.shards)
    return JobRun(measured.seconds, measured.peak_bytes, totals(markers))


def engine_seconds(store_url: str, model: str | None, precision: str, device: str, lanes: int | None) -> list[float]:
    """Seconds of the engine alone for the tokens of a store, a shard's rows a call: at first sight, and with all words known."""
    store = stores.open(store_url)
    sentences = [list(sentence.tokens) for sentence in store]
    _, weights = load_model(model)
    settings = EngineSettings(precision=precision, device=device, lanes=lanes)  # type: ignore[arg-type]
    engine = Embedder(weights, compute_warm(weights), settings)
    calls: list[list[SentenceRows]] = [[]]
    rows = 0
    for tokens in sentences:
        calls[-1].append(SentenceRows(tokens, 0, len(tokens)))
        rows += len(tokens)
        if rows >= store.manifest.shard_rows:
            calls.append([])
            rows = 0
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        for call in calls:
            engine.embed(call)
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> int:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", default=[str(SAMPLE)], help="as for embed (default: examples/sample)")
    parser.add_argument("--model", help="NAME|FOLDER|URL (default: the default model)")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which the median is shown (default: 5)")
    parser.add_argument("--precision", default="float32", help="as for embed (default: float32)")
    parser.add_argument("--device", default="auto", help="as for embed (default: auto)")
    parser.add_argument("--lanes", type=int, help="as for embed (default: the engine's choice)")
    parser.add_argument("--store", default="zarr", help="as for embed (default: zarr)")
    parser.add_argument("--folder", help="where stores go, removed again (default: the system's)")
    parser.add_argument("--no-engine", action="store_true", help="leave the engine alone out (default: measured)")
    args, more = parser.parse_known_args()
    model = ["--model", args.model] if args.model else []
    options = ["--precision", args.precision, "--device", args.device, "--store", args.store, *more]
    options += ["--lanes", str(args.lanes)] if args.lanes else []
    print(f"{machine()}; precision {args.precision}, {args.runs} runs")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        runs = [run_job(args.inputs, model, options, Path(name)) for _ in range(args.runs)]
        engine = [] if args.no_engine else engine_seconds(
            str(Path(name) / "store"), args.model, args.precision, args.device, args.lanes
        )  # fmt: skip
    print("\n".join(table(runs, engine)))
    return 0


def tokens_for_share(share: float, engine_token_seconds: float, job_token_seconds: float, beside_seconds: float) -> float | None:
    """Tokens from which on a whole command, fixed costs included, runs at ``share`` of the engine's rate; None if never."""
    gained = engine_token_seconds - share * job_token_seconds
    return share * beside_seconds / gained if gained > 0 else None


def table(runs: list[JobRun], engine: list[float]) -> list[str]:
    """The lines of the result: medians over ``runs``; ``engine`` seconds cold and warm, or empty."""

    def median(values: list[float]) -> float:
        return statistics.median(values)

    tokens = runs[0].totals.tokens
    seconds = median([run.seconds for run in runs])
    spread = f"{min(run.seconds for run in runs):.1f} … {max(run.seconds for run in runs):.1f}"
    computing = median([run.totals.seconds_computing for run in runs])
    lines = [
        f"tokens                  {tokens:>12,}",
        f"whole command           {tokens / seconds:>12,.0f} tokens/s   ({seconds:.1f} s, runs {spread} s)",
        f"  while computing       {tokens / computing:>12,.0f} tokens/s   ({computing:.1f} s, reading and writing beside it)",
        f"  reading shards        {median([run.totals.seconds_reading for run in runs]):>12.2f} s",
        f"  writing shards        {median([run.totals.seconds_writing for run in runs]):>12.2f} s",
        f"peak memory             {median([run.peak_bytes for run in runs]) / 2**20:>12,.0f} MiB, all processes",
        f"stored                  {runs[0].totals.bytes / max(1, tokens):>12,.0f} bytes/token",
    ]
    if engine:
        first, again = engine
        beside = seconds - computing
        enough = tokens_for_share(SHARE, first / tokens, computing / tokens, beside)
        reached = "at no length of text" if enough is None else f"from {enough:,.0f} tokens on"
        lines += [
            f"engine alone            {tokens / first:>12,.0f} tokens/s   (the text seen for the first time, as in the job)",
            f"  the same text again   {tokens / again:>12,.0f} tokens/s   (every word known)",
            f"job / engine            {first / seconds:>12.1%} whole command, {first / computing:.1%} while computing",
            f"beside computing        {beside:>12.1f} s          (start of Python, model, warm state, text)",
            f"  so {SHARE:.0%} of the engine {reached}",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
