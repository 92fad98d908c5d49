"""What a worker process knows of itself: whether it is fit for work, what it computes on, its free memory, how far it is.

Nothing depends on how far it is but what the user sees: markers say what is done.
"""

import atexit
import ctypes
import gc
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa

from elmo_store.storage.root import Root
from transforms.inputs.records import TaskResult
from transforms.runtime.job_root import JobRoot, is_of_the_data
from transforms.runtime.results import ShardResult
from transforms.runtime.work import BROKEN_EXIT, DEVICE, PROGRESS

FAILURES_IN_A_ROW = 3
PROGRESS_SECONDS, REMOTE_PROGRESS_SECONDS = 2.0, 10.0  # between two puts of a process's progress; elsewhere than on a disk
CALLS_UNWRITTEN = 2  # calls whose tokens may be computed and not yet written
LOCK_SECONDS = 1e-4  # that a thread keeps the interpreter's lock while others want it; Python's own 5 ms are long for a GPU
CALLS_KEPT = 1000  # of the engine that are remembered one by one
SECONDS = ("seconds_reading", "seconds_computing", "seconds_idle", "seconds_writing")  # of a shard, in its marker
_log = logging.getLogger(__name__)


class WorkerError(RuntimeError):
    """A worker that must not go on: its model or start state is not the one that the job was started with, or it is broken."""


class WorkerBrokenError(WorkerError):
    """Shard after shard failed here for reasons that are not the data's: the bundle fails, the runner is to try elsewhere."""


def this_worker() -> str:
    """Host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_pace(results: Sequence[ShardResult]) -> None:
    """A line about shards that are done: engines collect what workers log."""
    if not results:
        return
    shards, n_failed = sorted(result.shard for result in results), sum(result.error is not None for result in results)
    sums = {name: sum(result.stats.get(name, 0.0) for result in results) for name in ("tokens", *SECONDS)}
    reading, computing, idle, writing = (sums[name] for name in SECONDS)
    _log.info(
        "%s: shards %d to %d%s, %s tokens%s; read %.1f s, computed %.1f s, wrote %.1f s, device idle %.1f s",
        this_worker(), shards[0], shards[-1], f" ({n_failed} failed)" if n_failed else "", f"{sums['tokens']:,.0f}",
        f", {sums['tokens'] / computing:,.0f} tokens/s" if computing else "", reading, computing, writing, idle,
    )  # fmt: skip


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
        with self._lock:
            self._n = 0

    def failed(self, doing: str, error: Exception) -> None:
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
            f"{n} shards in a row failed on {this_worker()} for reasons that are not theirs, the last one {self._last}"
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
    if root.size(DEVICE) is None:
        root.put_new(DEVICE, hardware.encode())
    claimed = root.get(DEVICE).decode(errors="replace")
    if claimed != hardware:
        raise WorkerError(
            f"this worker computes on {hardware}, and shards of {root} come from {claimed}: their last bits would differ. "
            f"Workers may have lost their GPU: give them all the same, or begin anew with --overwrite and --device "
            f"{hardware.split()[0]}"
        )


def share_lock() -> None:
    """Have the threads of this process take quick turns: beside eight writers the one that feeds a GPU waited up to 50 ms.

    And 270 ms for a collection of garbage that went over all that is imported: from now on none does.
    """
    sys.setswitchinterval(LOCK_SECONDS)
    _freeze_what_is_loaded()


@cache  # once a process: a later worker's would keep what jobs before it have left
def _freeze_what_is_loaded() -> None:
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # C++ libraries complain of what an interpreter that ends leaves behind


def release_memory() -> None:
    """Return what Arrow's pool and glibc's arenas keep of freed memory to the system: the next step lacks it beside a model.

    Takes about a millisecond; does nothing where it can't.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


class _Progress:
    """A small object in the store, put now and then: a look at any job is a listing and a few reads."""

    def __init__(self, root: Root, kind: str) -> None:
        self._root = root
        self._name = f"{PROGRESS}/{kind}-{uuid.uuid4().hex}.json"
        self._last = 0.0

    def _is_due(self) -> bool:
        return time.monotonic() - self._last >= (PROGRESS_SECONDS if self._root.is_local else REMOTE_PROGRESS_SECONDS)

    def _put(self, value: dict[str, object], *, at_once: bool) -> None:
        if at_once or self._is_due():
            self._last = time.monotonic()
            self._root.put_json(self._name, value | {"said": time.time()})


class ReadProgress(_Progress):
    """Bytes of the input that this process has read and tokenised, and the tokens in them."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, "read")
        self._bytes = self._tokens = self._tasks = 0
        self._sums: Counter[str] = Counter()

    def reading(self, n_bytes: int) -> None:
        self._put(self._value(n_bytes), at_once=False)

    def done(self, result: TaskResult, seconds: float = 0.0, n_retries: int = 0) -> None:
        """A task is done, in so many seconds of this run, or by an earlier one."""
        self._bytes += result.bytes_read
        self._tokens += result.n_tokens
        self._tasks += 1
        of_task: dict[str, Any] = {"records_rejected": result.n_rejected, "seconds_tokenising": seconds}
        self._sums.update(of_task | {"storage_retries": n_retries})
        self._put(self._value(0), at_once=False)

    def _value(self, n_bytes: int) -> dict[str, object]:
        return {"bytes": self._bytes + n_bytes, "tokens": self._tokens, "tasks": self._tasks, "sums": self._sums}


class ShardProgress(_Progress):
    """Ranges of the shards that this process wrote or saw written, and how far its calls of the engine are."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, "shards")
        self._lock = threading.Lock()  # several threads write shards
        self._ranges: list[list[int]] = []  # [first, stop], in the order in which they were done
        self._calls: dict[float, int] = {}  # begin (Unix seconds) → tokens
        self._unwritten: dict[float, int] = {}  # begin of a call → tokens that are computed, but not yet written
        self._ended = 0.0
        self._sums: Counter[str] = Counter()
        self._teller = ThreadPoolExecutor(1, thread_name_prefix="progress")  # a put must not hold up what computes

    def computing(self, began: float, call_tokens: int, share: float) -> None:
        """This share of a call of so many tokens is computed. Never waits: most of what it is told is forgotten."""
        if not self._is_due() or not self._lock.acquire(blocking=False):
            return
        try:
            self._ended = time.time()
            self._calls[began] = round(call_tokens * share)
            self._unwritten = dict([*self._unwritten.items(), (began, self._calls[began])][-CALLS_UNWRITTEN:])
            self._teller.submit(self._tell)
        finally:
            self._lock.release()

    def _tell(self) -> None:
        with self._lock:
            self._put(self._value(), at_once=False)

    def written_before(self, shards: Iterable[int]) -> None:
        with self._lock:
            for shard in shards:
                self._add(shard)
            self._put(self._value(), at_once=False)

    def done(self, shard: int, stats: Mapping[str, Any], n_retries: int = 0) -> None:
        """Shard ``shard`` is written; ``stats`` are those of its marker."""
        with self._lock:
            self._add(shard)
            self._sums.update({name: stats.get(name, 0) for name in SECONDS} | {"storage_retries": n_retries})
            self._ended = max(self._ended, float(stats.get("finished", time.time())))
            began = float(stats.get("call_began", self._ended))
            self._calls[began] = int(stats.get("call_tokens", stats.get("tokens", 0)))
            if began in self._unwritten:
                self._unwritten[began] = max(0, self._unwritten[began] - int(stats.get("tokens", 0)))
            self._put(self._value(), at_once=False)

    def failed(self, n_retries: int) -> None:
        """A shard is not written, for a reason that its result tells."""
        with self._lock:
            self._sums.update(shards_failed=1, storage_retries=n_retries)

    def flush(self) -> None:
        """Put what was not put yet; when a task ends."""
        with self._lock:
            self._put(self._value(), at_once=True)

    def _add(self, shard: int) -> None:
        if self._ranges and self._ranges[-1][1] == shard:
            self._ranges[-1][1] = shard + 1
        else:
            self._ranges.append([shard, shard + 1])

    def _value(self) -> dict[str, object]:
        began = min(self._calls, default=0.0)
        if len(self._calls) > CALLS_KEPT:  # the first call's begin and the sum are all that is needed
            self._calls = {began: sum(self._calls.values())}
        return {
            "ranges": self._ranges,
            "began": began,
            "ended": self._ended,
            "call_tokens": sum(self._calls.values()),
            "unwritten_tokens": sum(self._unwritten.values()),
            "sums": self._sums,
        }
