"""``elmo-store index STORE``: of its rows by their vectors, for the explorer, or of its sentences by their text."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_quiet, add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import Touched
from pipeline.cli.terminal import drawable
from pipeline.commands.explore import check_layers

if TYPE_CHECKING:
    from elmo_store.store import Store

EPILOG = """\
Both are kept in the folder indexes/ of the store, beside each other; neither is needed to read it.
--by vectors: rows, approximately, by any mix of the layers; a byte a number of every state, half of a float16 store.
  `elmo-store explore` offers it. Needs the extra: pip install 'elmo-store[explore]'.
--by text: sentences by their tokens, for programs that ask for the vectors of a text: store.sentence(text="I sat on the bank")
  and store.find_text([...]) in Python. About 20 bytes a sentence.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``index``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("store", metavar="STORE", help="a complete store that can be written; any fsspec URL")
    parser.add_argument(
        "--by", choices=("vectors", "text"), default="vectors",
        help="what will be looked up: rows near a vector, or the sentence that has some tokens (default: vectors)",
    )  # fmt: skip
    add_storage_options(parser, "the store")
    add_quiet(parser)


def check(args: argparse.Namespace) -> None:
    """CommandError for a folder that is not there."""
    locations.check_store(args.store)


def touches(args: argparse.Namespace) -> Touched:
    """The store."""
    return Touched([Location("STORE", args.store, args.storage_options)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Build the index."""
    from tqdm import tqdm

    from elmo_store.errors import LeaseHeldError, LeaseLostError, StoreError
    from elmo_store.store import open as open_store

    began = time.monotonic()
    try:
        store = open_store(args.store, storage_options=args.storage_options)
        total, unit = (len(store), " sentences") if args.by == "text" else (store.n_rows, " rows")
        if args.by == "vectors":
            check_layers(store)
        if not total:
            raise CommandError(Exit.BAD_LOCATION, f"{store.url} has no{unit} to index")
        silent = args.quiet or not sys.stderr.isatty()
        with tqdm(total=total, unit=unit, unit_scale=True, disable=silent, file=drawable(sys.stderr)) as bar:
            build = _by_text if args.by == "text" else _by_vectors
            line, place = build(store, lambda done: bar.update(done - bar.n) and None)
    except LeaseHeldError as error:
        raise CommandError(Exit.REFUSED, f"{args.store} belongs to {error.holder}: wait for its end") from error
    except LeaseLostError as error:
        raise CommandError(Exit.REFUSED, str(error)) from error
    except (StoreError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{args.store}: {error}") from error
    print(f"{line}, in {time.monotonic() - began:,.1f} s: {store.root.url(place)}")
    return Exit.COMPLETE


def _by_vectors(store: "Store", tell: Callable[[int], None]) -> tuple[str, str]:
    """What was indexed, and where it lies."""
    from pipeline.explore import ann

    facts = ann.build(store, lambda done, _: tell(done))
    return f"{facts['rows']:,} rows in {facts['lists']:,} lists", ann.FOLDER


def _by_text(store: "Store", tell: Callable[[int], None]) -> tuple[str, str]:
    """What was indexed, and where it lies."""
    from elmo_store.format.layout import TEXT_INDEX

    facts = store.index_texts(tell)
    return f"{facts['sentences']:,} sentences, {facts['texts']:,} of them different", TEXT_INDEX
