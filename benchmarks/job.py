"""The whole job: ``python -m benchmarks.job [job memory]`` prints tables, by default `job`.

job          text to store: tokens/s, peak memory and where seconds went. Each run is the command
             ``elmo-store embed`` in a process of its own, start of Python and loading of the model included; after each the
             engine alone computes the same tokens in this process, for the ratio. ``--shape full`` makes a model of the published
             full size with random weights, and takes --tokens of held-out text; else the default model on examples/sample
memory       is memory flat? Peaks of the command on little and on much made-up text

Options that are not its own go to ``elmo-store embed``.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import elmo_store as stores
from benchmarks.shared.support import (
    Measured,
    Table,
    machine,
    options_of,
    run_measured,
    seconds,
    working_folder,
)
from benchmarks.shared.texts import (
    SAMPLE,
    SHAPES,
    made_up_text,
    running_text,
    write_lines,
    write_model,
)
from elmo_store.format.markers import ShardMarker, read_marker
from model.engine.embedder import Embedder, EngineSettings
from model.files.registry import load_model
from model.warm import compute_warm
from transforms.stages.finish import stat_sums

MEMORY_TOKENS = (100_000, 10_000_000)


def run_job(
    inputs: list[str], options: list[str], output: Path
) -> tuple[Measured, Mapping[str, float]]:
    """Run ``embed`` once; the sums are of the shards' markers."""
    measured = run_measured(
        "embed", *inputs, "--output", str(output), "--overwrite", "--quiet", *options
    )
    store = stores.open(str(output))
    read = (
        read_marker(store._view.stores[0].root, ShardMarker, shard)
        for shard in range(store.manifest.sizes.shards)
    )
    return measured, stat_sums([marker for marker in read if marker is not None])


def engine_alone(
    store: stores.Store, model: str | None, settings: EngineSettings
) -> Callable[[], None]:
    """What computes the tokens of a store in this process, a shard's rows a call, from empty tables of words as a job begins."""
    _, weights = load_model(model)
    start = compute_warm(weights)
    calls: dict[int, list[list[str]]] = {}
    for sentence, (first, _) in zip(
        store, store._view.spans(range(len(store))).tolist(), strict=True
    ):
        calls.setdefault(first // store.manifest.shard_rows, []).append(list(sentence.tokens))

    def run() -> None:
        engine = Embedder(weights, start, settings)
        for call in calls.values():
            engine.embed(call)

    return run


def job(args: argparse.Namespace, folder: Path) -> None:
    """Command and engine in turn, then medians."""
    model, inputs = args.model, [str(SAMPLE)]
    if args.shape:
        text = write_lines(folder / "text.txt", running_text(), args.tokens)
        model, inputs = (
            str(write_model(folder / "model.safetensors", args.shape)),
            [str(text), "--input-format", "lines"],
        )
    options = [
        "--precision",
        args.precision,
        "--device",
        args.device,
        *args.options,
        *(["--model", model] if model else []),
    ]
    shape = f"random weights, {args.shape} size; " if args.shape else ""
    print(f"{shape}precision {args.precision}, medians of {args.runs} runs", flush=True)
    runs, engine, alone = [], [], None
    settings = EngineSettings(precision=args.precision, device=args.device)
    for _ in range(
        args.runs
    ):  # one after the other, so that a slow minute of the machine meets both
        runs.append(run_job(inputs, options, folder / "store"))
        alone = alone or engine_alone(stores.open(str(folder / "store")), model, settings)
        engine.append(seconds(alone))
    show(runs, engine)


def show(runs: list[tuple[Measured, Mapping[str, float]]], engine: list[float]) -> None:
    """Medians of the runs; ``engine``: seconds of the engine alone."""
    tokens, median = runs[0][1]["tokens"], statistics.median
    sums = {
        name: median(own[f"seconds_{name}"] for _, own in runs)
        for name in ("computing", "reading", "writing")
    }
    whole, alone = [run.seconds for run, _ in runs], median(engine)
    beside = median(whole) - sums["computing"]
    table = Table(f"{tokens:,} tokens", "", "seconds", "least", "most", "tokens/s", label_width=38)
    table.row("whole command", median(whole), min(whole), max(whole), tokens / median(whole))
    table.row("  while computing", sums["computing"], "", "", tokens / sums["computing"])
    for name in ("reading", "writing"):
        table.row(f"  {name} shards, beside it", sums[name], "", "", "")
    table.row("  start of Python, model, warm, text", beside, "", "", "")
    table.row("engine alone", alone, min(engine), max(engine), tokens / alone)
    print(
        f"job / engine: {alone / median(whole):.1%} whole command, {alone / sums['computing']:.1%} while computing"
    )
    print(
        f"peak memory of all processes {median(run.peak_bytes for run, _ in runs) / 2**20:,.0f} MiB"
    )


def memory(args: argparse.Namespace, folder: Path) -> None:
    """Both sizes, and by how much the peaks differ."""
    table = Table(
        f"elmo-store embed, {args.model or 'a random biLM of 2 × 64/32'}",
        "tokens",
        "seconds",
        "tokens/s",
        "peak MiB",
    )
    model = args.model or str(write_model(folder / "narrow.safetensors", "narrow"))
    peaks = []
    for tokens in MEMORY_TOKENS:
        text = write_lines(folder / f"{tokens}.txt", made_up_text(), tokens)
        options = [
            "--input-format",
            "lines",
            "--model",
            model,
            "--output",
            str(folder / f"store-{tokens}"),
            "--quiet",
        ]
        options += ["--precision", args.precision, "--device", args.device]
        measured = run_measured("embed", str(text), *options, *args.options)
        peaks.append(measured.peak_bytes)
        table.row(
            f"{tokens:,}", measured.seconds, tokens / measured.seconds, measured.peak_bytes / 2**20
        )
    print(f"the peaks differ by {max(peaks) / min(peaks) - 1:.1%}")


TABLES: dict[str, Callable[[argparse.Namespace, Path], None]] = {"job": job, "memory": memory}


def main() -> None:
    parser = options_of(__doc__, [*TABLES], default="job")
    add = parser.add_argument
    add("--model", help="NAME|FOLDER|URL (default: the default model; of memory a random one)")
    add("--runs", type=int, default=5, help="of which the median is shown (default: 5)")
    add("--precision", default="float32", help="as for embed (default: float32)")
    add("--device", default="auto", help="as for embed (default: auto)")
    add(
        "--shape",
        choices=SHAPES,
        help="random weights of this shape on held-out text (default: --model on examples/sample)",
    )
    add("--tokens", type=int, default=150_000, help="of text with --shape (default: 150000)")
    args, options = parser.parse_known_args()
    args.options = options
    print(machine())
    with working_folder() as folder:
        for name in args.tables:
            TABLES[name](args, folder)


if __name__ == "__main__":
    main()
