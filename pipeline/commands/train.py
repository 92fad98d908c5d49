"""``elmo-store train``: a biLM from text.

The published recipe is ``--optimiser adagrad --sampled 8192 --dropout 0.1``. The defaults are a starting point for small models;
what trained the packaged model, its card gives as a command (more lanes, more negatives, a higher rate).
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_quiet, add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import Touched
from pipeline.jobs.spec import INPUT_FORMATS

if TYPE_CHECKING:
    from torch import Tensor

    from model.options import BiLMOptions
    from model.training.corpus import Corpus
    from model.training.evaluate import Evaluation
    from model.training.run import Report
    from model.training.softmax import SoftmaxWeights
    from model.training.trainer import Recipe, Trainer
    from transforms.inputs.records import Split

RATES = {"adamw": 2e-3, "adagrad": 0.2}
SOFTMAX_RATES = {"adamw": 0.1, "adagrad": 0.2}
CLIPS = {"adamw": 1.0, "adagrad": 10.0}
DEFAULT_MODEL = "default"  # as model.files.registry has it, which costs PyTorch
LOADS = "PyTorch"
SOFTMAX = "softmax.safetensors"
HELDOUT = "heldout.json"
TRAINING = "training"  # folder below --output with what a later run needs

EPILOG = """\
FOLDER gets options.json, weights.hdf5 (the published layout) and weights.safetensors, which --model FOLDER reads,
softmax.safetensors, which perplexity needs and embedding does not, and training/ with the checkpoints, the curve, the
held-out points, the vocabulary and the text as numbers. Ctrl-C leaves a checkpoint and the
weights so far; --resume goes on exactly from there. --resume FILE goes on from another run's checkpoint in a new folder,
for example to let the learning rate fall (--max-tokens, --decay-tokens) while the first run keeps its own. Without
--max-tokens, --resume keeps the end that the run has. What may change: rates, clip, decay, warm-up, negatives and the end.

--evaluate FOLDER trains nothing: it prints the full softmax's perplexity of that folder's model on each text of --heldout, and
leaves them in FOLDER/training/heldout.json.
"""


def _bounded(kind: type[int] | type[float], wanted: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """A type for argparse: numbers of this kind for which ``holds``, which ``wanted`` says in words."""

    def parse(text: str) -> float:
        number = kind(text)
        if not holds(number):
            raise argparse.ArgumentTypeError(f"{text} is out of range: give {wanted}")
        return number

    parse.__name__ = kind.__name__  # argparse says it of what is no number
    return parse


count = _bounded(int, "1 or more", lambda number: number >= 1)
natural = _bounded(int, "0 or more", lambda number: number >= 0)
above_zero = _bounded(float, "a number above 0", lambda number: number > 0 and math.isfinite(number))
not_negative = _bounded(float, "a number of 0 or more", lambda number: number >= 0)
share = _bounded(float, "a number of at least 0 and below 1", lambda number: 0 <= number < 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``train``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("inputs", nargs="*", metavar="TEXT", help="files, folders, globs; any fsspec URL (s3://…)")
    parser.add_argument(
        "--options",
        metavar="FILE",
        help="options.json of the model to train, as published ones; default: the shape of the packaged model (required)",
    )
    parser.add_argument("--output", metavar="FOLDER", help="local folder for model and run (required)")
    parser.add_argument(
        "--evaluate", metavar="FOLDER", help="instead of training: measure this run's model on --heldout (default: train)"
    )
    parser.add_argument(
        "--softmax", metavar="FILE", help="with --evaluate: the model's softmax (default: softmax.safetensors in its folder)"
    )
    _add_reading(parser.add_argument_group("reading"))
    _add_recipe(parser.add_argument_group("recipe"))
    _add_length(parser.add_argument_group("how long and where"))


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--input-format", choices=INPUT_FORMATS, default="auto",
        help="lines = a sentence a line, already tokenised; text = running text (default: auto, by file name)",
    )  # fmt: skip
    group.add_argument("--text-field", metavar="NAME", help="JSONL, Parquet: field with the text (default: text)")
    group.add_argument(
        "--tokenizer", choices=("auto", "ptb", "whitespace"), default="auto",
        help="how a string becomes tokens (default: auto = whitespace for lines, ptb for text and text fields)",
    )  # fmt: skip
    group.add_argument("--skip-refused", action="store_true", help="leave out records that can't be read (default: stop)")
    group.add_argument(
        "--heldout", nargs="+", metavar="TEXT", default=[], help="texts to measure perplexity on, each as a whole, at the end"
    )
    group.add_argument(
        "--heldout-every", type=count, metavar="N",
        help="measure also each N tokens, on the first text's first sentences (default: only at the end)",
    )  # fmt: skip
    group.add_argument("--heldout-sentences", type=count, default=1000, metavar="N", help="how many of them (default: 1000)")
    group.add_argument(
        "--vocabulary", metavar="FILE", help="words of the softmax, commonest first: first column of tab-separated lines, "
        ".xz and such allowed (default: counted in the text)",
    )  # fmt: skip
    group.add_argument("--words", type=count, default=100_000, metavar="N", help="words of the softmax (default: 100000)")


def _add_recipe(group: Any) -> None:
    group.add_argument("--optimiser", choices=tuple(RATES), default="adamw", help="adagrad = as published (default: adamw)")
    group.add_argument("--rate", type=above_zero, metavar="X", help="learning rate (default: 0.002 adamw, 0.2 adagrad)")
    group.add_argument(
        "--softmax-rate", type=above_zero, metavar="X", help="of the softmax's rows (default: 0.1 adamw, 0.2 adagrad)"
    )
    group.add_argument("--clip", type=above_zero, metavar="X", help="bound on the gradient's norm (default: 1 adamw, 10 adagrad)")
    group.add_argument(
        "--weight-decay", type=not_negative, default=0.01, metavar="X", help="AdamW's, of matrices (default: 0.01)"
    )
    group.add_argument("--dropout", type=share, default=0.0, metavar="P", help="of x and each layer's output (default: 0)")
    group.add_argument(
        "--sampled", type=natural, default=2048, metavar="N", help="negatives a batch, 0 = full softmax (default: 2048)"
    )
    group.add_argument("--lanes", type=count, default=128, metavar="N", help="streams of text side by side (default: 128)")
    group.add_argument("--unroll", type=count, default=20, metavar="N", help="tokens that gradients go back (default: 20)")
    group.add_argument(
        "--warmup-tokens", type=natural, default=1_000_000, metavar="N", help="the rate rises over (default: 1000000)"
    )
    group.add_argument(
        "--decay-tokens",
        type=natural,
        metavar="N",
        help="the rate falls to zero over the last N (default: a quarter of --max-tokens)",
    )
    group.add_argument(
        "--shuffle", action="store_true",
        help="the first pass too reads the sentences in an order drawn by --seed, as later ones do (default: the text's own)",
    )  # fmt: skip
    group.add_argument("--seed", type=natural, default=1, metavar="N", help="of everything drawn (default: 1)")


def _add_length(group: Any) -> None:
    group.add_argument("--max-tokens", type=count, metavar="N", help="words of text to train on (default: the text once)")
    group.add_argument(
        "--hours", type=above_zero, metavar="X",
        help="stop after so long; without --max-tokens the rate falls to zero over the last quarter (default: no bound)",
    )  # fmt: skip
    group.add_argument("--resume", nargs="?", const="", metavar="CHECKPOINT", help="go on from FOLDER's run, or from this file")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes a GPU (default: auto)")
    group.add_argument(
        "--precision", choices=("bfloat16", "float32"), default="bfloat16",
        help="of products; weights, cell and sums are float32 (default: bfloat16)",
    )  # fmt: skip
    group.add_argument("--report-seconds", type=float, default=15.0, metavar="S", help="between progress lines (default: 15)")
    group.add_argument("--checkpoint-seconds", type=float, default=300.0, metavar="S", help="between them (default: 300)")
    group.add_argument(
        "--keep-checkpoints", type=count, default=2, metavar="N",
        help="older ones are named by their tokens, to go back to by --resume FILE (default: 2)",
    )  # fmt: skip
    add_storage_options(group, "the inputs")
    add_quiet(group)


def check(args: argparse.Namespace) -> None:
    """CommandError for options that make no sense and files of this machine that are not there."""
    for problem in _problems(args):
        raise CommandError(Exit.BAD_USAGE, problem)
    locations.check_inputs([*args.inputs, *args.heldout])
    for option, place in (("--options", args.options), ("--vocabulary", args.vocabulary), ("--resume", args.resume)):
        if place and (option, place) != ("--options", DEFAULT_MODEL):
            locations.check_file(place, option)
    if args.evaluate is None:
        locations.check_output(args.output)


def touches(args: argparse.Namespace) -> Touched:
    """Texts, shape and words, and the run's folder; of ``--evaluate`` the file that it leaves there.

    A run that is resumed may be told the options and words that it wrote itself.
    """
    texts = locations.inputs([*args.inputs, *args.heldout], args.storage_options, "TEXT")
    if args.evaluate is not None:
        softmax = [Location("--softmax", args.softmax)] if args.softmax else []
        return Touched([*texts, *softmax], [Location("result", os.path.join(args.evaluate, TRAINING, HELDOUT))])
    fixed = [("--options", args.options), ("--vocabulary", args.vocabulary)] if args.resume is None else []
    named = [Location(what, place) for what, place in fixed if place and (what, place) != ("--options", DEFAULT_MODEL)]
    return Touched([*texts, *named], [Location("output", args.output)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Train. 0 the end was reached, 4 stopped before it; CommandError for what never began."""
    from model.training.memory import keep_freed_memory

    keep_freed_memory()  # before torch allocates anything
    from model.errors import OptionsError, TrainingError
    from model.files.registry import model_options
    from model.files.weights import read_options
    from transforms.inputs.records import InputError

    if args.evaluate is not None:
        return evaluate_run(args)
    output = Path(args.output)
    if args.resume is None and (output / TRAINING / "checkpoint.pt").exists():
        raise CommandError(Exit.REFUSED, f"{output} holds a run already: --resume continues it; otherwise name another --output")
    try:
        options = model_options(DEFAULT_MODEL) if args.options == DEFAULT_MODEL else read_options(args.options)
        corpus = _corpus(args, output / TRAINING / "corpus")
        heldout = [(path, list(_sentences([path], args, "--heldout"))) for path in args.heldout]
        trainer = _trainer(args, options, corpus, output)
        if not args.quiet:
            parameters = sum(value.numel() for value in trainer.network.parameters.values())
            print(
                f"{corpus.n_words:,} tokens, {len(corpus.starts) - 1:,} sentences, {len(corpus.vocabulary.types) - 3:,} types, "
                f"{corpus.vocabulary.n_classes - 3:,} of them told apart; {parameters:,} "
                f"parameters without the softmax; from token {trainer.progress.tokens:,} on",
                flush=True,
            )
        ended = _run(args, trainer, output, heldout[0] if heldout and args.heldout_every else None)
        evaluations = _evaluate(options, trainer.network.parameters, trainer.softmax_weights(), heldout)
    except OptionsError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    except (InputError, TrainingError) as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    progress = trainer.progress
    print(f"{progress.tokens:,} tokens in {progress.seconds / 3600:.2f} h; the model is in {output}")
    _report(evaluations, output / TRAINING)
    if ended == "tokens":
        return Exit.COMPLETE
    print("Stopped before the end; the same command with --resume goes on from here.", file=sys.stderr)
    return Exit.INCOMPLETE


def evaluate_run(args: argparse.Namespace) -> int:
    """Perplexity of a trained folder's model on held-out texts, and `heldout.json` beside its run."""
    from model.errors import ModelError, TrainingError
    from model.files.weights import BiLMWeights
    from model.training.softmax import SoftmaxWeights
    from transforms.inputs.records import InputError

    folder = Path(args.evaluate)
    try:
        theta = SoftmaxWeights.load(Path(args.softmax) if args.softmax else folder / SOFTMAX)
        weights = BiLMWeights.load_safetensors(folder / "weights.safetensors")
        heldout = [(path, list(_sentences([path], args, "--heldout"))) for path in args.heldout]
        evaluations = _evaluate(weights.options, weights.tensors, theta, heldout)
    except (InputError, TrainingError) as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    except (ModelError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the model of --evaluate {folder} can't be read: {error}") from error
    _report(evaluations, folder / TRAINING)
    return Exit.COMPLETE


def _problems(args: argparse.Namespace) -> Iterator[str]:
    if args.evaluate is not None:
        if args.inputs or not args.heldout:
            yield "--evaluate FOLDER takes the texts as --heldout TEXT … and no others: name at least one there"
        return
    if args.softmax:
        yield "--softmax belongs to --evaluate FOLDER: training makes its own"
    missing = [name for name in ("inputs", "options", "output") if not getattr(args, name)]
    if missing:
        names = ", ".join("TEXT" if name == "inputs" else f"--{name}" for name in missing)
        yield f"training needs TEXT, --options and --output: give {names}"
    if args.heldout_every is not None and not args.heldout:
        yield "--heldout-every has no text to measure on: give --heldout"
    if args.decay_tokens is not None and args.max_tokens is None and args.hours is not None:
        yield "--decay-tokens counts back from --max-tokens: give both, or leave the fall to --hours"


def _splits(inputs: list[str], args: argparse.Namespace) -> "tuple[list[Split], Any]":
    from transforms.inputs.records import ReadSettings
    from transforms.stages.split import plan_splits

    settings = ReadSettings(text_field=args.text_field or "text", tokenizer=args.tokenizer)
    own = [args.output] if args.output else []
    return plan_splits(inputs, args.input_format, settings, storage_options=args.storage_options, exclude=own), settings


def _sentences(inputs: list[str], args: argparse.Namespace, what: str = "TEXT") -> Iterator[tuple[str, ...]]:
    """The sentences of the inputs in order.

    Raises:
        TrainingError: a record can't be read, unless --skip-refused.
    """
    from model.errors import TrainingError
    from transforms.inputs.records import Reject
    from transforms.readers import read_split

    splits, settings = _splits(inputs, args)
    refused = 0
    for split in splits:
        for record in read_split(split, settings, args.storage_options):
            if isinstance(record, Reject):
                if not args.skip_refused:
                    raise TrainingError(
                        f"{split.url}, record {record.position}: {record.reason}. {what} must be readable text: mend the file, "
                        "or leave such records out with --skip-refused"
                    )
                refused += 1
            else:
                yield record.tokens
    if refused:
        print(f"{refused:,} records of {what} can't be read and were left out", file=sys.stderr)


def _corpus(args: argparse.Namespace, folder: Path) -> "Corpus":
    """The text as numbers: from an earlier run where it is of the same files, otherwise read."""
    from model.errors import TrainingError
    from model.training.corpus import Corpus
    from transforms.inputs.records import input_fingerprint

    splits, settings = _splits(args.inputs, args)
    identity = {
        "input": input_fingerprint(splits),
        "reading": settings.to_dict(),
        "words": args.words,
        "vocabulary": args.vocabulary,
        "skip_refused": args.skip_refused,
    }
    marker = folder / "source.json"
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == identity:
        return Corpus.load(folder)
    order = None if args.vocabulary is None else _vocabulary(args.vocabulary)
    corpus = Corpus.encode(_sentences(args.inputs, args), args.words, order)
    if args.lanes * args.unroll >= len(corpus.types):
        raise TrainingError(
            f"the text has {corpus.n_words:,} tokens, too few for one batch of --lanes {args.lanes} x --unroll {args.unroll}: "
            "give more text or smaller batches"
        )
    corpus.save(folder)
    marker.write_text(json.dumps(identity), encoding="utf-8")
    return corpus


def _vocabulary(path: str) -> list[str]:
    """The words of a vocabulary file: its first column."""
    import fsspec

    from transforms.inputs.records import InputError

    try:
        with fsspec.open(path, "rt", encoding="utf-8", compression="infer", newline="\n") as lines:
            words = [line.rstrip("\n").split("\t", 1)[0] for line in lines]
    except (OSError, ValueError) as error:
        raise InputError(path, f"the vocabulary can't be read: {error}") from error
    return [word for word in words if word]


def _trainer(args: argparse.Namespace, options: "BiLMOptions", corpus: "Corpus", output: Path) -> "Trainer":
    import torch

    from model.training.run import CHECKPOINT, resume
    from model.training.trainer import FALL, Trainer

    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise CommandError(Exit.BAD_USAGE, "--device cuda: PyTorch sees no GPU here; take --device cpu or auto")
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    recipe = _recipe(args)
    if args.resume is None:
        trainer = Trainer.fresh(options, recipe, corpus, device, dtype)
    else:
        path = Path(args.resume) if args.resume else output / TRAINING / CHECKPOINT
        trainer = resume(path, recipe, corpus, options, device, dtype)
    if trainer.recipe.max_tokens is None and args.hours is None:
        fall = round(FALL * corpus.n_words) if args.decay_tokens is None else args.decay_tokens
        trainer.recipe = replace(trainer.recipe, max_tokens=corpus.n_words, decay_tokens=fall)
    return trainer


def _recipe(args: argparse.Namespace) -> "Recipe":
    """The recipe asked for; without --max-tokens it has no end yet."""
    from model.training.trainer import FALL, Recipe

    return Recipe(
        seed=args.seed,
        lanes=args.lanes,
        unroll=args.unroll,
        shuffle=args.shuffle,
        n_words=args.words,
        sampled=args.sampled,
        optimiser=args.optimiser,
        rate=args.rate or RATES[args.optimiser],
        softmax_rate=args.softmax_rate or SOFTMAX_RATES[args.optimiser],
        clip=args.clip or CLIPS[args.optimiser],
        weight_decay=args.weight_decay,
        dropout=args.dropout,
        warmup=args.warmup_tokens,
        decay_tokens=round(FALL * (args.max_tokens or 0)) if args.decay_tokens is None else args.decay_tokens,
        max_tokens=args.max_tokens,
    )


def _run(args: argparse.Namespace, trainer: "Trainer", output: Path, heldout: tuple[str, list[tuple[str, ...]]] | None) -> str:
    """Train, then write the weights; why it ended."""
    from model.training.run import HeldOut, RunSettings, run

    def on_progress(report: "Report") -> None:
        if not args.quiet:
            print(report.line(), flush=True)

    def on_point(tokens: int, evaluation: "Evaluation") -> None:
        if not args.quiet:
            forward, backward = evaluation.perplexity
            print(f"{tokens:,} tokens | held-out perplexity {forward:,.1f} forward, {backward:,.1f} backward", flush=True)

    folder = output / TRAINING
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(asdict(trainer.recipe), indent=2) + "\n", encoding="utf-8")
    vocabulary = trainer.corpus.vocabulary
    words = "".join(f"{word}\n" for word in vocabulary.types[: vocabulary.n_classes])
    (folder / "vocabulary.txt").write_text(words, encoding="utf-8")
    settings = RunSettings(
        hours=args.hours,
        on_progress=on_progress,
        report_seconds=args.report_seconds,
        checkpoint_seconds=args.checkpoint_seconds,
        keep=args.keep_checkpoints,
        heldout=heldout and HeldOut(heldout[0], heldout[1][: args.heldout_sentences], args.heldout_every, on_point),
    )
    ended = run(trainer, folder, settings)
    weights = trainer.network.weights()
    weights.save_hdf5(output)
    weights.save_safetensors(output / "weights.safetensors")
    trainer.softmax_weights().save(output / SOFTMAX)
    return ended


def _evaluate(
    options: "BiLMOptions",
    parameters: "dict[str, Tensor]",
    theta: "SoftmaxWeights",
    heldout: list[tuple[str, list[tuple[str, ...]]]],
) -> "dict[str, Evaluation]":
    """The evaluation of each text, with float32 products."""
    import torch

    from model.training.evaluate import evaluate
    from model.training.network import Network

    exact = Network(options, parameters, torch.float32)
    return {path: evaluate(exact, theta, text) for path, text in heldout}


def _report(evaluations: "dict[str, Evaluation]", folder: Path) -> None:
    """Print the perplexities, and write them into the folder as heldout.json."""
    rows = []
    for path, evaluation in evaluations.items():
        forward, backward = evaluation.perplexity
        print(
            f"held-out {path}: perplexity {forward:,.1f} forward, {backward:,.1f} backward over {evaluation.predictions:,} "
            f"predictions ({100 * evaluation.unknown:.2f}% unknown words, as one type)"
        )
        rows.append({"text": path, **asdict(evaluation), "perplexity": evaluation.perplexity})
    if rows:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HELDOUT).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
