"""What a worker process knows of itself: whether it is fit for work, what it computes on, the memory that it can give back."""

import ctypes
import logging
import os
import socket
import threading

import pyarrow as pa

from elmo_store.storage.root import Root
from transforms.runtime.job_root import JobRoot, is_of_the_data
from transforms.runtime.work import DEVICE

FAILURES_IN_A_ROW = 3
BROKEN_EXIT = 70  # of a worker process that ends itself
_log = logging.getLogger(__name__)


class WorkerError(RuntimeError):
    """A worker that must not go on: its model or start state is not the one that the job was started with, or it is broken."""


class WorkerBrokenError(WorkerError):
    """Shard after shard failed here for reasons that are not the data's: the bundle fails, the runner is to try elsewhere."""


class Health:
    """How many shards in a row failed in this process for reasons that are not the data's.

    A broken worker fails in milliseconds what others would do in minutes: if every failure were a result and the bundle a
    success, it would eat the queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0
        self._last = ""

    def succeeded(self) -> None:
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


def end_where_replaced(root: Root, error: Exception) -> None:
    """End this process, which ``error`` made useless, where an engine starts another one in its place."""
    if isinstance(root, JobRoot) and root.is_of_an_engine:
        _log.critical("this worker ends, so that another one takes its place: %s", error)
        logging.shutdown()
        os._exit(BROKEN_EXIT)


def claim_device(root: Root, hardware: str) -> None:
    """Record that this job's shards come from ``hardware``: "cpu", or "cuda" and the card's name.

    States of a CPU and of a GPU, and of two kinds of GPUs, differ in their last bits. WorkerError if other workers' shards come
    from another one.
    """
    claimed = _claimed_device(root)
    if claimed is None:
        root.put_new(DEVICE, hardware.encode())
        claimed = _claimed_device(root)
    if claimed != hardware:
        raise WorkerError(
            f"this worker computes on {hardware}, and shards of {root} come from {claimed}: their last bits would differ. "
            f"Workers may have lost their GPU: give them all the same, or begin anew with --overwrite and --device "
            f"{hardware.split()[0]}"
        )


def _claimed_device(root: Root) -> str | None:
    try:
        return root.get(DEVICE).decode(errors="replace")
    except FileNotFoundError:
        return None


def release_memory() -> None:
    """Return what Arrow's pool and glibc's arenas keep of freed memory to the system: the next step lacks it beside a model.

    Takes about a millisecond; does nothing where it can't.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
