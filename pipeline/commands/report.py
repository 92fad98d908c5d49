"""``elmo-store report STORE``: one HTML file about its job, text and vectors."""

import argparse
import os
from typing import TYPE_CHECKING

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from elmo_store.storage.root import Root

REPORT = "report.html"  # in the store's folder, where no other file is named
EPILOG = """\
The page is self-contained: no scripts, no network. Figures of text and vectors come from a sample of bounded size.
Needs the extra: pip install '.[plot]' in elmo-store's checkout.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    add_option(parser, "--output", "local file to write", unset=f"{REPORT} in the store's folder", metavar="FILE")
    add_storage_options(parser, "the store")


def _touches(args: argparse.Namespace) -> locations.Touched:
    """The store, and a page elsewhere; in the store the page has a name of its own."""
    own = os.path.join(os.path.realpath(args.store), REPORT)
    elsewhere = args.output is not None and os.path.realpath(args.output) != own
    store = locations.store(args.store, args.storage_options)
    return locations.Touched([store], [Location("--output", args.output)] if elsewhere else [])


def _run(args: argparse.Namespace) -> int:
    from elmo_store.figures.gather import gather
    from pipeline.report.page import page

    if args.output is not None:
        locations.check_written("--output", args.output, folder=False)  # here: that it is the store itself is told first
    store = locations.open_store(args.store, args.storage_options)
    try:
        text = page(gather(store)).encode("utf-8", "backslashreplace")
    except ImportError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    print(_written(text, store.root, args.output))
    return Exit.COMPLETE


def _written(text: bytes, root: "Root", output: str | None) -> str:
    """Write a report to a local file, or into the folder of its store at ``root``, whole; returns where it is.

    A pipe or a device is written to as it comes.
    """
    from elmo_store.storage.root import Root

    if output is not None and os.path.exists(output) and not os.path.isfile(output):
        with open(output, "wb") as file:
            file.write(text)
        return output
    folder, name = root, REPORT
    if output is not None:
        parent, name = os.path.split(os.path.realpath(output))  # a link is followed
        folder = Root(parent)
    folder.sweep(name=name)
    folder.put(name, text)
    return output or root.url(REPORT)


COMMANDS = {"report": Command(_add_arguments, _run, _touches, epilog=EPILOG)}
