"""The store as a job's workers see it: fenced by the job's lease, and patient with storage that fails in passing.

Before each write the lease must be this run's (`elmo_store.storage.lease`), so that a worker of a run that ended, or that
another one pushed aside, can do no harm however late it wakes. Every operation is tried again with growing, random pauses until
a deadline; how often is counted for the job's summary.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from elmo_store.errors import LeaseLostError, StoreError
from elmo_store.storage import lease
from elmo_store.storage.lease import WORKER_HEARTBEAT
from elmo_store.storage.process import Process
from elmo_store.storage.ranges import Range
from elmo_store.storage.root import Root

FENCE_SECONDS = 1.0  # the lease was looked at so shortly before each write
HEARTBEAT_SECONDS = 20.0  # between two heartbeats
DEADLINE_SECONDS = 60.0  # how long an operation is tried again, elsewhere than on a local disk
LONGEST_PAUSE_SECONDS = 15.0
LOCAL_ATTEMPTS = 4
WATCH_SECONDS = 1.0  # between two looks at the launcher
T = TypeVar("T")

# What no repetition mends.
_FINAL = (
    EOFError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError,
    StoreError, ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError, MemoryError,
)  # fmt: skip
_FINAL_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG})


def may_pass(error: BaseException) -> bool:
    """Whether ``error`` of a filesystem may be gone the next time. Filesystems have errors of their own, hence by exclusion."""
    return isinstance(error, Exception) and not isinstance(error, _FINAL) and getattr(error, "errno", None) not in _FINAL_NUMBERS


def is_of_the_data(error: BaseException) -> bool:
    """Whether ``error`` is what a shard's own text or numbers bring about, on any worker, and not the worker's own trouble."""
    of_data = ValueError | TypeError | LookupError | ArithmeticError | StoreError
    return isinstance(error, of_data) and not isinstance(error, OSError)


class _Retries:
    """How often this process tried something again since it was last asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0

    def one_more(self, _: RetryCallState) -> None:
        with self._lock:
            self._n += 1

    def taken(self) -> int:
        """The number, which begins anew."""
        with self._lock:
            n, self._n = self._n, 0
            return n


RETRIES = _Retries()


def again(work: Callable[[], T], *, local: bool, passing: Callable[[BaseException], bool] = may_pass) -> T:
    """What ``work`` returns, tried again while it fails in a way that may pass; then its last error.

    ``local``: on a disk of this machine, where waiting helps little: a few attempts within a second or so.
    ``passing``: which errors are worth it.
    """
    attempts = Retrying(
        stop=stop_after_attempt(LOCAL_ATTEMPTS) if local else stop_after_delay(DEADLINE_SECONDS),
        wait=wait_random_exponential(0.05, 1.0) if local else wait_random_exponential(0.5, LONGEST_PAUSE_SECONDS),
        retry=retry_if_exception(passing),
        before_sleep=RETRIES.one_more,
        reraise=True,
    )
    return attempts(work)


class JobRoot(Root):
    """A `Root` for the stages of one run. Pickles small: the lease is looked up where it is used."""

    def __init__(self, root: Root, run: str, launcher: Process | None = None) -> None:
        """``launcher``: the process whose end ends the workers, where they are processes of its machine."""
        super().__init__(str(root), root.storage_options)
        self.run = run
        self._launcher = launcher
        self._looked = self._signed = -1e9  # monotonic seconds of this process

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"run": self.run, "_launcher": self._launcher, "_looked": -1e9, "_signed": -1e9}
        return super().__getstate__() | fresh

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._launcher is not None:
            end_with(self._launcher)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobRoot) and self.run == other.run and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.run, str(self)))

    @property
    def is_of_an_engine(self) -> bool:
        """Whether an engine runs the workers, which starts another one for one that ends."""
        return self._launcher is None

    def fence(self) -> None:
        """LeaseLostError unless this run still owns the store; looked at anew if the last look is older than a second."""
        now = time.monotonic()
        if now - self._looked < FENCE_SECONDS:
            return
        self._again(partial(lease.check, self, self.run))
        self._looked = time.monotonic()
        if now - self._signed >= HEARTBEAT_SECONDS:
            self._signed = now
            self._put_heartbeat()

    def _put_heartbeat(self) -> None:
        said = lease.read_heartbeats(self, self.run).last
        if said is None or time.time() - said >= HEARTBEAT_SECONDS:  # one of many workers is enough
            super()._put(WORKER_HEARTBEAT, lease.encoded_heartbeat(self.run))

    def _again(self, work: Callable[[], T]) -> T:
        return again(work, local=self.is_local)

    def _check_owner(self) -> None:
        self.fence()

    def _put(self, rel: str, data: bytes | bytearray) -> str:
        self.fence()
        try:
            return self._again(partial(super()._put, rel, data))
        except FileNotFoundError:  # what was written is swept: whoever took the output over does that
            self._looked = -1e9
            self.fence()
            raise

    def put_new(self, rel: str, data: bytes | bytearray) -> bool:
        """As `Root`, fenced and tried again."""
        self.fence()
        return self._again(partial(super().put_new, rel, data))

    def stamp(self, rel: str) -> str | None:
        """As `Root`, tried again."""
        return self._again(partial(super().stamp, rel))

    def get(self, rel: str) -> bytes:
        """As `Root`, tried again."""
        return self._again(partial(super().get, rel))

    def get_many(self, rels: Sequence[str]) -> list[bytes]:
        """As `Root`, tried again."""
        return self._again(partial(super().get_many, rels))

    def get_tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        """As `Root`, tried again."""
        return self._again(partial(super().get_tails, tails))

    def read_ranges(self, ranges: Sequence[Range]) -> None:
        """As `Root`, tried again."""
        self._again(partial(super().read_ranges, ranges))

    def sha256(self, rel: str) -> str:
        """As `Root`, tried again."""
        return self._again(partial(super().sha256, rel))

    def size(self, rel: str) -> int | None:
        """As `Root`, tried again."""
        return self._again(partial(super().size, rel))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """As `Root`, tried again."""
        return self._again(partial(super().sizes, prefix))

    def remove(self, rel: str) -> None:
        """As `Root`, fenced and tried again."""
        self.fence()
        self._again(partial(super().remove, rel))

    def remove_many(self, rels: Sequence[str]) -> None:
        """As `Root`, fenced and tried again."""
        self.fence()
        self._again(partial(super().remove_many, rels))

    def remove_tree(self, prefix: str = "") -> None:
        """As `Root`, fenced and tried again."""
        self.fence()
        self._again(partial(super().remove_tree, prefix))

    def release(self) -> None:
        """Give the lease back: the run's last write."""
        self._looked = -1e9
        self._again(partial(lease.release, Root(str(self), self.storage_options), self.run))


def run_of(root: Root) -> str:
    """The run that writes to ``root``; "" for a root that belongs to none."""
    return root.run if isinstance(root, JobRoot) else ""


def writable(root: Root) -> bool:
    """Whether the run of ``root`` still owns it."""
    try:
        if isinstance(root, JobRoot):
            root.fence()
    except LeaseLostError:
        return False
    return True


_WATCHING: set[Process] = set()


def end_with(launcher: Process) -> None:
    """End this process when ``launcher`` does, if it is another process of the same machine: nobody else would."""
    if launcher.pid == os.getpid() or launcher in _WATCHING or not launcher.is_of_this_machine():
        return
    _WATCHING.add(launcher)

    def watch() -> None:
        while launcher.alive():
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="launcher", daemon=True).start()
