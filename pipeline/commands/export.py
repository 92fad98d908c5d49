"""``elmo-store export STORE --format NAME --output PATH``: a store's vectors in the files that other programs read."""

import argparse
import time
from typing import Any

from elmo_store.exports.formats import FORMATS, LAYERS
from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_quiet, add_storage_options
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import progress_bar, quantity
from pipeline.jobs.spec import add_embed_option

FORMAT_LINES = "\n".join(f"  {name:<17} {form.what}" for name, form in FORMATS.items())
EPILOG = f"""\
formats:
{FORMAT_LINES}

docs/export.md describes the content of each, its order, and which programs were tried. The output is a file; for safetensors,
datasets and webdataset a folder; for elmoformanylangs how its files' names begin. It gets its name when it is complete; rerun
an interrupted command to start again. HDF5 needs an extra: pip install '.[export]' in elmo-store's checkout.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="STORE", help="a complete store, of states or of mixes; any fsspec URL"
    )
    add_option(
        parser,
        "--format",
        "one of the formats below",
        required=True,
        choices=tuple(FORMATS),
        metavar="NAME",
    )
    add_option(parser, "--output", "file or folder to write", required=True, metavar="URL")
    add_option(
        parser,
        "--layers",
        "layers of each token; not for a store of mixes",
        unset="all; npz: average",
        choices=LAYERS,
    )
    add_option(
        parser, "--dtype", "safetensors, datasets, webdataset: numbers as written", unset="the store's",
        choices=("float16", "float32"),
    )  # fmt: skip
    add_option(parser, "--overwrite", "replace a finished export at the output", False)
    add_embed_option(parser, "take_over")
    add_storage_options(parser, "store and output")
    add_quiet(parser)


def touches(args: argparse.Namespace) -> locations.Touched:
    options = args.storage_options
    return locations.Touched(
        [locations.store(args.source, options)], [locations.store(args.output, options, "output")]
    )


def _run(args: argparse.Namespace) -> int:
    return write_export(args, args.format, layers=args.layers, dtype=args.dtype or "")


def write_export(args: argparse.Namespace, format: str, **settings: Any) -> int:
    """Export ``args.source`` to ``args.output`` with a bar, and say what was written. CommandError."""
    from elmo_store.errors import StoreError
    from elmo_store.exports import export

    began = time.monotonic()
    store = locations.open_store(args.source, args.storage_options)
    try:
        with progress_bar(" tokens", quiet=args.quiet, total=store.n_tokens) as bar:
            report = export(
                store,
                args.output,
                format,
                overwrite=args.overwrite,
                take_over=args.take_over,
                storage_options=args.storage_options,
                on_progress=lambda tokens: bar.update(tokens) and None,
                **settings,
            )
    except StoreError as error:
        if type(error) is StoreError:  # settings that the store or the format can't have
            raise CommandError(Exit.BAD_USAGE, str(error)) from error
        raise
    if not args.quiet:
        counts = f"{quantity(report.sentences, 'sentence')}, {quantity(report.tokens, 'token')}"
        seconds = time.monotonic() - began
        print(
            f"{counts} in {quantity(len(report.files), 'file')}, in {seconds:,.1f} s: {args.output}"
        )
        for why, count in sorted(report.left_out.items()):
            print(f"left out: {quantity(count, 'sentence')} ({why})")
    return Exit.COMPLETE


COMMANDS = {"export": Command(_add_arguments, _run, touches, epilog=EPILOG)}
