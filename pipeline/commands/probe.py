"""``elmo-store probe``: what a model's layers know, by a downstream task over precomputed stores."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import locations
from pipeline.cli.arguments import (
    above_zero,
    add_option,
    add_quiet,
    add_storage_options,
    at_least,
    count,
    not_negative,
    share,
    threads,
)
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from pipeline.probing.results import Result
    from pipeline.probing.tagging import TaggingTask


EPILOG = """\
The stores are made by `elmo-store embed` from the labelled sentences themselves: of CoNLL-U directly, of other files as
lines of tokens. Labels and store must have the same sentences in the same order; that is checked token count by token count.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    tag = tasks.add_parser(
        "tag", help="token labels: part of speech, chunks, names", allow_abbrev=False,
        description="Train a tagger on one store's layers, alone and mixed, and score it on another store.",
    )  # fmt: skip
    for part, sentences in (("train", "training"), ("test", "test")):
        add_option(tag, f"--{part}", f"store of the {sentences} sentences", required=True, metavar="STORE")
        add_option(
            tag, f"--{part}-labels", f"labels of the {sentences} sentences (required without --label)", unset=None, metavar="FILE"
        )
    add_option(
        tag, "--label", "instead of files: a field of tokens that the stores keep (embed --keep-fields), such as upos",
        metavar="FIELD",
    )  # fmt: skip
    add_option(
        tag, "--labels-format", "tsv = one token per line, its word first, and a blank line after each sentence",
        unset="by file name", choices=("conllu", "tsv"),
    )  # fmt: skip
    add_option(
        tag, "--column", "column of the label: its number, from 1, or in CoNLL-U its name", unset="upos in CoNLL-U, 2 in tsv",
        metavar="NAME|N",
    )  # fmt: skip
    add_option(
        tag, "--metric", "span-f1 scores the spans of IOB2 labels",
        unset="span-f1 if all labels are O, B-… or I-…, else accuracy", choices=("accuracy", "span-f1"),
    )  # fmt: skip
    add_option(
        tag, "--given-column", "also score a baseline that sees this column alone, such as the part of speech for chunks",
        metavar="NAME|N",
    )  # fmt: skip
    add_tagging(tag)
    add_option(tag, "--plot", "write the learned s and γ as a bar plot, .svg, .png or .pdf", metavar="FILE")
    add_option(
        tag, "--mix-weights", "write the learned mixes as JSON that `elmo-store mix --weights` reads, one set per seed",
        metavar="FILE",
    )  # fmt: skip
    sense = tasks.add_parser(
        "sense", help="word sense by nearest neighbour", allow_abbrev=False,
        description="Tell a word's senses apart by its nearest neighbour among known occurrences, layer by layer.",
    )  # fmt: skip
    add_option(sense, "--store", "store of the sentences", required=True, metavar="STORE")
    add_option(
        sense, "--labels", "TSV: id, sense, index of the target token from 0, tokens between spaces", required=True,
        metavar="FILE",
    )  # fmt: skip
    add_option(sense, "--folds", "folds of the cross-validation", 10, type=at_least(2))
    for task, name in ((tag, "tag"), (sense, "sense")):
        add_option(task, "--name", "name of the task in tables", name, metavar="TEXT")
        add_option(task, "--seeds", "repetitions, with seeds 0 … N-1", 5, type=count)
        add_option(task, "--threads", "CPU threads; more gain little, as steps are small", 1, type=threads)
        add_option(task, "--json", "write means, deviations and single runs as JSON to this file", metavar="FILE")
        add_storage_options(task, "the stores")
        add_quiet(task, "no line for each training, only the table")


def add_tagging(parser: argparse.ArgumentParser) -> None:
    """What is measured of a tagging task, and how its taggers learn."""
    add_option(
        parser, "--features", "some of x, layer 1, …, top (the last layer), average, mix; also projection (of all layers, "
        "learned), [x; mix], h (a BiLSTM over x) and [h; mix]", unset="x, all layers, average, mix", metavar="NAME,…",
    )  # fmt: skip
    add_option(parser, "--control", "also the control task, a random label for each word type; one training per feature", False)
    add_option(parser, "--logistic", "also fit a logistic regression to convergence on each mix; needs scikit-learn", False)
    learning = parser.add_argument_group("learning, the same for every feature")
    add_option(learning, "--tagger", "classifier on the vectors", "linear", choices=("linear", "bilstm"))
    add_option(learning, "--hidden", "BiLSTM units per direction", 64, type=count)
    add_option(learning, "--epochs", "passes over the training set", 10, type=count)
    add_option(learning, "--batch", "sentences per step", 32, type=count)
    add_option(learning, "--learning-rate", "highest learning rate of Adam", 0.003, type=above_zero, metavar="R")
    add_option(learning, "--mix-learning-rate", "learning rate of γ and w", 0.03, type=above_zero, metavar="R")
    add_option(learning, "--dropout", "dropout on the vectors", 0.1, type=share, metavar="P")
    add_option(
        learning, "--layer-norm", "normalise each layer before mixing: per token, or over a whole batch as AllenNLP's "
        "do_layer_norm", "none", choices=("none", "token", "batch"),
    )  # fmt: skip
    add_option(learning, "--l2", "penalty λ‖w‖² on the learned mix", 0.001, type=not_negative, metavar="λ")
    add_option(learning, "--device", "auto = a GPU if there is one", "auto", choices=("auto", "cpu", "cuda"))


def _touches(args: argparse.Namespace) -> locations.Touched:
    """Stores and labels, and the files of the result."""

    def named(*options: str) -> list[tuple[str, str]]:
        values = ((f"--{option}", getattr(args, option.replace("-", "_"), None)) for option in options)
        return [(option, value) for option, value in values if value is not None]

    stores = [locations.store(url, args.storage_options, option) for option, url in named("train", "test", "store")]
    labels = [locations.file(option, url) for option, url in named("train-labels", "test-labels", "labels")]
    results = [locations.result(option, path) for option, path in named("json", "mix-weights", "plot")]
    return locations.Touched([*stores, *labels], results)


def _run(args: argparse.Namespace) -> int:
    """Run one probe and print its table. CommandError for stores or labels that can't be used."""
    import torch

    from pipeline.cli.label_files import LabelError
    from pipeline.probing.senses import run_senses
    from pipeline.probing.tagger import FeatureError
    from pipeline.probing.tagging import TaggingTask

    if args.task == "tag":
        _check_labels(args)
    torch.set_num_threads(args.threads)
    try:
        if args.task == "tag":
            task = TaggingTask(
                args.name, args.train, args.train_labels, args.test, args.test_labels, column=args.label or args.column,
                file_format=args.labels_format, metric=args.metric, given=args.given_column,
            )  # fmt: skip
            result = run_task(task, args)
        else:
            options = args.storage_options
            result = run_senses(args.name, args.store, args.labels, seeds=args.seeds, folds=args.folds, storage_options=options)
    except ImportError as error:
        raise CommandError(Exit.BAD_USAGE, f"--logistic needs scikit-learn ({error}): pip install scikit-learn") from error
    except FeatureError as error:
        raise CommandError(Exit.BAD_USAGE, f"--features: {error}") from error
    except (LabelError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    report(args, result)
    return Exit.COMPLETE


def _check_labels(args: argparse.Namespace) -> None:
    """CommandError unless the labels come from the stores or from files."""
    of_files = {"--train-labels": args.train_labels, "--test-labels": args.test_labels}
    others = of_files | {"--labels-format": args.labels_format, "--column": args.column}
    if args.label is None and (missing := [option for option, value in of_files.items() if value is None]):
        raise CommandError(
            Exit.BAD_USAGE, f"{missing[0]} is missing: name the file, or with --label a field that the stores keep"
        )
    if args.label is not None and (given := [option for option, value in others.items() if value is not None]):
        raise CommandError(Exit.BAD_USAGE, f"--label takes the labels from the stores: leave {given[0]} out")


def run_task(task: "TaggingTask", args: argparse.Namespace) -> "Result":
    """`run_tagging` with the options of `add_tagging`, ``seeds`` and ``quiet``; a line for each training on standard error."""
    import torch

    from pipeline.probing.tagger import TaggerSettings, TaggingRun
    from pipeline.probing.tagging import run_tagging

    names = [field.name for field in dataclasses.fields(TaggerSettings)]
    settings = TaggerSettings(**{name: getattr(args, name) for name in names})
    if args.device == "auto":
        settings = dataclasses.replace(settings, device="cuda" if torch.cuda.is_available() else "cpu")

    def on_progress(metric: str, run: TaggingRun) -> None:
        learned = f"  s {' '.join(f'{share:.3f}' for share in run.s)}" if run.s else ""
        learned += "" if run.gamma is None else f"  γ {run.gamma:.3f}"
        line = f"{task.name}: {run.feature:<14} seed {run.seed}  {metric} {100 * run.score:.2f}  {run.seconds:.0f} s{learned}"
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    return run_tagging(
        dataclasses.replace(task, features=args.features, control=args.control, logistic=args.logistic),
        seeds=args.seeds, settings=settings, storage_options=args.storage_options, on_progress=on_progress,
    )  # fmt: skip


def report(args: argparse.Namespace, result: "Result") -> None:
    """Print the table and bars, and write the files that were asked for."""
    from pipeline.probing import results

    print(results.text([result]))
    try:
        if args.json:
            _write(args.json, results.as_json([result]))
        if args.task == "tag" and args.mix_weights:
            _write(args.mix_weights, results.weight_sets(result))
        if args.task == "tag" and args.plot:
            results.plot([result], args.plot)
    except ImportError as error:
        remedy = "pip install '.[plot]' in elmo-store's checkout"
        raise CommandError(Exit.BAD_USAGE, f"--plot needs Matplotlib ({error}): {remedy}") from error
    except ValueError as error:
        raise CommandError(Exit.BAD_USAGE, f"--plot {args.plot}: {error}") from error
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"the result can't be written: {error}") from error


def _write(path: str, value: object) -> None:
    Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


COMMANDS = {"probe": Command(_add_arguments, _run, _touches, epilog=EPILOG, loads="PyTorch")}
