"""``elmo-store train``: a biLM from text.

The defaults are a starting point for small models; the packaged model's card gives the command that trained it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
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
    from model.training.trainer import Trainer
    from transforms.inputs.records import Split

DEFAULT_MODEL = "default"  # as model.files.registry has it, which costs PyTorch
SOFTMAX = "softmax.safetensors"
HELDOUT = "heldout.json"
HELDOUT_TOKENS, HELDOUT_SENTENCES = 5_000_000, 1000  # tokens of training between two points, and what they are measured on
TRAINING = "training"  # folder below --output with what a later run needs

EPILOG = """\
FOLDER gets options.json, weights.hdf5 (the published layout) and weights.safetensors, which --model FOLDER reads,
softmax.safetensors, which perplexity needs and embedding does not, and training/ with the checkpoint, the curve and the
held-out points. Ctrl-C leaves a checkpoint and the weights so far; --resume continues exactly from there, to the run's own
end without --max-tokens. It may be given another rate and other negatives.

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
        group, "--heldout", "texts to measure perplexity on at the end, each as a whole; on the way, every "
        f"{HELDOUT_TOKENS // 10**6} million tokens, {HELDOUT_SENTENCES:,} sentences of the first", [], "none", nargs="+",
        metavar="TEXT",
    )  # fmt: skip


def _add_recipe(group: argparse._ActionsContainer) -> None:
    add_option(group, "--rate", "learning rate", 2e-3, type=above_zero)
    add_option(group, "--dropout", "dropout on x and each layer's output", 0.0, type=share, metavar="P")
    add_option(group, "--sampled", "negative samples per batch", 2048, type=count)
    add_option(group, "--lanes", "streams of text side by side in a batch", 128, type=count)
    add_option(group, "--seed", "seed of everything that is drawn", 1, type=natural)


def _add_length(group: argparse._ActionsContainer) -> None:
    add_option(
        group, "--max-tokens", "tokens of text to train on; over the last quarter the rate falls to zero", unset="the text once",
        type=count,
    )  # fmt: skip
    add_option(group, "--resume", "continue the run in --output", False)
    add_option(group, "--device", "auto = a GPU if there is one", "auto", choices=("auto", "cpu", "cuda"))
    add_option(
        group, "--precision", "precision of products; weights, cell and sums are float32", "bfloat16",
        choices=("bfloat16", "float32"),
    )  # fmt: skip
    add_storage_options(group, "the inputs")
    add_quiet(group)


def _check(args: argparse.Namespace) -> None:
    """CommandError for options that make no sense together."""
    if args.evaluate is not None:
        if args.inputs or not args.heldout:
            raise CommandError(Exit.BAD_USAGE, "--evaluate FOLDER takes texts as --heldout TEXT … alone: name at least one there")
        return
    missing = [name for name in ("inputs", "options", "output") if not getattr(args, name)]
    if missing:
        names = ", ".join("TEXT" if name == "inputs" else f"--{name}" for name in missing)
        raise CommandError(Exit.BAD_USAGE, f"training needs TEXT, --options and --output: give {names}")


def _touches(args: argparse.Namespace) -> locations.Touched:
    """Texts and shape, and the run's folder; of ``--evaluate`` the file that it leaves there."""
    texts = locations.inputs([*args.inputs, *args.heldout], args.storage_options, "TEXT")
    if args.evaluate is not None:
        return locations.Touched(texts, [Location("result", os.path.join(args.evaluate, TRAINING, HELDOUT))])
    named = args.options not in (None, DEFAULT_MODEL)
    files = [locations.file("--options", args.options)] if named else []
    reads, own = (texts, files) if args.resume else ([*texts, *files], [])  # a run that is resumed wrote its options itself
    return locations.Touched(reads, [locations.output(args.output)], own=own)


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
    if not args.resume and (output / TRAINING / "checkpoint.pt").exists():
        raise CommandError(Exit.REFUSED, f"{output} already holds a run: add --resume to continue it, or name another --output")
    options = model_options(DEFAULT_MODEL) if args.options == DEFAULT_MODEL else read_options(args.options)
    corpus = _corpus(args)
    heldout = _heldout(args)
    trainer = _trainer(args, options, corpus)
    say: Callable[[str], None] = (lambda _: None) if args.quiet else partial(print, flush=True)
    parameters = sum(value.numel() for value in trainer.network.parameters.values())
    say(
        f"{corpus.n_words:,} tokens, {len(corpus.starts) - 1:,} sentences, {len(corpus.vocabulary.types) - 3:,} types, "
        f"{corpus.vocabulary.n_classes - 3:,} of them distinguished; {parameters:,} "
        f"parameters without the softmax; from token {trainer.progress.tokens:,} on"
    )
    ended = _run_training(trainer, output, heldout, say)
    say(f"{trainer.progress.tokens:,} tokens in {trainer.progress.seconds / 3600:.2f} h; the model is in {output}")
    _report(_evaluate(options, trainer.network.parameters, trainer.softmax_weights(), heldout), output / TRAINING, say)
    if ended:
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
        own = folder / TRAINING / SOFTMAX  # of a published model, for which it is not part of the weights
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


def _corpus(args: argparse.Namespace) -> "Corpus":
    """The text as numbers."""
    from model.errors import TrainingError
    from model.training.corpus import Corpus
    from model.training.trainer import Recipe

    splits, settings = _splits(args.inputs, args)
    corpus = Corpus.encode(_sentences(splits, settings, args, "TEXT"), Recipe.n_words)
    if args.lanes * Recipe.unroll >= len(corpus.types):
        raise TrainingError(
            f"the text has {corpus.n_words:,} tokens, too few for one batch of --lanes {args.lanes} x {Recipe.unroll}: "
            "give more text or fewer lanes"
        )
    return corpus


def _trainer(args: argparse.Namespace, options: "BiLMOptions", corpus: "Corpus") -> "Trainer":
    import torch

    from model.training.run import CHECKPOINT, resume
    from model.training.trainer import Recipe, Trainer

    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise CommandError(Exit.BAD_USAGE, "--device cuda: PyTorch sees no GPU here; take --device cpu or auto")
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    recipe = Recipe(
        seed=args.seed, lanes=args.lanes, sampled=args.sampled, rate=args.rate, dropout=args.dropout, max_tokens=args.max_tokens
    )
    if args.resume:
        return resume(Path(args.output, TRAINING, CHECKPOINT), recipe, corpus, options, device, dtype)
    return Trainer.fresh(options, replace(recipe, max_tokens=args.max_tokens or corpus.n_words), corpus, device, dtype)


def _run_training(
    trainer: "Trainer", output: Path, heldout: list[tuple[str, list[tuple[str, ...]]]], say: Callable[[str], None]
) -> bool:
    """Train, then write the weights; whether the end was reached."""
    from model.training.run import HeldOut, RunSettings, run

    points = HeldOut(heldout[0][0], heldout[0][1][:HELDOUT_SENTENCES], HELDOUT_TOKENS) if heldout else None
    ended = run(trainer, output / TRAINING, RunSettings(say, heldout=points))
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
        (folder / HELDOUT).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


COMMANDS = {"train": Command(_add_arguments, _run, _touches, _check, epilog=EPILOG)}
