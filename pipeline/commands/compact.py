"""``elmo-store compact NAME``: nothing of the removed sentences of a collection stays."""

import argparse

from pipeline.cli import locations
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit

EPILOG = """\
Members that removed sentences are of are written anew without them, then versions that still hold them go, and the members that
no version names any more. Readers of such a version get an error: they open the collection again. Stores that were collected
stay where they are, removed sentences and all. The same command again continues.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|URL", help="folder or URL of the collection")
    parser.add_argument(
        "--keep-versions", type=int, default=1, metavar="N",
        help="keep the newest N versions for readers at work, though they still hold removed sentences (default: 1, the new one)",
    )  # fmt: skip
    add_storage_options(parser, "the collection")


def check(args: argparse.Namespace) -> None:
    if args.keep_versions < 1:
        raise CommandError(Exit.BAD_USAGE, f"--keep-versions {args.keep_versions} leaves no collection: give 1 or more")


def touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched([], [locations.store(args.name, args.storage_options, "NAME")])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Compact, and say which versions went. 0; errors as `elmo_store.collecting.compact`'s."""
    from elmo_store.collecting import compact
    from elmo_store.storage.root import Root
    from pipeline.progress.versions import described

    root = Root(args.name, args.storage_options)
    locations.reach(root, "collection")
    version, gone = compact(root, keep_versions=args.keep_versions)
    print(f"versions removed: {', '.join(map(str, gone)) or 'none'}")
    print(described(args.name, version))
    return Exit.COMPLETE
