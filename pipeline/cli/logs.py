"""What is logged on the terminal.

Beam talks about itself at length, and clients of storages about what they raise: that is shown only where a level was asked for
(``--log-level``); errors of a job reach its user as one message at the end.
"""

import logging
import sys
from collections.abc import Sequence

LEVELS: Sequence[str] = ("debug", "info", "warning", "error")
BEAM = "apache_beam"
# Clients of storages, which log an error, with its trace, each time before they raise it.
CLIENTS = ("asyncio", "aiobotocore", "botocore", "gcsfs", "google", "azure", "paramiko", "urllib3")
OURS = "elmo-store"  # name of the handler that `configure` adds, so that a second call in one process replaces it


def configure(level: str | None = None) -> None:
    """Send records of ``level`` and above to stderr (default warning, of Beam and of clients none)."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if handler.name == OURS:
            root.removeHandler(handler)
            handler.close()
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel((level or "warning").upper())
    terminal.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if level is None:
        terminal.addFilter(_is_ours)
    terminal.set_name(OURS)
    root.addHandler(terminal)
    root.setLevel(terminal.level)
    # Where nobody would see them, Beam's records are not even made.
    logging.getLogger(BEAM).setLevel(logging.CRITICAL if level is None else logging.NOTSET)


def _is_ours(record: logging.LogRecord) -> bool:
    """False for what Beam and clients say; Beam also says things on the root logger (optional packages, waiting for ports)."""
    return not record.name.startswith((BEAM, *CLIENTS)) and f"/{BEAM}/" not in record.pathname
