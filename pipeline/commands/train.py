"""``elmo-store train``: a biLM from text.

The defaults are a starting point for small models; the packaged model's card gives the command that trained it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import (
    above_zero,
    add_option,
    add_quiet,
    add_storage_options,
    count,
    natural,
)
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import quantity
from pipeline.jobs.spec import add_embed_option

if TYPE_CHECKING:
    from model.training.network import Network
    from model.training.softmax import SoftmaxWeights

DEFAULT_MODEL = "default"  # as model.files.registry has it, which costs PyTorch
SOFTMAX = "softmax.safetensors"
RESUMED = "with --resume what the run has"
TRAINING = "training"  # folder below --output with what a later run needs

EPILOG = """\
FOLDER gets options.json, weights.hdf5 (the published layout) and weights.safetensors, which --model FOLDER reads,
softmax.safetensors, which perplexity needs and embedding does not, and training/ with the checkpoint and the curve. Ctrl-C
leaves a checkpoint and the weights so far; --resume continues exactly from there, to the run's own end without --max-tokens.
It may be given another rate and other negatives.

--evaluate FOLDER trains nothing: it prints the full softmax's perplexity of that folder's model on each text of --heldout.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="*", metavar="TEXT", help="files, folders, globs; any fsspec URL (s3://…)"
    )
    add_option(
        parser, "--options", "options.json of the model to train, or the word default for the shape of the packaged model "
        "(required)", unset=None, metavar="FILE",
    )  # fmt: skip
    add_option(
        parser,
        "--output",
        "local folder for the model and its training (required)",
        unset=None,
        metavar="FOLDER",
    )
    add_option(
        parser,
        "--evaluate",
        "instead of training: measure this run's model on --heldout",
        unset="train",
        metavar="FOLDER",
    )
    group = parser.add_argument_group("reading")
    for name in ("input_format", "text_field", "tokenizer"):
        add_embed_option(group, name)
    add_option(
        group,
        "--heldout",
        "texts to measure perplexity on at the end, each as a whole",
        [],
        "none",
        nargs="+",
        metavar="TEXT",
    )
    add_storage_options(group, "the inputs")
    group = parser.add_argument_group("recipe")
    add_option(group, "--rate", "learning rate", unset=f"2e-3; {RESUMED}", type=above_zero)
    add_option(
        group, "--sampled", "negative samples per batch", unset=f"2048; {RESUMED}", type=count
    )
    add_option(group, "--lanes", "streams of text side by side in a batch", 128, type=count)
    add_option(group, "--seed", "seed of everything that is drawn", 1, type=natural)
    add_option(
        group, "--max-tokens", "tokens of text to train on; over the last quarter the rate falls to zero", unset="the text once",
        type=count,
    )  # fmt: skip
    add_option(
        group, "--precision", "precision of products; weights, cell and sums are float32", unset=f"bfloat16; {RESUMED}",
        choices=("bfloat16", "float32"),
    )  # fmt: skip
    add_option(parser, "--resume", "continue the run in --output", False)
    add_quiet(parser)


def _check(args: argparse.Namespace) -> None:
    if args.evaluate is not None:
        if args.inputs or not args.heldout:
            raise CommandError(
                Exit.BAD_USAGE,
                "--evaluate FOLDER takes texts as --heldout TEXT … alone: name at least one there",
            )
        return
    missing = [name for name in ("inputs", "options", "output") if not getattr(args, name)]
    if missing:
        names = ", ".join("TEXT" if name == "inputs" else f"--{name}" for name in missing)
        raise CommandError(
            Exit.BAD_USAGE, f"training needs TEXT, --options and --output: give {names}"
        )


def _touches(args: argparse.Namespace) -> locations.Touched:
    texts = locations.inputs([*args.inputs, *args.heldout], args.storage_options, "TEXT")
    if args.evaluate is not None:
        return locations.Touched([*texts, *locations.model(args.evaluate, "--evaluate")])
    if (
        args.options != DEFAULT_MODEL and not args.resume
    ):  # a run that is resumed wrote its options itself
        texts.append(locations.file("--options", args.options))
    return locations.Touched(texts, [locations.on_this_machine(args.output, "--output")])


def _run(args: argparse.Namespace) -> int:
    """Train or evaluate. 0 the end was reached, 4 stopped before it; CommandError for what never began."""
    from model.errors import ModelError, OptionsError
    from transforms.inputs.records import InputError

    try:
        return _train(args) if args.evaluate is None else _evaluate(args)
    except OptionsError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    except (InputError, ModelError) as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error


def _train(args: argparse.Namespace) -> int:
    import torch

    from model.files.registry import load_model
    from model.options import read_options
    from model.training.corpus import Corpus
    from model.training.run import CHECKPOINT, MAY_CHANGE, resume, run
    from model.training.trainer import Recipe, Trainer

    output, checkpoint = Path(args.output), Path(args.output, TRAINING, CHECKPOINT)
    if not args.resume and checkpoint.exists():
        raise CommandError(
            Exit.REFUSED,
            f"{output} already holds a run: add --resume to continue it, or name another --output",
        )
    options = (
        load_model()[1].options if args.options == DEFAULT_MODEL else read_options(args.options)
    )
    corpus = Corpus.encode(_sentences(args.inputs, args, "TEXT"), Recipe.n_words)
    heldout = _heldout(args)
    given = {name: value for name in MAY_CHANGE if (value := getattr(args, name)) is not None}
    recipe, device = Recipe(args.seed, args.lanes), "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, args.precision) if args.precision else None
    if args.resume:
        trainer = resume(checkpoint, recipe, given, corpus, options, device, dtype)
    else:
        recipe = replace(recipe, **{"max_tokens": corpus.n_words, **given})
        trainer = Trainer.fresh(options, recipe, corpus, device, dtype or torch.bfloat16)
    say: Callable[[str], None] = (lambda _: None) if args.quiet else partial(print, flush=True)
    parameters = sum(value.numel() for value in trainer.network.parameters.values())
    say(
        f"{corpus.n_words:,} tokens, {len(corpus.starts) - 1:,} sentences, {len(corpus.vocabulary) - 3:,} types, "
        f"{corpus.n_classes - 3:,} of them distinguished; {parameters:,} "
        f"parameters without the softmax; from token {trainer.progress.tokens:,} on"
    )
    ended = run(trainer, output / TRAINING, say)
    weights, softmax = trainer.network.weights(), trainer.softmax_weights()
    weights.save_hdf5(output)
    weights.save_safetensors(output / "weights.safetensors")
    softmax.save(output / SOFTMAX)
    say(
        f"{trainer.progress.tokens:,} tokens in {trainer.progress.seconds / 3600:.2f} h; the model is in {output}"
    )
    _report(trainer.network, softmax, heldout, say)
    if ended:
        return Exit.COMPLETE
    print(
        "Stopped before the end; rerun the same command with --resume to continue.", file=sys.stderr
    )
    return Exit.INCOMPLETE


def _evaluate(args: argparse.Namespace) -> int:
    """Perplexity of a trained folder's model on held-out texts."""
    import torch

    from model.files.weights import BiLMWeights
    from model.training.network import Network
    from model.training.softmax import SoftmaxWeights

    folder = Path(args.evaluate)
    own = (
        folder / TRAINING / SOFTMAX
    )  # of a published model, for which it is not part of the weights
    softmax = SoftmaxWeights.load(own if own.exists() else folder / SOFTMAX)
    weights = BiLMWeights.load_safetensors(folder / "weights.safetensors")
    _report(
        Network(weights.options, weights.tensors, torch.float32), softmax, _heldout(args), print
    )
    return Exit.COMPLETE


def _heldout(args: argparse.Namespace) -> dict[str, list[tuple[str, ...]]]:
    return {path: list(_sentences([path], args, "--heldout")) for path in args.heldout}


def _sentences(inputs: list[str], args: argparse.Namespace, what: str) -> Iterator[tuple[str, ...]]:
    """The sentences of the inputs in order; records that can't be read are left out, and counted on the error output."""
    from pipeline.jobs.embed_input import Input
    from pipeline.jobs.input_sample import say_inferred
    from transforms.inputs.records import ReadSettings, Reject
    from transforms.readers import open_split
    from transforms.stages.split import plan_splits

    settings = ReadSettings(
        text_field=args.text_field or "text", tokenizer=args.tokenizer or "auto"
    )
    own = [Location("--output", args.output)] if args.output else []
    splits = plan_splits(
        inputs, args.input_format, settings, storage_options=args.storage_options, exclude=own
    )
    if args.input_format == "auto":
        say_inferred(Input(splits, settings, args.storage_options))
    refused = 0
    for split in splits:
        for record in open_split(split, settings, args.storage_options)[1]:
            if not isinstance(record, Reject):
                yield record.tokens
                continue
            refused += 1
            if refused == 1:
                print(f"{split.url}, record {record.position}: {record.reason}", file=sys.stderr)
    if refused:
        print(
            f"{quantity(refused, 'record')} of {what} can't be read and left out, the first as above",
            file=sys.stderr,
        )


def _report(
    network: "Network",
    softmax: "SoftmaxWeights",
    heldout: dict[str, list[tuple[str, ...]]],
    say: Callable[[str], None],
) -> None:
    """Say the perplexity of each text, with float32 products."""
    import torch

    from model.training.evaluate import evaluate

    for path, text in heldout.items():
        evaluation = evaluate(replace(network, dtype=torch.float32), softmax, text)
        forward, backward = evaluation.perplexity
        say(
            f"held-out {path}: perplexity {forward:,.1f} forward, {backward:,.1f} backward over {evaluation.predictions:,} "
            f"predictions ({100 * evaluation.unknown:.2f}% unknown words, as one type)"
        )


COMMANDS = {"train": Command(_add_arguments, _run, _touches, _check, epilog=EPILOG)}
