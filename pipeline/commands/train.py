"""``elmo-store train``: a biLM from text.

The published recipe is ``--optimiser adagrad --sampled 8192 --dropout 0.1``. The defaults are a starting point for small models;
what trained the packaged model, its card gives as a command (more lanes, more negatives, a higher rate).
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import above_zero, add_option, add_quiet, add_storage_options, count, natural, share
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import quantity
from pipeline.jobs.spec import add_embed_option

if TYPE_CHECKING:
    from torch import Tensor

    from model.options import BiLMOptions
    from model.training.corpus import Corpus
    from model.training.evaluate import Evaluation
    from model.training.softmax import SoftmaxWeights
    from model.training.trainer import Recipe, Trainer
    from transforms.inputs.records import Split

DEFAULTS = {
    "adamw": {"rate": 2e-3, "softmax_rate": 0.1, "clip": 1.0},
    "adagrad": {"rate": 0.2, "softmax_rate": 0.2, "clip": 10.0},
}
DEFAULT_MODEL = "default"  # as model.files.registry has it, which costs PyTorch
SOFTMAX = "softmax.safetensors"
HELDOUT = "heldout.json"
HELDOUT_SENTENCES = 1000  # that are measured on the way
REPORT_SECONDS, CHECKPOINT_SECONDS = 15.0, 300.0  # between two
KEPT_CHECKPOINTS = 2
TRAINING = "training"  # folder below --output with what a later run needs

EPILOG = """\
FOLDER gets options.json, weights.hdf5 (the published layout) and weights.safetensors, which --model FOLDER reads,
softmax.safetensors, which perplexity needs and embedding does not, and training/ with the checkpoints, the curve, the
held-out points, the vocabulary and the text as numbers. Ctrl-C leaves a checkpoint and the
weights so far; --resume continues exactly from there. --resume FILE continues another run's checkpoint in a new folder,
for example to let the learning rate fall (--max-tokens, --decay-tokens) while the first run keeps its own. Without
--max-tokens, --resume keeps the run's end. On resume you may change the rate, warm-up, negatives and the end.

--evaluate FOLDER trains nothing: it prints the full softmax's perplexity of that folder's model on each text of --heldout, and
leaves them in FOLDER/training/heldout.json.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="*", metavar="TEXT", help="files, folders, globs; any fsspec URL (s3://…)")
    add_option(
        parser, "--options", "options.json of the model to train, or the word default for the shape of the packaged model "
        "(required)", unset=None, metavar="FILE",
    )  # fmt: skip
    add_option(parser, "--output", "local folder for the model and its training (required)", unset=None, metavar="FOLDER")
    add_option(
        parser, "--evaluate", "instead of training: measure this run's model on --heldout", unset="train", metavar="FOLDER"
    )
    _add_reading(parser.add_argument_group("reading"))
    _add_recipe(parser.add_argument_group("recipe"))
    _add_length(parser.add_argument_group("how long and where"))


def _add_reading(group: argparse._ActionsContainer) -> None:
    for name in ("input_format", "text_field", "tokenizer"):
        add_embed_option(group, name)
    add_option(
        group, "--heldout", "texts to measure perplexity on at the end, each as a whole", [], "none", nargs="+", metavar="TEXT"
    )
    add_option(
        group, "--heldout-every", f"also measure every N tokens, on the first {HELDOUT_SENTENCES:,} sentences of the first text",
        unset="only at the end", type=count,
    )  # fmt: skip
    add_option(
        group, "--vocabulary", "words of the softmax, commonest first: first column of tab-separated lines, .xz and such allowed",
        unset="counted in the text", metavar="FILE",
    )  # fmt: skip


def _add_recipe(group: argparse._ActionsContainer) -> None:
    add_option(group, "--optimiser", "adagrad = as published", "adamw", choices=tuple(DEFAULTS))
    unset = ", ".join(f"{values['rate']:g} {optimiser}" for optimiser, values in DEFAULTS.items())
    add_option(group, "--rate", "learning rate", unset=unset, type=above_zero)
    add_option(group, "--dropout", "dropout on x and each layer's output", 0.0, type=share, metavar="P")
    add_option(group, "--sampled", "negative samples per batch; 0 = full softmax", 2048, type=natural)
    add_option(group, "--lanes", "streams of text side by side in a batch", 128, type=count)
    add_option(group, "--warmup-tokens", "tokens over which the rate rises", 1_000_000, type=natural, dest="warmup")
    add_option(
        group, "--decay-tokens", "tokens at the end over which the rate falls to zero", unset="a quarter of --max-tokens",
        type=natural,
    )  # fmt: skip
    add_option(
        group, "--shuffle", "also read the first pass in an order drawn by --seed, as later ones are", False, "in the text's own"
    )
    add_option(group, "--seed", "seed of everything that is drawn", 1, type=natural)


def _add_length(group: argparse._ActionsContainer) -> None:
    add_option(group, "--max-tokens", "tokens of text to train on", unset="the text once", type=count)
    add_option(
        group, "--hours", "stop after so many hours; without --max-tokens the rate falls to zero over the last quarter",
        unset="no bound", type=above_zero,
    )  # fmt: skip
    add_option(
        group, "--resume", "continue the run in --output, or from this checkpoint", unset="begin", nargs="?", const="",
        metavar="CHECKPOINT",
    )  # fmt: skip
    add_option(group, "--device", "auto = a GPU if there is one", "auto", choices=("auto", "cpu", "cuda"))
    add_option(
        group, "--precision", "precision of products; weights, cell and sums are float32", "bfloat16",
        choices=("bfloat16", "float32"),
    )  # fmt: skip
    add_storage_options(group, "the inputs")
    add_quiet(group)


def _check(args: argparse.Namespace) -> None:
    """CommandError for options that make no sense together."""
    for problem in _problems(args):
        raise CommandError(Exit.BAD_USAGE, problem)


def _problems(args: argparse.Namespace) -> Iterator[str]:
    if args.evaluate is not None:
        if args.inputs or not args.heldout:
            yield "--evaluate FOLDER takes the texts as --heldout TEXT … and no others: name at least one there"
        return
    missing = [name for name in ("inputs", "options", "output") if not getattr(args, name)]
    if missing:
        names = ", ".join("TEXT" if name == "inputs" else f"--{name}" for name in missing)
        yield f"training needs TEXT, --options and --output: give {names}"
    if args.heldout_every is not None and not args.heldout:
        yield "--heldout-every has no text to measure on: give --heldout"
    if args.decay_tokens is not None and args.max_tokens is None and args.hours is not None:
        yield "--decay-tokens counts back from --max-tokens: give both, or leave the fall to --hours"


def _touches(args: argparse.Namespace) -> locations.Touched:
    """Texts, shape and words, and the run's folder; of ``--evaluate`` the file that it leaves there."""
    texts = locations.inputs([*args.inputs, *args.heldout], args.storage_options, "TEXT")
    if args.evaluate is not None:
        return locations.Touched(texts, [Location("result", os.path.join(args.evaluate, TRAINING, HELDOUT))])
    options = None if args.options == DEFAULT_MODEL else args.options
    named = (("--options", options), ("--vocabulary", args.vocabulary), ("--resume", args.resume))
    files = [locations.file(option, path) for option, path in named if path]
    output = [locations.output(args.output)]
    # A run that is resumed may be told the options and words that it wrote itself.
    return locations.Touched([*texts, *files], output) if args.resume is None else locations.Touched(texts, output, own=files)


def _run(args: argparse.Namespace) -> int:
    """Train or evaluate. 0 the end was reached, 4 stopped before it; CommandError for what never began."""
    from model.training.memory import keep_freed_memory

    keep_freed_memory()  # before torch allocates anything
    from model.errors import OptionsError, TrainingError
    from transforms.inputs.records import InputError

    try:
        return _train(args) if args.evaluate is None else _evaluate_run(args)
    except OptionsError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    except (InputError, TrainingError) as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error


def _train(args: argparse.Namespace) -> int:
    from model.files.registry import model_options
    from model.options import read_options

    output = Path(args.output)
    folder = output / TRAINING
    if args.resume is None and (folder / "checkpoint.pt").exists():
        raise CommandError(Exit.REFUSED, f"{output} already holds a run: add --resume to continue it, or name another --output")
    options = model_options(DEFAULT_MODEL) if args.options == DEFAULT_MODEL else read_options(args.options)
    corpus = _corpus(args, folder / "corpus")
    heldout = _heldout(args)
    trainer = _trainer(args, options, corpus, folder)
    if not args.quiet:
        parameters = sum(value.numel() for value in trainer.network.parameters.values())
        print(
            f"{corpus.n_words:,} tokens, {len(corpus.starts) - 1:,} sentences, {len(corpus.vocabulary.types) - 3:,} types, "
            f"{corpus.vocabulary.n_classes - 3:,} of them distinguished; {parameters:,} "
            f"parameters without the softmax; from token {trainer.progress.tokens:,} on",
            flush=True,
        )
    ended = _run_training(args, trainer, output, heldout[0] if heldout and args.heldout_every else None)
    evaluations = _evaluate(options, trainer.network.parameters, trainer.softmax_weights(), heldout)
    progress = trainer.progress
    say = (lambda _: None) if args.quiet else print
    say(f"{progress.tokens:,} tokens in {progress.seconds / 3600:.2f} h; the model is in {output}")
    _report(evaluations, folder, say)
    if ended == "tokens":
        return Exit.COMPLETE
    print("Stopped before the end; rerun the same command with --resume to continue.", file=sys.stderr)
    return Exit.INCOMPLETE


def _evaluate_run(args: argparse.Namespace) -> int:
    """Perplexity of a trained folder's model on held-out texts, and `heldout.json` beside its run."""
    from model.errors import ModelError
    from model.files.weights import BiLMWeights
    from model.training.softmax import SoftmaxWeights

    folder = Path(args.evaluate)
    try:
        own = folder / TRAINING / SOFTMAX  # of a published model, for which it is no part of the weights
        softmax = SoftmaxWeights.load(own if own.exists() else folder / SOFTMAX)
        weights = BiLMWeights.load_safetensors(folder / "weights.safetensors")
    except (ModelError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the model of --evaluate {folder} can't be read: {error}") from error
    _report(_evaluate(weights.options, weights.tensors, softmax, _heldout(args)), folder / TRAINING, print)
    return Exit.COMPLETE


def _heldout(args: argparse.Namespace) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Each text of ``--heldout``: its name and its sentences."""
    texts = []
    for path in args.heldout:
        splits, settings = _splits([path], args)
        texts.append((path, list(_sentences(splits, settings, args, "--heldout"))))
    return texts


def _splits(inputs: list[str], args: argparse.Namespace) -> "tuple[Sequence[Split], Any]":
    from transforms.inputs.records import ReadSettings
    from transforms.stages.split import plan_splits

    settings = ReadSettings(text_field=args.text_field or "text", tokenizer=args.tokenizer or "auto")
    own = [args.output] if args.output else []
    return plan_splits(inputs, args.input_format, settings, storage_options=args.storage_options, exclude=own), settings


def _sentences(splits: "Sequence[Split]", settings: Any, args: argparse.Namespace, what: str) -> Iterator[tuple[str, ...]]:
    """The sentences of the inputs in order; records that can't be read are left out, and counted on the error output."""
    from transforms.inputs.records import Reject
    from transforms.readers import read_split

    refused = 0
    for split in splits:
        for record in read_split(split, settings, args.storage_options):
            if not isinstance(record, Reject):
                yield record.tokens
                continue
            refused += 1
            if refused == 1:
                print(f"{split.url}, record {record.position}: {record.reason}", file=sys.stderr)
    if refused:
        print(f"{quantity(refused, 'record')} of {what} can't be read and left out, the first as above", file=sys.stderr)


def _corpus(args: argparse.Namespace, folder: Path) -> "Corpus":
    """The text as numbers: from an earlier run where it is of the same files, otherwise read."""
    from model.errors import TrainingError
    from model.training.corpus import Corpus
    from model.training.trainer import Recipe
    from transforms.inputs.records import input_fingerprint

    splits, settings = _splits(args.inputs, args)
    identity = {
        "input": input_fingerprint(splits),
        "reading": settings.to_dict(),
        "vocabulary": args.vocabulary,
    }
    marker = folder / "source.json"
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == identity:
        return Corpus.load(folder)
    words = None if args.vocabulary is None else _vocabulary(args.vocabulary)
    corpus = Corpus.encode(_sentences(splits, settings, args, "TEXT"), Recipe.n_words, words)
    if args.lanes * Recipe.unroll >= len(corpus.types):
        raise TrainingError(
            f"the text has {corpus.n_words:,} tokens, too few for one batch of --lanes {args.lanes} x {Recipe.unroll}: "
            "give more text or fewer lanes"
        )
    corpus.save(folder)
    marker.write_text(json.dumps(identity), encoding="utf-8")
    return corpus


def _vocabulary(path: str) -> list[str]:
    """The words of a vocabulary file: its first column."""
    from pipeline.cli.label_files import lines_of
    from transforms.inputs.records import InputError

    try:
        words = [line.split("\t", 1)[0] for _, line in lines_of(path)]
    except (OSError, ValueError) as error:
        raise InputError(path, f"the vocabulary can't be read: {error}") from error
    return [word for word in words if word]


def _trainer(args: argparse.Namespace, options: "BiLMOptions", corpus: "Corpus", folder: Path) -> "Trainer":
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
        trainer = resume(Path(args.resume or folder / CHECKPOINT), recipe, corpus, options, device, dtype)
    if trainer.recipe.max_tokens is None and args.hours is None:
        fall = round(FALL * corpus.n_words) if args.decay_tokens is None else args.decay_tokens
        trainer.recipe = replace(trainer.recipe, max_tokens=corpus.n_words, decay_tokens=fall)
    return trainer


def _recipe(args: argparse.Namespace) -> "Recipe":
    """The recipe asked for; without --max-tokens it has no end yet."""
    from model.training.trainer import FALL, Recipe

    values = {field.name: getattr(args, field.name) for field in fields(Recipe) if hasattr(args, field.name)}
    values |= DEFAULTS[args.optimiser] | ({} if args.rate is None else {"rate": args.rate})
    if args.decay_tokens is None:
        values["decay_tokens"] = round(FALL * (args.max_tokens or 0))
    return Recipe(**values)


def _run_training(
    args: argparse.Namespace, trainer: "Trainer", output: Path, heldout: tuple[str, list[tuple[str, ...]]] | None
) -> str:
    """Train, then write the weights; why it ended."""
    from model.training.run import HeldOut, RunSettings, run

    say = (lambda _: None) if args.quiet else partial(print, flush=True)

    def on_point(tokens: int, evaluation: "Evaluation") -> None:
        forward, backward = evaluation.perplexity
        say(f"{tokens:,} tokens | held-out perplexity {forward:,.1f} forward, {backward:,.1f} backward")

    folder = output / TRAINING
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "recipe.json", asdict(trainer.recipe))
    vocabulary = trainer.corpus.vocabulary
    words = "".join(f"{word}\n" for word in vocabulary.types[: vocabulary.n_classes])
    (folder / "vocabulary.txt").write_text(words, encoding="utf-8")
    settings = RunSettings(
        hours=args.hours,
        on_progress=lambda report: say(report.line()),
        report_seconds=REPORT_SECONDS,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        keep=KEPT_CHECKPOINTS,
        heldout=heldout and HeldOut(heldout[0], heldout[1][:HELDOUT_SENTENCES], args.heldout_every, on_point),
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
    softmax: "SoftmaxWeights",
    heldout: list[tuple[str, list[tuple[str, ...]]]],
) -> "dict[str, Evaluation]":
    """The evaluation of each text, with float32 products."""
    import torch

    from model.training.evaluate import evaluate
    from model.training.network import Network

    exact = Network(options, parameters, torch.float32)
    return {path: evaluate(exact, softmax, text) for path, text in heldout}


def _report(evaluations: "dict[str, Evaluation]", folder: Path, say: Callable[[str], None]) -> None:
    """Say the perplexities, and write them into the folder as heldout.json."""
    rows = []
    for path, evaluation in evaluations.items():
        forward, backward = evaluation.perplexity
        say(
            f"held-out {path}: perplexity {forward:,.1f} forward, {backward:,.1f} backward over {evaluation.predictions:,} "
            f"predictions ({100 * evaluation.unknown:.2f}% unknown words, as one type)"
        )
        rows.append({"text": path, **asdict(evaluation), "perplexity": evaluation.perplexity})
    if rows:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / HELDOUT, rows)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


COMMANDS = {"train": Command(_add_arguments, _run, _touches, _check, epilog=EPILOG, loads="PyTorch")}
