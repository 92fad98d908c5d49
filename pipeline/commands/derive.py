"""What `mix` and `convert` have in common: a job that makes a store from another one, shard by shard."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.cli import locations, telemetry
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.importing import nothing_to_collect
from pipeline.commands import report
from pipeline.jobs.spec import COMPRESSIONS, DTYPES, STORES, add_option

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest
    from elmo_store.storage.root import Root


def check(args: argparse.Namespace) -> None:
    """CommandError for a report or metrics that can't be had."""
    report.check_possible(args)
    telemetry.check(args.metrics_port, waits=not args.no_wait)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Form and numbers of the output, and how the job is run."""
    parser.add_argument("--store", choices=tuple(STORES), help="form of the output (default: as the source)")
    parser.add_argument(
        "--dtype", choices=DTYPES,
        help="numbers as stored; int8 has a scale for each vector of each row: half of float16 (default: as the source)",
    )  # fmt: skip
    parser.add_argument(
        "--compression", choices=COMPRESSIONS, help="of the vectors; Parquet takes zstd for either (default: as the source)"
    )
    add_option(parser, "overwrite")
    add_storage_options(parser, "all that is read and written")
    add_option(parser, "take_over")
    clusters = parser.add_argument_group("clusters and clouds")
    for name in ("no_wait", "shared_disk"):
        add_option(clusters, name)
    for name in ("report", "quiet", "verbose", "metrics_port"):
        add_option(parser, name)


def touches(args: argparse.Namespace) -> locations.Touched:
    options = args.storage_options
    return locations.Touched([locations.store(args.source, options)], [locations.output(args.output, options)])


def run(args: argparse.Namespace, beam_args: list[str], manifest_of: "Callable[[Root], Manifest]") -> int:
    """Run the job to its end, then its report. 0 complete, 4 if work is left; CommandError for what never began.

    ``manifest_of`` the source: the output's, incomplete.
    """
    with nothing_to_collect():
        from pipeline.jobs.derive_job import run_job

    return report.after_job(run_job(args, beam_args, manifest_of), args)
