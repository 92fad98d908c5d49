"""Locations before the work: is the URL spelled as one, and does its server answer? So that no client tries for a minute."""

import os
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit
from urllib.request import getproxies

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit

GOOGLE = "https://storage.googleapis.com"
CONNECT_SECONDS = 10.0
# Where these are set, what this process can connect to says nothing.
OTHER_WAYS = ("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "GOOGLE_API_USE_MTLS_ENDPOINT", "GOOGLE_API_USE_CLIENT_CERTIFICATE")


def check_spelling(places: Iterable[Location]) -> None:
    """CommandError (bad location) for ``s3:/bucket``, which would be a folder ``s3:`` of this machine."""
    for place in places:
        match = re.match(r"([a-z][a-z0-9+]*):/(?!/)", place.url)
        if match is None:
            continue
        from fsspec import available_protocols

        if match[1] in available_protocols():
            rest = place.url[match.end() :]
            meant = f"{match[1]}://{'/' if match[1] in ('file', 'local') else ''}{rest}"
            raise CommandError(
                Exit.BAD_LOCATION,
                f"the {place} has one slash where a URL has two: write {meant}, or ./{place.url} for a folder here",
            )


def check_answers(places: Iterable[Location]) -> None:
    """CommandError (bad location) if Google's storage, whose client tries six times, can't be connected to. One try a server."""
    if getproxies().keys() & {"http", "https", "all"} or any(name in os.environ for name in OTHER_WAYS):
        return
    servers = {_google_server(place): place for place in places if re.match(r"gc?s://", place.url)}
    for (host, port), place in servers.items():
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError as error:
            raise CommandError(
                Exit.BAD_LOCATION, f"the {place} can't be used: {host}:{port} does not answer ({error}): look at the network"
            ) from error


def _google_server(place: Location) -> tuple[str, int]:
    given = (place.storage_options or {}).get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST") or GOOGLE
    parsed = urlsplit(given if "://" in given else f"http://{given}")
    return parsed.hostname or "", parsed.port or (443 if parsed.scheme == "https" else 80)
