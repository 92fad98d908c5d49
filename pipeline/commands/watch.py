"""``elmo-store watch URL``: a running job's progress from another terminal, from the store's markers alone."""

import argparse
import sys
from contextlib import nullcontext

from elmo_store.storage.location import Location
from pipeline.cli import locations, telemetry
from pipeline.cli.arguments import above_zero, add_number, add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs import spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the store that the job writes; any fsspec URL")
    parser.add_argument("--once", action="store_true", help="print one line and end (default: until it is complete)")
    add_number(parser, "--seconds", above_zero, 1.0, "seconds between two looks", metavar="S")
    add_storage_options(parser, "the URL")
    spec.add_option(parser, "metrics_port")


def check(args: argparse.Namespace) -> None:
    """CommandError for metrics that can't be had."""
    if args.once and args.metrics_port is not None:
        raise CommandError(Exit.BAD_USAGE, "--metrics-port is of a command that stays: leave out --once")
    telemetry.check(args.metrics_port, waits=not args.once)


def touches(args: argparse.Namespace) -> locations.Touched:
    """The store, which may still come unless one look is all."""
    if args.once:
        return locations.Touched([locations.store(args.url, args.storage_options, "store")])
    return locations.Touched([Location("store", args.url, args.storage_options)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Show progress; 0 when the store is complete, 4 with ``--once`` while it is not. Waits for a job that has not begun."""
    from elmo_store.format.layout import MANIFEST
    from elmo_store.storage.root import Root
    from pipeline.progress.bars import Screen, follow
    from pipeline.progress.exporting import exported
    from pipeline.progress.snapshot import ProgressReader

    root = Root(args.url, args.storage_options)
    locations.reach(root, "store")
    if not root.exists(MANIFEST):
        if args.once:
            raise CommandError(Exit.BAD_LOCATION, f"there is no store at {args.url}: no {MANIFEST} in it (yet)")
        print(f"no job has begun at {args.url} yet; waiting for one (Ctrl-C ends this)", file=sys.stderr, flush=True)
    if args.once:
        snapshot = ProgressReader(root).look()
        print(snapshot.line())
    else:
        with exported(args.metrics_port) as meter, meter.following(root) if meter else nullcontext():
            snapshot = follow(root, seconds=args.seconds, screen=Screen(sys.stderr))
        print(snapshot.line())
    return Exit.COMPLETE if snapshot.stage == "complete" else Exit.INCOMPLETE
