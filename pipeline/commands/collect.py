"""``elmo-store collect NAME STORE…``: complete stores as members of a collection, which reads as one store."""

import argparse

from pipeline.cli import locations
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.exit_codes import Exit

EPILOG = """\
NAME is a folder of its own: elmo_store.open(NAME), and every command that reads a store, take it as one. The stores stay as they
are; on one local disk their objects are shared by hard links, elsewhere they are copied. What members must have in common:
model, start state, states, numbers, precision. The same command again continues; a store that is a member already is left out.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|URL", help="folder or URL of the collection, new or not")
    parser.add_argument("stores", nargs="+", metavar="STORE", help="complete stores, in order; any fsspec URL")
    add_storage_options(parser, "all that is read and written")


def touches(args: argparse.Namespace) -> locations.Touched:
    stores = [locations.store(url, args.storage_options) for url in args.stores]
    return locations.Touched(stores, [locations.output(args.name, args.storage_options)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Collect, and say which version has the stores. 0; errors as `elmo_store.collecting.collect`'s."""
    from elmo_store.collecting import collect
    from pipeline.progress.versions import described

    stores = [locations.open_store(url, args.storage_options) for url in args.stores]
    print(described(args.name, collect(args.name, stores, storage_options=args.storage_options)))
    return Exit.COMPLETE
