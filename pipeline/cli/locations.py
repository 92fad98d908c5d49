"""Checks of paths on this machine that need only the standard library: a bad one is told before anything is loaded.

What stands at a URL is asked later, by the code that opens it.
"""

import glob
import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from pipeline.cli.exit_codes import CommandError, Exit


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
