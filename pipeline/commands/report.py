"""``elmo-store report STORE``: one HTML file about its job, text and vectors."""

import argparse
import importlib.util
import os

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.touched import Touched
from pipeline.jobs.options import json_object
from pipeline.report import REPORT

EPILOG = """\
The page is self-contained: no script, nothing is asked of the network. What it says of text and vectors is of a sample that does
not grow with the store. Needs the extra: pip install 'elmo-store[plot]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``report``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    parser.add_argument("--output", metavar="FILE", help=f"a local file (default: {REPORT} beside the store's manifest)")
    parser.add_argument(
        "--storage-options", type=json_object, metavar="JSON", help="what fsspec needs for the store (default: {})"
    )


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
    from pipeline.report.page import write_report

    try:
        store = open_store(args.store, storage_options=args.storage_options)
        print(write_report(store.root, args.output))
    except (StoreError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{args.store}: {error}") from error
    except ImportError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    return Exit.COMPLETE


def check_possible(args: argparse.Namespace) -> None:
    """CommandError (bad usage) if a job was asked for its report and can't draw it, or will not wait for its own end."""
    if args.report and args.no_wait:
        raise CommandError(Exit.BAD_USAGE, "--report is written at the job's end: leave out --no-wait, or give `report` later")
    if args.report and importlib.util.find_spec("matplotlib") is None:
        raise CommandError(Exit.BAD_USAGE, "--report needs Matplotlib: pip install 'elmo-store[plot]'")


def after(code: Exit, args: argparse.Namespace) -> Exit:
    """The exit code of a job, after its report, if that was asked for and the job is complete."""
    if args.report and code == Exit.COMPLETE:
        from elmo_store.storage.root import Root
        from pipeline.report.page import write_report

        print(f"report: {write_report(Root(args.output, args.storage_options))}")
    return code
