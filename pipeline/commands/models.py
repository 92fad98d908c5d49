"""``elmo-store models``: the models that can be asked for by name; ``models convert``: weights of other programs as ours."""

import argparse
import json
from pathlib import Path

from pipeline.cli import locations
from pipeline.cli.arguments import add_option
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    convert = parser.add_argument_group(
        "convert", "write a model, whatever its form, as weights.safetensors and options.json"
    )
    convert.add_argument(
        "action",
        nargs="?",
        choices=("convert",),
        metavar="convert",
        help="without it: list the models",
    )
    convert.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="what --model takes, or a folder of ELMoForManyLangs or of bilm-tf's training",
    )
    convert.add_argument(
        "output", nargs="?", metavar="FOLDER", help="folder for the two files, new or not"
    )
    add_option(
        convert,
        "--dtype",
        "precision of the weights as written",
        "float32",
        choices=("float32", "float16"),
    )
    add_option(convert, "--overwrite", "replace the two files where they exist", False, "refuse")


def _check(args: argparse.Namespace) -> None:
    if args.action == "convert" and args.output is None:
        raise CommandError(
            Exit.BAD_USAGE, "give MODEL and FOLDER: elmo-store models convert MODEL FOLDER"
        )


def _touches(args: argparse.Namespace) -> locations.Touched:
    """Of ``models convert`` the model, and the folder that is written."""
    if args.action != "convert":
        return locations.Touched()
    return locations.Touched(
        locations.model(args.model, "MODEL"), [locations.on_this_machine(args.output, "FOLDER")]
    )


def _run(args: argparse.Namespace) -> int:
    if args.action == "convert":
        return _convert(args)
    from model.files.registry import available_models

    models = available_models()
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        size = f"{model.bytes / 1e6:,.1f} MB" if model.bytes else "generated"
        print(f"{model.name:<{width}}  {size:>10}  {model.description}")
        print(f"{'':<{width}}  {'':>10}  {model.where}")
    return Exit.COMPLETE


def _convert(args: argparse.Namespace) -> int:
    from model.errors import ModelError
    from model.files.registry import load_any

    folder = Path(args.output)
    weights_path, options_path = folder / "weights.safetensors", folder / "options.json"
    existing = [path for path in (weights_path, options_path) if path.exists()]
    if existing and not args.overwrite:
        raise CommandError(
            Exit.REFUSED, f"{existing[0]} is there already: give another FOLDER, or --overwrite"
        )
    try:
        name, weights = load_any(args.model)
        weights.save_safetensors(weights_path, args.dtype)
    except ModelError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{error}") from error
    options_path.write_text(
        json.dumps(weights.options.to_dict(), indent=2) + "\n", encoding="utf-8"
    )
    print(
        f"{name}: {weights.n_parameters:,} numbers as {weights_path} ({weights_path.stat().st_size:,} bytes)"
    )
    print(
        f"fingerprint {weights.fingerprint}"
        + ("" if args.dtype == "float32" else " before rounding to float16")
    )
    print(f"next: elmo-store embed TEXT --model {folder} --output OUT")
    return Exit.COMPLETE


COMMANDS = {"models": Command(_add_arguments, _run, _touches, _check)}
