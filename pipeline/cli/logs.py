"""Where log records go: a few lines on the screen, everything that was asked for into a file.

Beam talks about itself at length: on the screen only where a level was asked for (``--log-level``, ``--verbose``); errors of a
job reach its user as one message at the end.
"""

import logging
import sys
from collections.abc import Sequence

from pipeline.cli.exit_codes import CommandError, Exit

LEVELS: Sequence[str] = ("debug", "info", "warning", "error")
BEAM = "apache_beam"


class _Ours(logging.Handler):
    """Marks a handler that `configure` added, so that a second call in one process replaces it."""


class _Screen(logging.StreamHandler, _Ours):
    pass


class _File(logging.FileHandler, _Ours):
    pass


def configure(level: str | None = None, file: str | None = None, *, verbose: bool = False) -> None:
    """Send records of ``level`` and above to stderr (default warning) and to ``file`` (default info).

    CommandError (bad location) if the file can't be written.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Ours):
            root.removeHandler(handler)
            handler.close()
    root.addFilter(_is_news)  # adding it again changes nothing
    root.addFilter(_named_by_origin)
    shown = level is not None or verbose
    screen = _Screen(sys.stderr)
    screen.setLevel((level or ("info" if verbose else "warning")).upper())
    screen.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if not shown:
        screen.addFilter(lambda record: not record.name.startswith(BEAM))
    handlers: list[logging.Handler] = [screen]
    if file is not None:
        try:
            written = _File(file, encoding="utf-8")
        except OSError as error:
            raise CommandError(Exit.BAD_LOCATION, f"--log-file {file} can't be written: {error.strerror or error}") from error
        written.setLevel((level or "info").upper())
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"))
        handlers.append(written)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(min(handler.level for handler in handlers))
    # Where nobody would see them, Beam's records are not even made.
    logging.getLogger(BEAM).setLevel(logging.NOTSET if shown or file else logging.CRITICAL)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what Beam says on the root logger about optional packages that nothing here needs."""
    return not record.getMessage().startswith(("apitools not found", "Resource module is not available"))


def _named_by_origin(record: logging.LogRecord) -> bool:
    """Give what Beam says on the root logger (an engine's messages, waiting for ports) the name that Beam's records have."""
    if record.name == "root" and f"/{BEAM}/" in record.pathname:
        record.name = BEAM
    return True
