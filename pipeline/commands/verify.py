"""``elmo-store verify STORE``: is a store what it says? Reads every object and reports every fault."""

import argparse

from pipeline.cli import locations
from pipeline.cli.arguments import (
    add_option,
    add_quiet,
    add_storage_options,
    add_store_model,
    natural,
)
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import human_bytes, in_line, progress_bar, quantity

EPILOG = """\
Without an option every object is read and compared with the size and CRC-32C in its marker or in the manifest.
--recompute embeds a random sample of the sentences again with the store's model and compares the vectors.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    add_option(
        parser, "--quick", "read metadata only: compare sizes, and ETags or times, of all other objects with those of one "
        "listing, and read those with another ETag or time; bytes that changed without them, as on a failing disk, are not seen",
        False,
    )  # fmt: skip
    add_option(
        parser,
        "--recompute",
        "also embed N random sentences again and compare their vectors",
        0,
        type=natural,
    )
    add_store_model(parser, "--recompute")
    add_storage_options(parser, "the store")
    add_quiet(parser, "no progress; print faults only")


def _run(args: argparse.Namespace) -> int:
    """Verify, print the report; 0 for a sound store, 6 for a damaged one. CommandError for what is not a complete store."""
    from elmo_store.checking.verify import verify
    from elmo_store.errors import ManifestError, StoreError

    if args.quick and args.recompute:
        raise CommandError(
            Exit.BAD_USAGE, "--quick reads no vectors: leave out --recompute, or --quick"
        )
    try:
        store = locations.open_store(args.store, args.storage_options)
    except ManifestError as error:  # damage where everything begins
        print(f"damaged: {error}")
        return Exit.DAMAGED
    with progress_bar("B", quiet=args.quiet) as bar:
        report = verify(
            store._view, quick=args.quick, progress=lambda n_bytes: bar.update(n_bytes) and None
        )
    faults, recomputed = [fault.text for fault in report.faults], ""
    if args.recompute:
        from model.errors import ModelError
        from pipeline.jobs.recompute import recompute

        try:
            result = recompute(store, args.recompute, model=args.model)
        except (StoreError, ModelError):
            if not faults:  # otherwise it is one of them
                raise
        else:
            faults += result.faults
            recomputed = (
                f"\nrecomputed: {quantity(result.n_sentences, 'sentence')}, {result.n_equal} with the same bytes, "
                f"largest difference {result.largest:g}"
            )
    how = "read and compared with their checksums"
    if args.quick:
        n_alike = report.objects - report.read - report.by_size
        how = (
            f"listed; {n_alike:,} compared by size and ETag or time, {report.read:,} by their bytes"
        )
        how += f", {report.by_size:,} by size alone" if report.by_size else ""
    summary = (
        f"{'damaged' if faults else 'sound'}: {report.objects:,} objects of {human_bytes(report.bytes)} {how}; "
        f"{quantity(report.sentences, 'sentence')} in {quantity(report.shards, 'shard')}; {quantity(len(faults), 'fault')}"
    )
    if faults or not args.quiet:
        print("\n".join([*map(in_line, faults), summary]) + recomputed)
    return Exit.DAMAGED if faults else Exit.COMPLETE


COMMANDS = {"verify": Command(_add_arguments, _run, locations.read_store, epilog=EPILOG)}
