"""``elmo-store remove NAME --ids FILE``: a version of a collection without some sentences."""

import argparse

from pipeline.cli import locations
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import quantity

EPILOG = """\
Readers that open the collection from now on are without the sentences, and so is every command. Their bytes stay until
`elmo-store compact NAME`. Ids that no sentence has are counted, so the same command again does nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|URL", help="folder or URL of the collection")
    parser.add_argument("--ids", required=True, metavar="FILE", help="ids of sentences, one a line, in UTF-8 (required)")
    add_storage_options(parser, "the collection")


def touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched([locations.file("--ids", args.ids)], [locations.store(args.name, args.storage_options, "NAME")])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Remove, and say how many went. 0; errors as `elmo_store.collecting.remove`'s."""
    from elmo_store.collecting import remove
    from elmo_store.storage.root import Root
    from pipeline.progress.versions import described

    folder, _, file = args.ids.rpartition("/")
    try:
        text = Root(folder or ".").get(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"--ids {args.ids} can't be read: {error}") from error
    root = Root(args.name, args.storage_options)
    locations.reach(root, "collection")
    version, gone, missing = remove(root, [line for line in text.split("\n") if line])
    print(f"{quantity(gone, 'sentence')} removed" + (f"; {quantity(missing, 'id')} of no sentence" if missing else ""))
    if gone:
        print(f"elmo-store compact {args.name}   # removes their bytes")
    print(described(args.name, version))
    return Exit.COMPLETE
