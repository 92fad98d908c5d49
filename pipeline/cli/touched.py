"""What a command reads and what it writes, looked at before anything is opened: no output may overlap an input."""

import argparse
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.exit_codes import CommandError, Exit


@dataclass(frozen=True)
class Touched:
    """Locations by what is done with them."""

    reads: Sequence[Location] = ()
    writes: Sequence[Location] = ()


def of_every_command(args: argparse.Namespace, own: Touched) -> Touched:
    """``own`` and what the options of every command add."""
    config = [Location("--config", file) for file in args.config or ()]
    log = [Location("--log-file", args.log_file)] if args.log_file else []
    return Touched([*own.reads, *config], [*own.writes, *log])


def check(touched: Touched) -> None:
    """CommandError: bad usage if something written overlaps something read or written, bad location for what can't be opened."""
    if not touched.writes or len(touched.reads) + len(touched.writes) < 2:
        return
    from elmo_store.errors import OverlapError
    from elmo_store.storage.location import check_apart, places_of

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
    is_place = spec and (os.path.lexists(spec) or (locations.is_url(spec) and not spec.startswith("http")))
    return [Location(what, spec)] if spec and is_place else []
