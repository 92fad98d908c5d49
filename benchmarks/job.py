"""The whole job, text to store: ``python -m benchmarks.job`` prints tokens/s, peak memory, bytes a token and where seconds went.

Each run is the command ``elmo-store embed`` in a process of its own, start of Python and loading of the model included; after
each the engine alone computes the same tokens in this process, for the ratio. Medians of --runs. ``--shape full`` makes a model
of the published full size with random weights, and takes --tokens of held-out text.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import elmo_store as stores
from benchmarks.engine import SHAPES, made_up_text, read_held_out, take
from benchmarks.processes import elmo_store, machine, run_measured
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.files.registry import load_model, random_weights
from model.warm import compute_warm
from pipeline.progress.summary import Totals, all_markers, totals

SHARE = 0.85  # of the engine's own rate: what a whole job should reach
SAMPLE = Path(__file__).resolve().parent.parent / "examples" / "sample"


@dataclass(frozen=True)
class JobRun:
    """One run of the command; ``totals`` are sums over shards."""

    seconds: float
    peak_bytes: int
    totals: Totals


def run_job(inputs: list[str], options: list[str], folder: Path) -> JobRun:
    """Run ``embed`` once into a folder that is empty."""
    output = folder / "store"
    command = elmo_store("embed", *inputs, "--output", str(output), "--overwrite", "--quiet", *options)
    measured = run_measured(command)
    store = stores.open(str(output))
    markers = all_markers(store.root, store.manifest.sizes.shards)
    return JobRun(measured.seconds, measured.peak_bytes, totals(markers))


def made_model_and_text(shape: str, tokens: int, folder: Path) -> tuple[Path, Path]:
    """Files with random weights of this shape and with so many tokens of held-out text, a sentence a line."""
    model, text = folder / f"{shape}.safetensors", folder / "text.txt"
    random_weights(SHAPES[shape]).save_safetensors(model)
    sentences = take(read_held_out() or made_up_text(), tokens)
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    return model, text


class EngineAlone:
    """The engine in this process, for the tokens of a store, a shard's rows a call."""

    def __init__(self, store_url: str, model: str | None, precision: str, device: str, lanes: int | None) -> None:
        store = stores.open(store_url)
        _, self._weights = load_model(model)
        self._start = compute_warm(self._weights)
        self._settings = EngineSettings(precision=precision, device=device, lanes=lanes)  # type: ignore[arg-type]
        self._calls: list[list[SentenceRows]] = [[]]
        rows = 0
        for sentence in store:
            tokens = list(sentence.tokens)
            self._calls[-1].append(SentenceRows(tokens, 0, len(tokens)))
            rows += len(tokens)
            if rows >= store.manifest.shard_rows:
                self._calls.append([])
                rows = 0

    def seconds(self) -> float:
        """Seconds to compute all of them, from empty tables of words as a job begins."""
        engine = Embedder(self._weights, self._start, self._settings)
        began = time.perf_counter()
        for call in self._calls:
            engine.embed(call)
        return time.perf_counter() - began


def main() -> int:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="as for embed (default: examples/sample)")
    parser.add_argument("--model", help="NAME|FOLDER|URL (default: the default model)")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which the median is shown (default: 5)")
    parser.add_argument("--precision", default="float32", help="as for embed (default: float32)")
    parser.add_argument("--device", default="auto", help="as for embed (default: auto)")
    parser.add_argument("--lanes", type=int, help="as for embed (default: the engine's choice)")
    parser.add_argument("--store", default="zarr", help="as for embed (default: zarr)")
    parser.add_argument("--folder", help="where stores go, removed again (default: the system's)")
    parser.add_argument("--no-engine", action="store_true", help="leave the engine alone out (default: measured)")
    parser.add_argument(
        "--shape", choices=SHAPES, help="random weights of this shape on held-out text (default: --model, inputs)"
    )
    parser.add_argument("--tokens", type=int, default=150_000, help="of text with --shape (default: 150000)")
    args, more = parser.parse_known_args()
    if args.shape and (args.model or args.inputs):
        parser.error("--shape makes its own model and text: leave --model and inputs out")
    options = ["--precision", args.precision, "--device", args.device, "--store", args.store, *more]
    options += ["--lanes", str(args.lanes)] if args.lanes else []
    shape = f"random weights, {args.shape} size; " if args.shape else ""
    print(f"{machine()}; {shape}precision {args.precision}, medians of {args.runs} runs", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        model, inputs = args.model, args.inputs or [str(SAMPLE)]
        if args.shape:
            made, text = made_model_and_text(args.shape, args.tokens, Path(name))
            model, inputs = str(made), [str(text), "--input-format", "lines"]
        options += ["--model", model] if model else []
        runs, engine, alone = [], [], None
        for _ in range(args.runs):  # one after the other, so that a slow minute of the machine meets both
            runs.append(run_job(inputs, options, Path(name)))
            if not args.no_engine:
                alone = alone or EngineAlone(str(Path(name) / "store"), model, args.precision, args.device, args.lanes)
                engine.append(alone.seconds())
    print("\n".join(table(runs, engine)))
    return 0


def tokens_for_share(share: float, engine_token_seconds: float, job_token_seconds: float, beside_seconds: float) -> float | None:
    """Tokens from which on a whole command, fixed costs included, runs at ``share`` of the engine's rate; None if never."""
    gained = engine_token_seconds - share * job_token_seconds
    return share * beside_seconds / gained if gained > 0 else None


def table(runs: list[JobRun], engine: list[float]) -> list[str]:
    """The lines of the result: medians; ``engine`` seconds of the engine alone, or empty."""

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
        alone = median(engine)
        alone_spread = f"{min(engine):.1f} … {max(engine):.1f}"
        beside = seconds - computing
        enough = tokens_for_share(SHARE, alone / tokens, computing / tokens, beside)
        reached = "at no length of text" if enough is None else f"from {enough:,.0f} tokens on"
        lines += [
            f"engine alone            {tokens / alone:>12,.0f} tokens/s   ({alone:.1f} s, runs {alone_spread} s)",
            f"job / engine            {alone / seconds:>12.1%} whole command, {alone / computing:.1%} while computing",
            f"beside computing        {beside:>12.1f} s          (start of Python, model, warm state, text)",
            f"  so {SHARE:.0%} of the engine {reached}",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
