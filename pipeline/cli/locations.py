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
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from elmo_store.errors import MissingPackageError, StoreError
from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from elmo_store.storage.root import Root
    from elmo_store.store import Store

GOOGLE = "https://storage.googleapis.com"
CONNECT_SECONDS = 10.0
# Where these are set, what this process can connect to says nothing.
OTHER_WAYS = (
    "GOOGLE_CLOUD_UNIVERSE_DOMAIN",
    "GOOGLE_API_USE_MTLS_ENDPOINT",
    "GOOGLE_API_USE_CLIENT_CERTIFICATE",
)


@dataclass(frozen=True)
class Touched:
    """Locations by what is done with them."""

    reads: Sequence[Location] = ()
    writes: Sequence[Location] = ()


def location(
    what: str,
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    leaves_out: bool = False,
) -> Location:
    """A location as its user wrote it. CommandError for one that is empty or misspelled, or whose URL holds a password."""
    named = Location(what, url, storage_options, leaves_out)
    _check_spelling(named)
    _check_no_password(url)
    return named


def store(
    url: str, storage_options: Mapping[str, Any] | None = None, what: str = "STORE"
) -> Location:
    """A store that is read or written. StoreError for a protocol on which none can be; otherwise errors as `location`'s."""
    named = location(what, url, storage_options)
    if is_url(url):
        from elmo_store.storage.filesystems import check_store_location

        check_store_location(url)
    return named


def read_store(args: argparse.Namespace) -> Touched:
    """What a command reads that looks at one store, and at its model where it takes one. Errors as `store`'s and `model`'s."""
    return Touched(
        [store(args.store, args.storage_options, "store"), *model(getattr(args, "model", None))]
    )


def on_this_machine(path: str, what: str) -> Location:
    """A file or folder of this machine. CommandError for a URL; otherwise errors as `location`'s."""
    if is_url(path):
        raise CommandError(
            Exit.BAD_USAGE, f"{what} {path} is a URL: give a local path, and copy it from there"
        )
    return location(what, path)


def file(what: str, path: str, storage_options: Mapping[str, Any] | None = None) -> Location:
    """A file that is read: on this machine no folder and no pipe. Errors as `location`'s."""
    named = location(what, path, storage_options)
    if not is_url(path) and not os.path.isfile(path):
        why = (
            "it is not a file: name a file"
            if os.path.exists(path)
            else "there is no such file: check the name"
        )
        raise CommandError(Exit.BAD_LOCATION, f"{what} {path}: {why}")
    return named


def inputs(
    urls: Sequence[str], storage_options: Mapping[str, Any] | None, what: str = "input"
) -> list[Location]:
    """Inputs as the readers find them: a glob is the folder that it looks into, a folder may contain the output.

    CommandError (bad location) for what is not on this machine: a misspelled name is told at once.
    """
    stored = [_stored(url) for url in urls if url != "-"]  # standard input
    named = [location(what, _looked_into(url), storage_options, leaves_out=True) for url in stored]
    for url in stored:
        if not is_url(url) and not os.path.exists(url) and not any(glob.iglob(url, recursive=True)):
            raise CommandError(
                Exit.BAD_LOCATION, f"{url}: there is no such file or folder: check the name"
            )
    return named


def model(spec: str | None, what: str = "--model") -> list[Location]:
    """The model ``spec`` where it is a folder, file or URL that something could write to, and not a name."""
    is_path = spec and (
        os.path.lexists(spec) or (not spec.startswith("http") and (os.sep in spec or is_url(spec)))
    )
    if spec and is_path and not is_url(spec) and not os.path.exists(spec):
        raise CommandError(
            Exit.BAD_USAGE,
            f"{what}: there is no folder or file {spec}; `elmo-store models` lists names",
        )
    return [location(what, spec)] if spec and is_path else []


def is_url(location: str) -> bool:
    """True if ``location`` names a filesystem (``s3://…``, chained URLs too); it is then not looked for on this machine."""
    if "::" not in location:
        return "://" in location
    from elmo_store.storage.filesystems import (
        names_filesystem,
    )  # here: it takes its time, and few locations have such names

    return names_filesystem(location)


def check(touched: Touched) -> None:
    """CommandError for a location that does not answer or can't be opened.

    OverlapError if something written overlaps something read or written.
    """
    check_answers([*touched.writes, *touched.reads])
    if not touched.writes or len(touched.reads) + len(touched.writes) < 2:
        return
    from elmo_store.storage.overlap import check_apart, resolved_locations

    for location in (*touched.writes, *touched.reads):
        try:
            resolved_locations(location)
        except MissingPackageError:
            raise
        except Exception as error:  # filesystems raise what they like
            raise CommandError(
                Exit.BAD_LOCATION, f"the {location} can't be used: {type(error).__name__}: {error}"
            ) from error
    for i, written in enumerate(touched.writes):
        check_apart(written, [*touched.reads, *touched.writes[:i]])


def _check_no_password(url: str) -> None:
    """CommandError (bad usage) for a URL that holds a password: what a URL says is shown, logged and kept in the store."""
    for part in url.split("::"):
        if "://" in part and "@" in part and urlsplit(part).password:
            scheme, _, rest = part.partition("://")
            raise CommandError(
                Exit.BAD_USAGE,
                f"{scheme}://…@{rest.rpartition('@')[2]}: this URL holds a password, and URLs are shown and kept in the store: "
                'give it as a storage option, such as {"password": "env:NAME"}, where NAME is an environment variable',
            )


def _check_spelling(location: Location) -> None:
    """CommandError for an empty location, an unknown protocol, and ``s3:/bucket``, which would be a folder ``s3:`` here."""
    if not location.url.strip():
        raise CommandError(
            Exit.BAD_USAGE, f"{location.what} is empty: name a folder, a file or a URL"
        )
    match = re.match(r"([a-z][a-z0-9+]*):/(/?)", location.url)
    if match is None:
        return
    from elmo_store.storage.filesystems import is_protocol

    protocol, is_known = match[1], is_protocol(match[1])
    if match[2] and not is_known:
        why = f"can't be used: fsspec knows no protocol {protocol}: check its spelling"
        raise CommandError(Exit.BAD_LOCATION, f"the {location} {why}")
    if is_known and not match[2]:
        meant = f"{protocol}://{'/' if protocol in ('file', 'local') else ''}{location.url[match.end() :]}"
        text = f"the {location} has one slash where a URL has two: write {meant}, or ./{location.url} for a folder here"
        raise CommandError(Exit.BAD_LOCATION, text)


def check_answers(locations: Iterable[Location]) -> None:
    """CommandError (bad location) if Google's storage, whose client tries for minutes, does not answer. One try a server.

    MissingPackageError if that client is not installed.
    """
    from urllib.request import (
        getproxies,
    )  # here: it takes as long to import as the rest of a command's start

    if getproxies().keys() & {"http", "https", "all"} or any(
        name in os.environ for name in OTHER_WAYS
    ):
        return
    servers = {
        _google_server(location): location
        for location in locations
        if re.match(r"gc?s://", location.url)
    }
    if servers:
        from elmo_store.storage.filesystems import check_client

        for location in servers.values():
            check_client(location.url)
    for (host, port), location in servers.items():
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError as error:
            raise CommandError(
                Exit.BAD_LOCATION,
                f"the {location} can't be used: {host}:{port} does not answer ({error}): look at the network",
            ) from error


def _google_server(location: Location) -> tuple[str, int]:
    endpoint = (
        (location.storage_options or {}).get("endpoint_url")
        or os.environ.get("STORAGE_EMULATOR_HOST")
        or GOOGLE
    )
    parsed = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    return parsed.hostname or "", parsed.port or (443 if parsed.scheme == "https" else 80)


def _stored(url: str) -> str:
    """The archive of ``zip://NAME::ARCHIVE``, which has the bytes; any other location as it is."""
    if "::" not in url or os.path.lexists(url):
        return url
    from transforms.inputs.records import stored_url

    return stored_url(url)


def _looked_into(url: str) -> str:
    if "::" in url:  # a chain names one file; a file here with such a name is one too
        return os.path.abspath(url) if os.path.lexists(url) else url
    if not glob.has_magic(url) or os.path.lexists(url):
        return url
    names = url.split("/")
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    return "/".join(names[:first]) or ("/" if url.startswith("/") else ".")


def reached(url: str, storage_options: Mapping[str, Any] | None, what: str) -> "Root":
    """The root at ``url``. CommandError (bad location) unless its filesystem can be asked anything at all.

    Filesystems raise what they like when a protocol is unknown or credentials are missing, hence the broad net.
    """
    from elmo_store.format.layout import MANIFEST
    from elmo_store.storage.root import Root

    root = Root(url, storage_options)
    try:
        root.exists(MANIFEST)
    except MissingPackageError:
        raise
    except Exception as error:
        raise CommandError(
            Exit.BAD_LOCATION, f"the {what} {root} can't be used: {type(error).__name__}: {error}"
        ) from error
    return root


def open_store(url: str, storage_options: Mapping[str, Any] | None) -> "Store":
    """The complete store at ``url``. StoreError, which `main` tells, or CommandError (bad location) where none can be read."""
    from elmo_store.store import open

    try:
        return open(url, storage_options=storage_options)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{url} can't be read: {error}") from error
