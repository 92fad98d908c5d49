"""Files on this machine's own disk on their way to a remote output.

A folder of a process that was killed is removed by the next one that begins to stage.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from elmo_store.storage.process import Process

PREFIX = "elmo-store-export"
_NAME = re.compile(rf"{PREFIX}-([0-9a-f]{{16}})-(\d+)-(\d*)-\w+")


@contextmanager
def staged() -> Iterator[str]:
    """A path to write one file to; it is removed when the block ends."""
    own = Process.here()
    _sweep(own.machine)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-{_digest(own.machine)}-{own.pid}-{own.started}-") as folder:
        yield os.path.join(folder, "file")


def _sweep(machine: str) -> None:
    """Remove what dead processes of this machine and this user staged."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or match[1] != _digest(machine) or Process(machine, int(match[2]), match[3]).alive():
                continue
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid() and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)


def _digest(machine: str) -> str:
    return hashlib.sha256(machine.encode()).hexdigest()[:16]
