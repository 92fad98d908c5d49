"""Locations before the work: spelled as what they are, there, answering, and no output within an input.

What needs only the standard library comes first: a bad path is told before anything is loaded. What stands at a URL is asked
later, by the code that opens it.
"""

import argparse
import glob
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit

GOOGLE = "https://storage.googleapis.com"
CONNECT_SECONDS = 10.0
# Where these are set, what this process can connect to says nothing.
OTHER_WAYS = ("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "GOOGLE_API_USE_MTLS_ENDPOINT", "GOOGLE_API_USE_CLIENT_CERTIFICATE")


@dataclass(frozen=True)
class Touched:
    """Locations by what is done with them."""

    reads: Sequence[Location] = ()
    writes: Sequence[Location] = ()


def is_url(place: str) -> bool:
    """True if ``place`` names a filesystem (``s3://…``, chained URLs too); it is then not looked for on this machine."""
    if "::" not in place:
        return "://" in place
    from elmo_store.storage.filesystems import names_filesystem  # here: it takes its time, and few places have such names

    return names_filesystem(place)


def check_no_password(place: str | None) -> None:
    """CommandError (bad usage) for a URL that holds a password: what a URL says is shown, logged and kept in the store."""
    for part in (place or "").split("::"):
        if "://" in part and "@" in part and urlsplit(part).password:
            scheme, _, rest = part.partition("://")
            raise CommandError(
                Exit.BAD_USAGE,
                f"{scheme}://…@{rest.rpartition('@')[2]}: this URL holds a password, and URLs are shown and kept in the store: "
                'give it as a storage option, such as {"password": "env:NAME"}, where NAME is an environment variable',
            )


def check_inputs(places: Iterable[str]) -> None:
    """CommandError (bad location) naming the first local file, folder or glob of ``places`` that is not there."""
    for place in places:
        check_no_password(place)
        if is_url(place) or place == "-" or os.path.exists(place):  # "-": standard input
            continue
        if not glob.has_magic(place):
            raise CommandError(Exit.BAD_LOCATION, f"{place}: there is no such file or folder: check the name")
        if not any(glob.iglob(place, recursive=True)):
            raise CommandError(Exit.BAD_LOCATION, f"{place}: no file or folder has such a name: check the pattern")


def check_file(place: str, what: str) -> None:
    """CommandError (bad location) if ``place`` is on this machine and not a file."""
    if not is_url(place) and not os.path.isfile(place):
        raise CommandError(Exit.BAD_LOCATION, f"{what} {place}: there is no such file: check the name")


def check_store(place: str) -> None:
    """CommandError (bad location) if ``place`` is on this machine and not a folder."""
    check_no_password(place)
    if not is_url(place) and not os.path.isdir(place):
        raise CommandError(Exit.BAD_LOCATION, f"there is no store at {place}: no such folder; check the name")


def check_output(place: str) -> None:
    """CommandError if ``place`` is on this machine and can't become a folder."""
    check_no_password(place)
    if not is_url(place) and os.path.exists(place) and not os.path.isdir(place):
        raise CommandError(Exit.BAD_LOCATION, f"the output {place} is a file: name a folder, new or of the same job")


def check_model(spec: str | None) -> None:
    """CommandError (bad usage) if ``spec`` is clearly a path (it holds a separator) and nothing stands there."""
    if spec and os.sep in spec and not is_url(spec) and not os.path.exists(spec):
        raise CommandError(Exit.BAD_USAGE, f"--model: there is no folder or file {spec}; `elmo-store models` lists names")


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


def of_every_command(args: argparse.Namespace, own: Touched) -> Touched:
    """``own`` and what the options of every command add."""
    config = [Location("--config", file) for file in args.config or ()]
    log = [Location("--log-file", args.log_file)] if args.log_file else []
    return Touched([*own.reads, *config], [*own.writes, *log])


def check_no_overlap(touched: Touched) -> None:
    """CommandError: bad usage if something written overlaps something read or written, bad location for what can't be opened."""
    if not touched.writes or len(touched.reads) + len(touched.writes) < 2:
        return
    from elmo_store.errors import OverlapError
    from elmo_store.storage.overlap import check_apart, places_of

    for location in (*touched.writes, *touched.reads):
        try:
            places_of(location)
        except Exception as error:  # filesystems raise what they like
            raise CommandError(Exit.BAD_LOCATION, f"the {location} can't be used: {type(error).__name__}: {error}") from error
    for i, written in enumerate(touched.writes):
        try:
            check_apart(written, [*touched.reads, *touched.writes[:i]])
        except OverlapError as error:
            raise CommandError(Exit.BAD_USAGE, str(error)) from error


def inputs(urls: Sequence[str], storage_options: Mapping[str, Any] | None, what: str = "input") -> list[Location]:
    """Inputs as the readers find them: a glob is the folder that it looks into, a folder may contain the output."""
    return [Location(what, _looked_into(url), storage_options, leaves_out=True) for url in urls if url != "-"]


def _looked_into(url: str) -> str:
    if "::" in url:  # a chain names one file; a file here with such a name is one too
        return os.path.abspath(url) if os.path.lexists(url) else url
    if not glob.has_magic(url) or os.path.lexists(url):
        return url
    names = url.split("/")
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    return "/".join(names[:first]) or ("/" if url.startswith("/") else ".")


def model(spec: str | None, what: str = "--model") -> list[Location]:
    """The model ``spec`` where it is a folder, file or URL that something could write to, and not a name."""
    is_place = spec and (os.path.lexists(spec) or (is_url(spec) and not spec.startswith("http")))
    return [Location(what, spec)] if spec and is_place else []
