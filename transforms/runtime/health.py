"""Whether a worker is fit for work: shard after shard that fails for reasons that are not the data's means that it is not.

A broken worker fails in milliseconds what others would do in minutes: if every failure were a result and the bundle a success,
it would eat the queue.
"""

import os
import socket
import threading

from transforms.runtime.job_root import is_of_the_data

FAILURES_IN_A_ROW = 3


class WorkerError(RuntimeError):
    """A worker that must not go on: its model or start state is not the one that the job was started with, or it is broken."""


class WorkerBrokenError(WorkerError):
    """Shard after shard failed here for reasons that are not the data's: the bundle fails, the runner is to try elsewhere."""


class Health:
    """How many shards in a row failed in this process for reasons that are not the data's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0
        self._last = ""

    def well(self) -> None:
        """A shard is written."""
        with self._lock:
            self._n = 0

    def failed(self, doing: str, error: Exception) -> None:
        """A shard is not."""
        if not is_of_the_data(error):
            with self._lock:
                self._n += 1
                self._last = f"{doing}: {type(error).__name__}: {error}"

    def check(self) -> None:
        """WorkerBrokenError if it is time to give up; the next bundle begins anew."""
        with self._lock:
            if self._n < FAILURES_IN_A_ROW:
                return
            n, self._n = self._n, 0
        raise WorkerBrokenError(
            f"{n} shards in a row failed on {socket.gethostname()} (process {os.getpid()}) for reasons that are not theirs, "
            f"the last one {self._last}"
        )
