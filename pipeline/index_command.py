"""``elmo-store index STORE``: an approximate index of its rows, for the explorer. May import elmo_store, pipeline.explore.ann."""

import argparse
import sys
import time

from pipeline import locations
from pipeline.exit_codes import CommandError, Exit
from pipeline.options import json_object

LOADS = "FAISS"

EPILOG = """\
The index is kept in the folder index/ of the store and takes a byte a number of every state: half of a float16 store. One index
serves any mix of the layers. `elmo-store explore` offers it. Needs the extra: pip install 'elmo-store[explore]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``index``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("store", metavar="STORE", help="a complete store that can be written; any fsspec URL")
    parser.add_argument(
        "--storage-options", type=json_object, metavar="JSON", help="what fsspec needs for the store (default: {})"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the summary (default: off)")


def check(args: argparse.Namespace) -> None:
    """CommandError for a folder that is not there."""
    locations.check_store(args.store)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Build the index."""
    from tqdm import tqdm

    from elmo_store.errors import StoreError
    from elmo_store.store import open as open_store
    from pipeline.explore import ann

    began = time.monotonic()
    try:
        store = open_store(args.store, storage_options=args.storage_options)
        if not store.n_rows:
            raise CommandError(Exit.BAD_LOCATION, f"{store.url} has no rows to index")
        with tqdm(total=store.n_rows, unit=" rows", unit_scale=True, disable=args.quiet or not sys.stderr.isatty()) as bar:
            facts = ann.build(store, lambda done, _: bar.update(done - bar.n) and None)
    except (StoreError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{args.store}: {error}") from error
    seconds = time.monotonic() - began
    print(f"{facts['rows']:,} rows in {facts['lists']:,} lists, in {seconds:,.1f} s: {store.root.url(ann.FOLDER)}")
    return Exit.COMPLETE
