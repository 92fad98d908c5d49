"""``elmo-store index STORE``: of its rows by their vectors, for the explorer, or of its sentences by their text."""

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.cli import locations
from pipeline.cli.arguments import add_quiet, add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import progress_bar, quantity
from pipeline.commands.explore import check_layers

if TYPE_CHECKING:
    from elmo_store.store import Store

EPILOG = """\
Both are kept in the folder indexes/ of the store, beside each other; neither is needed to read it.

--by vectors: rows, approximately, by any mix of the layers; a byte a number of every state, half of a float16 store.
`elmo-store explore` offers it. Needs the extra: pip install '.[explore]' in elmo-store's checkout.

--by text: sentences by their tokens, for programs that ask for the vectors of a text, store.sentence(text="I sat on the bank")
and store.find_text([...]) in Python. About 20 bytes a sentence.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store that can be written; any fsspec URL")
    parser.add_argument(
        "--by", choices=("vectors", "text"), default="vectors",
        help="what will be looked up: rows near a vector, or the sentence that has some tokens (default: vectors)",
    )  # fmt: skip
    add_storage_options(parser, "the store")
    add_quiet(parser)


def touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched([locations.store(args.store, args.storage_options)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    from elmo_store.errors import LeaseHeldError

    began = time.monotonic()
    store = locations.open_store(args.store, args.storage_options)
    total, unit = (len(store), " sentences") if args.by == "text" else (store.n_rows, " rows")
    if args.by == "vectors":
        check_layers(store)
    if not total:
        raise CommandError(Exit.BAD_LOCATION, f"{store.url} has no{unit} to index")
    try:
        with progress_bar(unit, quiet=args.quiet, total=total) as bar:
            build = _by_text if args.by == "text" else _by_vectors
            line, folder = build(store, lambda done: bar.update(done - bar.n) and None)
    except LeaseHeldError as error:
        raise CommandError(Exit.REFUSED, f"{args.store} belongs to {error.holder}: wait for its end") from error
    print(f"{line}, in {time.monotonic() - began:,.1f} s: {store.root.url(folder)}")
    return Exit.COMPLETE


def _by_vectors(store: "Store", on_progress: Callable[[int], None]) -> tuple[str, str]:
    """What was indexed, and the index's folder."""
    from pipeline.explore import neighbours

    facts = neighbours.build(store, lambda done, _: on_progress(done))
    return f"{quantity(facts['rows'], 'row')} in {quantity(facts['lists'], 'list')}", neighbours.FOLDER


def _by_text(store: "Store", on_progress: Callable[[int], None]) -> tuple[str, str]:
    from elmo_store.format.layout import TEXT_INDEX

    facts = store.index_texts(on_progress)
    return f"{quantity(facts['sentences'], 'sentence')}, {facts['texts']:,} of them different", TEXT_INDEX
