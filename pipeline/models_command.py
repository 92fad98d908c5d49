"""``elmo-store models``: the models that can be asked for by name. May import model.files.registry."""

import argparse
import json
from dataclasses import asdict

from pipeline.exit_codes import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``models``."""
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes (default: a table)")


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Print one line a model."""
    from model.files.registry import available_models

    models = available_models()
    if args.json:
        print(json.dumps([asdict(model) for model in models], indent=2))
        return Exit.COMPLETE
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        size = f"{model.bytes / 1e6:,.1f} MB" if model.bytes else "generated"
        print(f"{model.name:<{width}}  {size:>10}  {model.description}")
        print(f"{'':<{width}}  {'':>10}  {model.where}")
    return Exit.COMPLETE
