"""``elmo-store collect``, ``remove`` and ``compact``: stores that read as one, and sentences taken out of them."""

import argparse
import sys

from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options, count
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import quantity

COLLECT = """\
NAME is a folder of its own: elmo_store.open(NAME), and every command that reads a store, take it as one. The stores are not
changed; on one local disk their objects are shared by hard links, elsewhere they are copied. Members must agree in model, start
state, states, dtype and precision. Rerun an interrupted command to resume; a store that is already a member is skipped.
"""
REMOVE = """\
Readers and commands that open the collection from now on do not see the sentences. `elmo-store compact NAME` frees their
space. Ids that no sentence has are counted on standard error; if no sentence
has any of them, as when the command is repeated, the exit code is 3.
"""
COMPACT = """\
Members that hold removed sentences are rewritten without them. Then versions that still hold such sentences are
removed, and members that no version names. What an embed job may still need is kept, and named on standard error. Readers of a
removed version get an error and must open the collection again. The stores that were collected are not changed. Rerun an
interrupted command to resume.
"""


def _add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME|URL", help="folder or URL of the collection, new or not"
    )
    parser.add_argument(
        "stores", nargs="+", metavar="STORE", help="complete stores, in order; any fsspec URL"
    )
    add_storage_options(parser, "all that is read and written")


def _collect_touches(args: argparse.Namespace) -> locations.Touched:
    stores = [locations.store(url, args.storage_options) for url in args.stores]
    return locations.Touched(stores, [locations.store(args.name, args.storage_options, "output")])


def _collect(args: argparse.Namespace) -> int:
    """Collect, and say which version has the stores. 0; errors as `elmo_store.collecting.collect`'s."""
    from elmo_store.collecting import collect
    from pipeline.progress.summary import described

    stores = [locations.open_store(url, args.storage_options) for url in args.stores]
    print(described(args.name, collect(args.name, stores, storage_options=args.storage_options)))
    return Exit.COMPLETE


def _add_collection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|URL", help="folder or URL of the collection")
    add_storage_options(parser, "the collection")


def _add_remove_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser, "--ids", "ids of sentences, one per line, in UTF-8", required=True, metavar="FILE"
    )
    _add_collection(parser)


def _touches(args: argparse.Namespace) -> locations.Touched:
    ids = [locations.file("--ids", args.ids)] if "ids" in args else []
    return locations.Touched(ids, [locations.store(args.name, args.storage_options, "NAME")])


def _remove(args: argparse.Namespace) -> int:
    """Remove, and say how many went. 0, or 3 where no sentence has any of the ids; errors as `elmo_store.collecting.remove`'s."""
    import lzma
    import zlib

    import fsspec

    from elmo_store.collecting import remove
    from elmo_store.storage.failures import translated_errors
    from pipeline.progress.summary import described

    try:  # of any URL, and compressed
        with (
            translated_errors(args.ids),
            fsspec.open(
                args.ids, "rt", encoding="utf-8-sig", compression="infer", newline="\n"
            ) as file,
        ):
            ids = [line for line in (line.rstrip("\r\n") for line in file) if line]
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"--ids {args.ids} can't be read: {error}") from error
    version, gone, missing = remove(
        locations.reached(args.name, args.storage_options, "collection"), ids
    )
    if missing and not gone:
        raise CommandError(
            Exit.BAD_LOCATION,
            f"--ids {args.ids}: no sentence has any of these {quantity(missing, 'id')}; nothing was removed",
        )
    if missing:
        print(
            f"warning: {quantity(missing, 'id')} of no sentence in {args.name}: check --ids {args.ids}",
            file=sys.stderr,
        )
    print(f"{quantity(gone, 'sentence')} removed")
    if gone:
        print(f"elmo-store compact {args.name}   # removes their bytes")
    print(described(args.name, version))
    return Exit.COMPLETE


def _add_compact_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser, "--keep-versions", "keep the newest N versions for readers at work, though they may still hold removed sentences",
        1, type=count,
    )  # fmt: skip
    _add_collection(parser)


def _compact(args: argparse.Namespace) -> int:
    """Compact, and say which versions went. 0; errors as `elmo_store.collecting.compact`'s."""
    from elmo_store.collecting import compact
    from pipeline.progress.summary import described

    root = locations.reached(args.name, args.storage_options, "collection")
    compacted = compact(root, keep_versions=args.keep_versions)
    print(f"versions removed: {', '.join(map(str, compacted.removed)) or 'none'}")
    for line in compacted.undecided:
        print(f"warning: this may hold removed sentences: {line}", file=sys.stderr)
    print(described(args.name, compacted.version))
    return Exit.COMPLETE


COMMANDS = {
    "collect": Command(_add_collect_arguments, _collect, _collect_touches, epilog=COLLECT),
    "remove": Command(_add_remove_arguments, _remove, _touches, epilog=REMOVE),
    "compact": Command(_add_compact_arguments, _compact, _touches, epilog=COMPACT),
}
