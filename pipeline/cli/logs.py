"""Where log records go: a few lines on the terminal, everything that was asked for into a file.

Beam talks about itself at length, and clients of storages about what they raise: on the terminal only where a level was asked
for (``--log-level``, ``--verbose``); errors of a job reach its user as one message at the end.
"""

import logging
import sys
from collections.abc import Sequence

from pipeline.cli.exit_codes import CommandError, Exit

LEVELS: Sequence[str] = ("debug", "info", "warning", "error")
BEAM = "apache_beam"
# Clients of storages, which log an error, with its trace, each time before they raise it.
CLIENTS = ("asyncio", "aiobotocore", "botocore", "gcsfs", "google", "azure", "paramiko", "urllib3")
OURS = "elmo-store"  # name of the handlers that `configure` adds, so that a second call in one process replaces them


def configure(level: str | None = None, file: str | None = None, *, verbose: bool = False) -> None:
    """Send records of ``level`` and above to stderr (default warning) and to ``file`` (default info).

    CommandError (bad location) if the file can't be written.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if handler.name == OURS:
            root.removeHandler(handler)
            handler.close()
    root.addFilter(_is_news)  # adding it again changes nothing
    root.addFilter(_named_by_origin)
    shown = level is not None or verbose
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel((level or ("info" if verbose else "warning")).upper())
    terminal.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if not shown:
        terminal.addFilter(lambda record: not record.name.startswith((BEAM, *CLIENTS)))
    handlers: list[logging.Handler] = [terminal]
    if file is not None:
        try:
            written = logging.FileHandler(file, encoding="utf-8")
        except OSError as error:
            raise CommandError(Exit.BAD_LOCATION, f"--log-file {file} can't be written: {error.strerror or error}") from error
        written.setLevel((level or "info").upper())
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"))
        handlers.append(written)
    for handler in handlers:
        handler.set_name(OURS)
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
