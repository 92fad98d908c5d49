"""Which shape of a small model is worth its price: the same text, lanes, rate and negatives for each, the whole schedule.

    python -m benchmarks.shapes TEXT… --heldout TEXT [--vocabulary FILE] [--shapes 512/128 1024/128 …] [--tokens N …]
    python -m benchmarks.shapes --cost [--shapes 512/128 1024/128 …]

TEXT is one tokenised sentence a line, plain or .xz. Each shape trains at a constant rate; at each number of tokens a copy of it
falls to zero over the last quarter. That is the run which would have had this end from the start: before the fall the rate does
not depend on the end. All shapes reach one end before any goes on to the next; what is there already in --work is not computed
again. Perplexity is the full softmax's, in float32; --upos adds the accuracy of a linear probe on the mix (UD-EWT, ten epochs).
--cost trains nothing to an end and prints what a shape costs instead: tokens/s of training and of the engine, medians of rounds
that the shapes take in turn.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from model.training.memory import keep_freed_memory

keep_freed_memory()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.engine import measure, read_lines  # noqa: E402
from benchmarks.train import made_up_text, measured  # noqa: E402
from model.engine.embedder import Embedder, EngineSettings  # noqa: E402
from model.files.registry import SMALL_OPTIONS, random_weights  # noqa: E402
from model.options import BiLMOptions  # noqa: E402
from model.start_state import StartState  # noqa: E402
from model.training.corpus import Corpus, Epoch  # noqa: E402
from model.training.evaluate import evaluate  # noqa: E402
from model.training.network import Network  # noqa: E402
from model.training.run import CHECKPOINT, Report, RunSettings, resume, run  # noqa: E402
from model.training.trainer import FALL, Recipe, Trainer  # noqa: E402

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Cells and projection of the model's layers; the rest is the packaged model's."""

    dim: int
    projection: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Of ``1024/128``."""
        dim, projection = text.split("/")
        return cls(int(dim), int(projection))

    @property
    def name(self) -> str:
        return f"{self.dim}-{self.projection}"

    @property
    def options(self) -> BiLMOptions:
        return replace(SMALL_OPTIONS, dim=self.dim, projection_dim=self.projection)


class Stopped(Exception):
    """A signal ended a training; its checkpoint is there."""


def trained(trainer: Trainer, folder: Path, name: str) -> None:
    """Train to the recipe's end. Stopped if a signal came first."""

    def on_progress(report: Report) -> None:
        print(f"{name}: {report.line()}", file=sys.stderr, flush=True)

    if (
        trainer.progress.tokens < (trainer.recipe.max_tokens or 0)
        and run(trainer, folder, RunSettings(on_progress=on_progress)) != "tokens"
    ):
        raise Stopped


def trial(
    shape: Shape, tokens: int, recipe: Recipe, corpus: Corpus, heldout: Sequence[Sequence[str]], work: Path, device: str = "cpu"
) -> Row:
    """One shape to one end; at once if it is there already."""
    folder = work / shape.name / str(tokens)
    done = folder / "trial.json"
    if done.exists():
        row: Row = json.loads(done.read_text(encoding="utf-8"))
        return row
    constant, until = work / shape.name / "constant", tokens - round(FALL * tokens)
    start = constant / f"at-{tokens}.pt"
    if not start.exists():
        rising = replace(recipe, max_tokens=until, decay_tokens=0)
        newest = constant / CHECKPOINT
        fresh = not newest.exists()
        if fresh:
            trainer = Trainer.fresh(shape.options, rising, corpus, device)
        else:
            trainer = resume(newest, rising, corpus, shape.options, device)
        trained(trainer, constant, f"{shape.name} constant")
        shutil.copyfile(newest, start)
    falling = replace(recipe, max_tokens=tokens, decay_tokens=tokens - until)
    newest = folder / CHECKPOINT
    trainer = resume(newest if newest.exists() else start, falling, corpus, shape.options, device)
    trained(trainer, folder, f"{shape.name} to {tokens:,}")
    weights = trainer.network.weights()
    weights.save_hdf5(folder)
    weights.save_safetensors(folder / "weights.safetensors")
    trainer.softmax_weights().save(folder / "softmax.safetensors")
    found = evaluate(Network(shape.options, trainer.network.parameters, torch.float32), trainer.softmax_weights(), heldout)
    row = {
        "shape": f"{shape.dim}/{shape.projection}",
        "parameters": sum(value.numel() for value in trainer.network.parameters.values()),
        "tokens": trainer.progress.tokens,
        "updates": trainer.progress.batches,
        "forward": found.perplexity[0],
        "backward": found.perplexity[1],
        "predictions": found.predictions,
    }
    done.write_text(json.dumps({**row, "recipe": asdict(falling)}, indent=2) + "\n", encoding="utf-8")
    print("\n".join(table([row])), file=sys.stderr, flush=True)  # hours may lie between this and the table of all
    return row


def upos(folder: Path, work: Path) -> float:
    """Accuracy of the linear probe on the learned mix, one seed, 0 … 1."""
    from benchmarks import probe  # reads stores; a machine that only trains needs no packages for that

    target = work / "upos.json"
    given = ["--model", str(folder), "--work", str(work / "probe"), "--tasks", "upos", "--features", "mix", "--seeds", "1"]
    if probe.main([*given, "--json", str(target)]):
        raise SystemExit(3)
    score: float = json.loads(target.read_text(encoding="utf-8"))[0]["scores"]["mix"]["accuracy"]["mean"]
    return score


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Markdown."""
    yield "| shape | parameters | tokens | updates | perplexity forward | backward | UPOS |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        score = f"{100 * row['upos']:.2f}" if "upos" in row else "–"
        yield (
            f"| {row['shape']} | {row['parameters']:,} | {row['tokens']:,} | {row['updates']:,} | {row['forward']:.1f} | "
            f"{row['backward']:.1f} | {score} |"
        )


def cost(shapes: Sequence[Shape], lanes: int, sampled: int, rounds: int = 3) -> Iterator[str]:
    """Markdown: what training and embedding cost, on made-up text."""
    text = made_up_text(lanes * 60)
    epoch = Epoch(text, 0, lanes, Recipe.unroll, 1)
    recipe = Recipe(lanes=lanes, sampled=sampled)
    types, sentences = text.vocabulary.types, np.split(text.types, text.starts[1:-1])
    calls = [[types[i] for i in sentence[1:-1]] for sentence in sentences[:700]]  # about 16,000 tokens
    trainers = [Trainer.fresh(shape.options, recipe, text) for shape in shapes]
    embedders = []
    for shape in shapes:
        weights = random_weights(shape.options)
        embedders.append(Embedder(weights, StartState.zero(weights.options), EngineSettings()))
    found: list[list[tuple[float, float]]] = [[] for _ in shapes]
    for number in range(rounds + 1):  # the first one warms up
        batches = range(4 * number, 4 * number + 4)
        for trainer, embedder, measurements in zip(trainers, embedders, found, strict=True):
            called = measure(embedder, calls)
            measurements.append((measured(trainer, epoch, batches)["tokens_per_s"], called.tokens / called.seconds))
    yield "| shape | parameters | training, tokens/s | embed, tokens/s |"
    yield "|---|---|---|---|"
    for shape, trainer, measurements in zip(shapes, trainers, found, strict=True):
        parameters = sum(value.numel() for value in trainer.network.parameters.values())
        training, embedding = (statistics.median(column) for column in list(zip(*measurements[1:], strict=True)))
        yield f"| {shape.dim}/{shape.projection} | {parameters:,} | {training:,.0f} | {embedding:,.0f} |"


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = found.add_argument
    add("texts", nargs="*", type=Path, metavar="TEXT")
    add("--cost", action="store_true", help="instead: what each shape costs, on made-up text (default: off)")
    add("--heldout", type=Path, metavar="TEXT", help="measured on its first --heldout-sentences (required)")
    add("--heldout-sentences", type=int, default=1500, help="(default: 1500)")
    add("--vocabulary", type=Path, metavar="FILE", help="commonest first, first column (default: counted in the text)")
    add("--shapes", nargs="+", type=Shape.parse, default=[Shape(512, 128), Shape(1024, 128), Shape(512, 256), Shape(768, 192)],
        metavar="CELLS/PROJECTION", help="(default: 512/128 1024/128 512/256 768/192)")  # fmt: skip
    add("--tokens", nargs="+", type=int, default=[10_000_000], metavar="N", help="ends of the schedule (default: 10000000)")
    add("--lanes", type=int, default=128, help="(default: 128)")
    add("--sampled", type=int, default=2048, help="negatives (default: 2048)")
    add("--rate", type=float, default=2e-3, help="(default: 0.002)")
    add("--warmup-tokens", type=int, default=400_000, help="(default: 400000)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="of the training; auto takes a GPU (default: auto)")
    add("--upos", action="store_true", help="also probe each trained model (default: off)")
    add("--work", type=Path, default=Path("out/shapes"), help="(default: out/shapes)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Everything, in order; 0 when the table is printed, 4 when a signal came first."""
    args = parser().parse_args(argv)
    if args.cost:
        print("\n".join(cost(args.shapes, args.lanes, args.sampled)))
        return 0
    if not args.texts or not args.heldout:
        print("give TEXT to train on and --heldout to measure on, or --cost", file=sys.stderr)
        return 2
    order = None
    if args.vocabulary:
        order = [word for line in read_lines([args.vocabulary]) if (word := line.split("\t", 1)[0])]
    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    recipe = Recipe(lanes=args.lanes, sampled=args.sampled, rate=args.rate, warmup=args.warmup_tokens)
    corpus = Corpus.encode((line.split() for line in read_lines(args.texts)), recipe.n_words, order)
    heldout = [line.split() for line in islice(read_lines([args.heldout]), args.heldout_sentences)]
    rows = []
    for tokens in sorted(args.tokens):
        for shape in args.shapes:
            try:
                row = trial(shape, tokens, recipe, corpus, heldout, args.work, device)
            except Stopped:
                print("stopped; the same command goes on from here", file=sys.stderr)
                return 4
            if args.upos:
                row["upos"] = upos(args.work / shape.name / str(tokens), args.work / shape.name / str(tokens))
            rows.append(row)
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
