"""``elmo-store explore``: a local page to look into a store."""

import argparse
import secrets
import socket

from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options, add_store_model, port
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import heed

EXPLORE = """\
The page is read-only and local: it is served on 127.0.0.1, answers only requests with the token in its address, and contacts no
other server. Neighbours are exact over a sample of the rows, and the page says so.
Needs the extra: pip install '.[explore]' in elmo-store's checkout.
"""


def _add_explore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a complete store; any fsspec URL")
    add_option(parser, "--port", "port to listen on", 0, "a free one", type=port)
    add_store_model(parser, "sentences of your own")
    add_storage_options(parser, "the store")


def _explore_touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched([locations.store(args.store, args.storage_options), *locations.model(args.model)])


def _explore(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from elmo_store.format.layout import n_layers
    from pipeline.explore.server import HOST, server
    from pipeline.explore.service import ExplorerService

    store = locations.open_store(args.store, args.storage_options)
    try:  # nearness is of layers, or of columns of a mix
        if store.manifest.kind == "states":
            n_layers(store.states)
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{store.url}: {error}") from error
    try:
        listener = socket.create_server((HOST, args.port))
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--port {args.port} can't be listened on: {error}") from error
    token = secrets.token_urlsafe(24)
    with listener:
        service = ExplorerService(store, model=args.model)
        serving = server(service, token, listener)
        print(f"exploring {store.url}: http://{HOST}:{listener.getsockname()[1]}/#{token}", flush=True)
        print("Ctrl-C ends it.", flush=True)
        try:
            serving.run(sockets=[listener])
        except KeyboardInterrupt as end:  # which is how it ends
            heed(end)
        finally:
            service.wait()
    return Exit.COMPLETE


COMMANDS = {"explore": Command(_add_explore_arguments, _explore, _explore_touches, epilog=EXPLORE)}
