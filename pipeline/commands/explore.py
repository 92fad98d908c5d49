"""``elmo-store explore STORE``: a local page to look into a store."""

import argparse
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.cli import locations
from pipeline.cli.arguments import add_number, add_storage_options, at_least, bounded
from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from elmo_store.store import Store
    from pipeline.explore.labels import Labels

EPILOG = """\
The page is read-only and for this machine: it is served on 127.0.0.1, answers only to whoever has the address with its token, and
asks nothing of any other. Neighbours are exact over a sample of the rows, which the page names as one; `elmo-store index` makes
an approximate index of all rows, which the page then offers. Needs the extra: pip install '.[explore]' in elmo-store's checkout.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=bounded(int, "1 to 65535, or 0 for a free one", lambda port: 0 <= port < 65536), default=0, metavar="N",
        help="port to listen on (default: 0, a free one)",
    )  # fmt: skip
    add_number(
        parser, "--sample-rows", at_least(512), 200_000, "rows (tokens) held in memory for exact neighbours, 4 bytes a number"
    )
    parser.add_argument(
        "--model", metavar="MODEL",
        help="the store's model, for sentences of your own (default: the packaged one, or one in this folder, of its name)",
    )  # fmt: skip
    parser.add_argument(
        "--labels", metavar="FILE",
        help="labels to group a word's occurrences by, between tabs: the first line names the columns, id (or sentence, its "
        "number), token (its number from 0, where tokens are labelled), then the labels",
    )  # fmt: skip
    add_storage_options(parser, "the store, and labels at a URL")


def touches(args: argparse.Namespace) -> locations.Touched:
    labels = [locations.file("--labels", args.labels, args.storage_options)] if args.labels else []
    return locations.Touched([locations.store(args.store, args.storage_options), *locations.model(args.model), *labels])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Serve until Ctrl-C."""
    from pipeline.explore.server import bound, server
    from pipeline.explore.service import Service

    store = locations.open_store(args.store, args.storage_options)
    check_layers(store)
    labels = _labels(args, store)
    try:
        listener = bound(args.host, args.port)
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--host {args.host} --port {args.port} can't be listened on: {error}") from error
    token = secrets.token_urlsafe(24)
    host = f"[{args.host}]" if ":" in args.host else args.host
    with listener:
        service = Service(store, args.sample_rows, args.model, labels)
        serving = server(service, token, listener, args.host)
        print(f"exploring {store.url}: http://{host}:{listener.getsockname()[1]}/#{token}", flush=True)
        print("Ctrl-C ends it.", flush=True)
        try:
            with suppress(KeyboardInterrupt):  # which is how it ends
                serving.run(sockets=[listener])
        finally:
            service.close()
    return Exit.COMPLETE


def _labels(args: argparse.Namespace, store: "Store") -> "Labels | None":
    """The labels that are to be shown. CommandError (bad location) if they can't be used."""
    from pipeline.explore.labels import LabelError, read_labels

    if args.labels is None:
        return None
    try:
        return read_labels(args.labels, store, args.storage_options if locations.is_url(args.labels) else None)
    except (LabelError, OSError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"--labels: {error}") from error


def check_layers(store: "Store") -> None:
    """CommandError (bad location) for a store that keeps some states only: nearness is of layers, or of columns of a mix."""
    from elmo_store.format.layout import n_layers

    try:
        if store.manifest.kind == "states":
            n_layers(store.states)
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{store.url}: {error}") from error
