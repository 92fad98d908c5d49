"""``elmo-store report STORE``: one HTML file about its job, text and vectors."""

import argparse
import os

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import Touched
from pipeline.report.write import REPORT, write_report

EPILOG = """\
The page is self-contained: no script, nothing is asked of the network. What it says of text and vectors is of a sample that does
not grow with the store. Needs the extra: pip install 'elmo-store[plot]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``report``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    parser.add_argument("--output", metavar="FILE", help=f"a local file (default: {REPORT} beside the store's manifest)")
    add_storage_options(parser, "the store")


def check(args: argparse.Namespace) -> None:
    """CommandError for a folder that is not there."""
    locations.check_store(args.store)


def touches(args: argparse.Namespace) -> Touched:
    """The store, and a page elsewhere; the page's own place in the store is one of the store's names."""
    own = os.path.join(os.path.realpath(args.store), REPORT)
    elsewhere = args.output is not None and os.path.realpath(args.output) != own
    return Touched(
        [Location("STORE", args.store, args.storage_options)], [Location("--output", args.output)] if elsewhere else []
    )


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Write the report and say where it is."""
    from elmo_store.errors import StoreError
    from elmo_store.store import open as open_store

    try:
        store = open_store(args.store, storage_options=args.storage_options)
        print(write_report(store.root, args.output))
    except (StoreError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{args.store}: {error}") from error
    except ImportError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    return Exit.COMPLETE
