"""``elmo-store explore``: a local page to look into a store."""

import argparse
import json
import secrets
import socket
from typing import TYPE_CHECKING

from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options, add_store_model, port
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import heed, say

if TYPE_CHECKING:
    from pipeline.explore.service import ExplorerService

EXPLORE = """\
The page is read-only and local: it is served on 127.0.0.1, answers only requests with the token in its address, and contacts no
other server. Neighbours are exact over a sample of the rows, and the page says so.
Needs the extra: pip install '.[explore]' in elmo-store's checkout.

--suggest serves no page. It prints weights that separate a word's labels, for `elmo-store mix`:
those of a mix if it is measurably better than the best single layer on held-out occurrences,
otherwise those of that layer. Standard error and the weights' note say which.

  elmo-store explore out/senses --suggest line --by sense > weights.json
  elmo-store mix out/senses --weights weights.json --output out/mixed
"""


def _add_explore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    add_option(parser, "--port", "port to listen on", 0, "a free one", type=port)
    add_option(
        parser,
        "--suggest",
        "print weights that separate the word's labels, of a layer or a mix, and end",
        metavar="WORD",
    )
    add_option(
        parser, "--by", "with --suggest: the kept field that holds the labels", metavar="FIELD"
    )
    add_store_model(parser, "sentences of your own")
    add_storage_options(parser, "the store")


def _explore(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or print the weights that --suggest asks for."""
    from elmo_store.format.layout import n_layers
    from pipeline.explore.server import HOST, server
    from pipeline.explore.service import ExplorerService

    if (args.suggest is None) != (args.by is None):
        raise CommandError(
            Exit.BAD_USAGE, "--suggest and --by belong together: give both, or neither"
        )
    store = locations.open_store(args.store, args.storage_options)
    try:  # nearness is of layers, or of columns of a mix
        if store.manifest.kind == "states":
            n_layers(store.states)
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{store.url}: {error}") from error
    if args.suggest is not None:
        return _suggest(ExplorerService(store), args.suggest, args.by)
    try:
        listener = socket.create_server((HOST, args.port))
    except OSError as error:
        raise CommandError(
            Exit.BAD_LOCATION, f"--port {args.port} can't be listened on: {error}"
        ) from error
    token = secrets.token_urlsafe(24)
    with listener:
        service = ExplorerService(store, model=args.model)
        serving = server(service, token, listener)
        print(
            f"exploring {store.url}: http://{HOST}:{listener.getsockname()[1]}/#{token}", flush=True
        )
        print("Ctrl-C ends it.", flush=True)
        try:
            serving.run(sockets=[listener])
        except KeyboardInterrupt as end:  # which is how it ends
            heed(end)
        finally:
            service.wait()
    return Exit.COMPLETE


def _suggest(service: "ExplorerService", word: str, by: str) -> int:
    """Print the weights and what they rest on. CommandError (bad location) where none can be suggested."""
    service.wait()
    try:
        suggested = service.suggest(word, by)
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    say(suggested["said"])
    note = f"{word} by {by}: {suggested['said']}"
    print(json.dumps({"s": suggested["s"], "gamma": 1.0, "note": note}, ensure_ascii=False))
    return Exit.COMPLETE


COMMANDS = {
    "explore": Command(_add_explore_arguments, _explore, locations.read_store, epilog=EXPLORE)
}
