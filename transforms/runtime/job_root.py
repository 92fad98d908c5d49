"""The store as a job's workers see it: fenced by the job's lease, and patient with storage that fails in passing.

Before each write the lease must be this run's (`elmo_store.storage.lease`), so that a worker of a run that ended, or that
another one pushed aside, can do no harm however late it wakes. A process looks at the lease once in `lease.look_seconds`, and
anew before what no later stage would find out: removals, the manifest and the plan. Every operation is retried with growing,
random pauses until a deadline; how often is counted for the job's summary. A heartbeat that fails is put later: it stops nothing.
"""

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from elmo_store.errors import LeaseLostError, StoreError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage import lease
from elmo_store.storage.data import Data
from elmo_store.storage.lease import look_seconds, worker_heartbeat
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from transforms.runtime.ended import introduce
from transforms.runtime.work import PLAN

HEARTBEAT_SECONDS = 20.0  # between two heartbeats of a group of workers
DEADLINE_SECONDS = 60.0  # how long an operation is retried, elsewhere than on a local disk
LONGEST_PAUSE_SECONDS = 15.0
LOCAL_ATTEMPTS = 4
WATCH_SECONDS = 1.0  # between two looks at the launcher
LOOKS_AT_END = 2  # that find the lease gone, before a worker ends: till then its tasks say what they were refused
_NEVER = -1e9
_log = logging.getLogger(__name__)
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

# What no repetition mends.
_FINAL = (
    EOFError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError,
    StoreError, ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError, MemoryError,
)  # fmt: skip
_FINAL_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG})


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` of a filesystem may be gone the next time. Filesystems have errors of their own, hence by exclusion."""
    return isinstance(error, Exception) and not isinstance(error, _FINAL) and getattr(error, "errno", None) not in _FINAL_NUMBERS


def is_of_the_data(error: BaseException) -> bool:
    """Whether ``error`` is what a shard's own text or numbers bring about, on any worker, and not the worker's own trouble."""
    of_data = ValueError | TypeError | LookupError | ArithmeticError | StoreError
    return isinstance(error, of_data) and not isinstance(error, OSError)


class RetryCount:
    """Retries since they were last taken (`take` begins anew); thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0

    def add(self, _: RetryCallState) -> None:
        with self._lock:
            self._n += 1

    def take(self) -> int:
        with self._lock:
            n, self._n = self._n, 0
            return n


def _now() -> float:
    """Seconds that pass while this machine sleeps, too: another one may take the output over meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class RunHere:
    """What this process knows of a run, for all copies of its root. Times are of `_now`.

    ``retries`` of a stage without a result are left to the next stage's. Workers that first write together beat apart.
    """

    def __init__(self, process: Process) -> None:
        self.retries = RetryCount()
        self.heartbeat = worker_heartbeat(process)
        self.looked = _NEVER  # at the lease, which was the run's
        self.beats_at: float | None = None  # from the first write on
        self.failed_beats = 0


@lru_cache(maxsize=8)
def _run_here(location: str, run: str) -> RunHere:
    return RunHere(Process.here())


def retry(
    work: Callable[[], T],
    *,
    local: bool,
    count: RetryCount | None = None,
    transient: Callable[[BaseException], bool] = is_transient,
) -> T:
    """What ``work`` returns, retried while its error is ``transient``; then its last error.

    ``local``: on a disk of this machine, where waiting helps little: a few attempts within a second or so.
    """
    attempts = Retrying(
        stop=stop_after_attempt(LOCAL_ATTEMPTS) if local else stop_after_delay(DEADLINE_SECONDS),
        wait=wait_random_exponential(0.05, 1.0) if local else wait_random_exponential(0.5, LONGEST_PAUSE_SECONDS),
        retry=retry_if_exception(transient),
        before_sleep=None if count is None else count.add,
        reraise=True,
    )
    return attempts(work)


def _retried(method: Method, *, fenced: bool = False) -> Method:
    """The method of `Root`, retried by a `JobRoot`; with ``fenced``, only while its run owns the store."""

    @wraps(method)
    def call(self: "JobRoot", *args: Any, **options: Any) -> Any:
        def attempt() -> Any:
            if fenced:
                self.fence(anew=True)
            return getattr(Root, method.__name__)(self, *args, **options)

        return self._retry(attempt)

    return cast(Method, call)


class JobRoot(Root):
    """A `Root` for the stages of one run. Pickles small: the lease is looked up where it is used."""

    def __init__(self, root: Root, run: str, launcher: Process | None = None) -> None:
        """``launcher``: the process whose end ends the workers, where they are processes of its machine."""
        super().__init__(str(root), root.storage_options)
        self.run = run
        self._launcher = launcher
        self._begin()

    def _begin(self) -> None:
        self._here = _run_here(str(self), self.run)
        self.retries = self._here.retries
        self._is_begun = False

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"run": self.run, "_launcher": self._launcher}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def is_of_an_engine(self) -> bool:
        """Whether an engine runs the workers, which starts another one for one that ends."""
        return self._launcher is None

    def fence(self, *, anew: bool = False) -> None:
        """LeaseLostError unless this run still owns the store; ``anew``: whatever an earlier look said."""
        here, now = self._here, _now()
        if here.beats_at is None:
            here.beats_at = now + random.uniform(0, HEARTBEAT_SECONDS)
        beats = self.is_of_an_engine and now >= here.beats_at  # otherwise the launcher does
        if anew or beats or now - here.looked >= look_seconds(self):
            self._retry(self._look)
        if beats:
            self._beat()

    def _look(self) -> None:
        """TimeoutError if the answer comes when it counts no more."""
        began = _now()
        try:
            lease.check(self, self.run)
        except LeaseLostError:
            self._here.looked = _NEVER  # for other threads too
            raise
        if _now() - began > lease.LOOK_SECONDS:
            raise TimeoutError(f"the lease of {self} took more than {lease.LOOK_SECONDS:.0f} s to read")
        self._here.looked = began

    def _beat(self) -> None:
        """Say that the run lives, unless another worker of this one's group just did. A failure is not the shard's."""
        here, root = self._here, self._unfenced()
        try:
            if not lease.was_heard(root, here.heartbeat, self.run, HEARTBEAT_SECONDS):
                lease.put_heartbeat(root, here.heartbeat, self.run)
            here.failed_beats, pause = 0, HEARTBEAT_SECONDS
        except Exception as error:  # filesystems raise what they like
            here.failed_beats += 1
            pause = min(HEARTBEAT_SECONDS, 2.0**here.failed_beats)
            _log.info("no heartbeat put for %s: %s", self, error)
        here.beats_at = _now() + random.uniform(pause / 2, pause)

    def _retry(self, work: Callable[[], T]) -> T:
        if not self._is_begun:
            self._is_begun = True
            if self._launcher is not None:
                end_with(self._launcher)
            elif introduce(self):  # this process is an engine's worker, started for this run
                end_after(self)
        return retry(work, local=self.is_local, count=self.retries)

    def _check_owner(self) -> None:
        self.fence()

    def _put(self, rel: str, data: Data) -> str:
        put = super()._put

        def attempt() -> str:
            self.fence(anew=rel in (MANIFEST, PLAN))
            return put(rel, data)

        try:
            return self._retry(attempt)
        except FileNotFoundError:  # what was written is swept: whoever took the output over does that
            self.fence(anew=True)
            raise

    stamp = _retried(Root.stamp)
    get = _retried(Root.get)
    get_many = _retried(Root.get_many)
    get_tails = _retried(Root.get_tails)
    read_ranges = _retried(Root.read_ranges)
    crc32c = _retried(Root.crc32c)
    size = _retried(Root.size)
    sizes = _retried(Root.sizes)
    put_file = _retried(Root.put_file, fenced=True)
    put_link = _retried(Root.put_link, fenced=True)
    put_new = _retried(Root.put_new, fenced=True)
    put_new_file = _retried(Root.put_new_file, fenced=True)
    move_new = _retried(Root.move_new, fenced=True)
    remove = _retried(Root.remove, fenced=True)
    remove_many = _retried(Root.remove_many, fenced=True)
    remove_tree = _retried(Root.remove_tree, fenced=True)
    remove_empty = _retried(Root.remove_empty, fenced=True)
    remove_temporaries = _retried(Root.remove_temporaries, fenced=True)

    def release(self) -> None:
        """Give the lease back: the run's last write."""
        self._here.looked = _NEVER
        self._retry(partial(lease.release, self._unfenced(), self.run))

    def _unfenced(self) -> Root:
        return Root(str(self), self.storage_options)

    def is_lost(self, seconds: float) -> bool:
        """Whether another run owns the store, or none: by a look at most ``seconds`` old. False if it can't be told now."""
        try:
            if _now() - self._here.looked >= seconds:
                self._look()
        except LeaseLostError:
            return True
        except Exception as error:  # filesystems raise what they like
            _log.info("the lease of %s can't be read: %s", self, error)
        return False


def run_of(root: Root) -> str:
    """The run that writes to ``root``; "" for a root that belongs to none."""
    return root.run if isinstance(root, JobRoot) else ""


def retries_of(root: Root) -> RetryCount:
    """What counts the retries of this process at ``root``; nothing is counted where no run writes."""
    return root.retries if isinstance(root, JobRoot) else RetryCount()


def writable(root: Root) -> bool:
    """Whether the run of ``root`` still owns it."""
    try:
        if isinstance(root, JobRoot):
            root.fence()
    except LeaseLostError:
        return False
    return True


def end_with(launcher: Process) -> None:
    """End this process when ``launcher`` does, if it is another process of the same machine: nobody else would.

    A process has one thread for that, however many of its roots ask.
    """
    name = f"until {launcher.tag}"
    watched = any(thread.name == name for thread in threading.enumerate())
    if watched or launcher.pid == os.getpid() or not launcher.is_of_this_machine():
        return

    def watch() -> None:
        while launcher.alive():
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name=name, daemon=True).start()


def end_after(root: JobRoot) -> None:
    """End this process, an engine's worker, once the run of ``root`` has been over for a while.

    Engines do that, but for a worker whose job had another task cancelled on this machine while that one's worker started: Flink
    then never closes that task's function, and Beam keeps the job's workers until it is closed.
    """

    def watch() -> None:
        n_lost = 0
        while n_lost < LOOKS_AT_END:
            time.sleep(HEARTBEAT_SECONDS)
            n_lost = n_lost + 1 if root.is_lost(HEARTBEAT_SECONDS) else 0
        os._exit(0)

    threading.Thread(target=watch, name="until the run's end", daemon=True).start()
