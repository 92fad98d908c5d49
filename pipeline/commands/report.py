"""``elmo-store report STORE``: one HTML file about its job, text and vectors."""

import argparse
import os
from pathlib import Path

from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import Exit

REPORT = "report.html"  # in the store's folder, where no other file is named
EPILOG = """\
The page is self-contained: no scripts, no network. Figures of text and vectors come from a sample of bounded size.
Needs the extra: pip install '.[plot]' in elmo-store's checkout.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    add_option(
        parser,
        "--output",
        "local file to write",
        unset=f"{REPORT} in the store's folder",
        metavar="FILE",
    )
    add_storage_options(parser, "the store")


def _touches(args: argparse.Namespace) -> locations.Touched:
    """The store, and a page elsewhere; in the store the page has a name of its own."""
    own = os.path.join(os.path.realpath(args.store), REPORT)
    elsewhere = args.output is not None and os.path.realpath(args.output) != own
    store = locations.store(args.store, args.storage_options)
    return locations.Touched(
        [store], [locations.on_this_machine(args.output, "--output")] if elsewhere else []
    )


def _run(args: argparse.Namespace) -> int:
    from elmo_store.collecting import put_beside
    from elmo_store.figures.gather import gather
    from pipeline.report.page import page

    store = locations.open_store(args.store, args.storage_options)
    text = page(gather(store._view)).encode("utf-8", "backslashreplace")
    if args.output is None:
        put_beside(store._view, REPORT, text)
    else:
        Path(args.output).write_bytes(text)
    print(args.output or f"{store.url.rstrip('/')}/{REPORT}")
    return Exit.COMPLETE


COMMANDS = {"report": Command(_add_arguments, _run, _touches, epilog=EPILOG)}
