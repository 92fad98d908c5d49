"""What a worker process knows of itself: whether it is fit for work, what it computes on, its free memory."""

import ctypes
import logging
import os
import socket
from collections.abc import Mapping

import pyarrow as pa

from elmo_store.errors import DiskFullError, LeaseLostError, StoreError
from elmo_store.storage.root import Root
from model.errors import DeviceLostError
from transforms.runtime.owner import run_name, run_of
from transforms.runtime.results import Outcome
from transforms.runtime.work import BROKEN_EXIT, DEVICE

FAILURES_IN_A_ROW = 3
# What a shard's own text or numbers bring about, on any worker; but for OSErrors among them.
OF_THE_DATA = (ValueError, TypeError, LookupError, ArithmeticError, StoreError)
_log = logging.getLogger(__name__)


class WorkerError(RuntimeError):
    """A worker that must not go on: its model or start state is not the one that the job was started with, or it is broken."""


class WorkerBrokenError(WorkerError):
    """Shard after shard failed here for reasons that are not the data's: the bundle fails, the runner is to try elsewhere."""


def this_worker() -> str:
    """Host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run_stats(root: Root, stats: Mapping[str, float | str]) -> dict[str, float | str]:
    """``stats`` of a shard, with the process that writes it (host:pid) and its run."""
    return {**stats, "worker": this_worker(), "run": run_name(root)}


class Health:
    """How many shards in a row failed in this process for reasons that are not the data's.

    A broken worker fails in milliseconds what others would do in minutes: if every failure were a result and the bundle a
    success, it would eat the queue.
    """

    def __init__(self) -> None:
        self._errors: list[str] = []  # in a row; changed in single steps, as threads share it

    def succeeded(self) -> None:
        self._errors = []

    def failed(self, shard: int, doing: str, error: Exception) -> Outcome:
        """Return what became of a shard.

        Raises ``error`` itself where no shard is to blame and no other shard would fare better: the lease or the device is
        lost, or the disk is full.
        """
        if isinstance(error, LeaseLostError | DeviceLostError | DiskFullError):
            raise error
        if isinstance(error, OSError) or not isinstance(error, OF_THE_DATA):
            self._errors.append(f"{doing}: {type(error).__name__}: {error}")
        return Outcome.failed(shard, doing, error)

    def check(self) -> None:
        """WorkerBrokenError if it is time to give up; the next bundle begins anew."""
        errors = self._errors
        if len(errors) >= FAILURES_IN_A_ROW:
            self._errors = []
            raise WorkerBrokenError(
                f"{len(errors)} consecutive shards failed on {this_worker()}, apparently not because of the data; "
                f"last error: {errors[-1]}"
            )


def end_where_replaced(root: Root, error: Exception) -> None:
    """End this process, which ``error`` made useless, where an engine starts another one in its place."""
    if (run := run_of(root)) is not None and run.is_of_an_engine:
        _log.critical("this worker ends, so that another one takes its place: %s", error)
        logging.shutdown()
        os._exit(BROKEN_EXIT)


def claim_device(root: Root, hardware: str) -> None:
    """Record that this job's shards come from ``hardware``: "cpu", or "cuda" and the card's name.

    States of a CPU and of a GPU, and of two kinds of GPUs, differ in their last bits. WorkerError if other workers' shards come
    from another one.
    """
    root.put_new(DEVICE, hardware.encode())
    claimed = root.get(DEVICE).decode(errors="replace")
    if claimed != hardware:
        raise WorkerError(
            f"this worker computes on {hardware}, and shards of {root} come from {claimed}: their last bits would differ. "
            f"Workers may have lost their GPU: give them all the same, or begin anew with --overwrite and --device "
            f"{hardware.split()[0]}"
        )


def release_memory() -> None:
    """Return what Arrow's pool and glibc's arenas keep of freed memory to the system: the next step lacks it beside a model.

    Takes about a millisecond; does nothing where it can't.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
