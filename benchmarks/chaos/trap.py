"""Kill or stop a process at a change of a file below a folder. Standard library only.

Changes are what Python's audit events tell: files opened for writing, renamed, removed, folders made and removed. What a C
library writes by itself (HDF5, FAISS) is met by a delay: the kill comes so long after a change.
"""

import itertools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"})


@dataclass(frozen=True)
class Trap:
    """What happens to a process, and when.

    Attributes:
        below: the folder whose changes count.
        log: a file that gets a line for each change, before it is made.
        at: the signal comes before this change (1, 2, …), or ``delay_seconds`` after; 0: so long after the start, if at all.
        stops: SIGSTOP instead of SIGKILL; without a delay.
    """

    below: Path
    log: Path
    at: int = 0
    delay_seconds: float = 0.0
    stops: bool = False

    def set(self) -> None:
        """Set it in this process."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        numbers = itertools.count(1)
        below = f"{self.below}/"

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if (event in _CHANGES or (event == "open" and args[2] & _WRITES)) and _is_below(args[0], below):
                number = next(numbers)
                os.write(descriptor, f"{event} {args[0]!r}\n".encode("utf-8", "backslashreplace"))
                if number == self.at:
                    self._spring()

        sys.addaudithook(hook)
        if self.at == 0 and self.delay_seconds:
            self._spring()

    def _spring(self) -> None:
        if self.delay_seconds:
            signal.setitimer(signal.ITIMER_REAL, self.delay_seconds)  # nobody handles SIGALRM: the kernel ends the process
        else:
            os.kill(os.getpid(), signal.SIGSTOP if self.stops else signal.SIGKILL)

    def changes(self) -> list[str]:
        """What was about to be changed, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []


def _is_below(path: Any, folder: str) -> bool:
    if isinstance(path, int):
        return False
    text = os.fsdecode(path)
    return text.startswith(folder) or not text.startswith("/")  # a name in an open folder, as `shutil.rmtree` removes it
