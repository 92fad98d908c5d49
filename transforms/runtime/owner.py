"""The run that owns an output, as its workers know it: it looks at its lease before anything becomes visible there.

So a worker of a run that ended, or that another one replaced, can do no harm however late it wakes. A process looks at the lease
once in `lease.look_seconds`, and anew before what no later stage would find out: removals, the manifest and the plan. Workers of
an engine say that they live when they write; a heartbeat that fails is put later and stops nothing.
"""

import logging
import os
import random
import threading
import time
from functools import lru_cache, partial
from typing import Any

from elmo_store.errors import LeaseLostError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage import lease
from elmo_store.storage.failures import retry
from elmo_store.storage.lease import look_seconds, worker_heartbeat
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from transforms.runtime.ended import introduce
from transforms.runtime.versions import check_versions
from transforms.runtime.work import PLAN

HEARTBEAT_SECONDS = 20.0  # between two heartbeats of a group of workers
WATCH_SECONDS = 1.0  # between two looks at the launcher
LOOKS_AT_END = 2  # that find the lease gone, before a worker ends: till then its tasks say what they were refused
_NEVER = -1e9
_now = lease.now
_log = logging.getLogger(__name__)


class Here:
    """What this process knows of a run, for all copies of it. Times are of `_now`.

    Workers that first write together beat at other times.
    """

    def __init__(self, process: Process) -> None:
        self.heartbeat = worker_heartbeat(process)
        self.looked = _NEVER  # at the lease, which was the run's
        self.beats_at: float | None = None  # from the first write on
        self.is_opened = False
        self.n_retries = 0  # of the storage, since they were last taken
        self.lock = threading.Lock()  # of n_retries


@lru_cache(1)
def _here(root: str, run: str) -> Here:
    """What this process knows of a run.

    It is kept for the process, as a run's root is unpickled once a stage and thread and no copy can reach another one: with a
    `Here` each, a process would look at the lease, beat and watch its launcher as many times.
    """
    return Here(Process.here())


class Run:
    """A run of a job, the owner of its output: see `elmo_store.storage.root.Owner`. Pickles as its name and place."""

    def __init__(self, root: Root, name: str, launcher: Process | None = None) -> None:
        """``launcher``: the process whose end ends the workers, where they are processes of its machine."""
        self.name, self._root, self._launcher = name, root.owned_by(None), launcher
        self.here = _here(str(root), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self._root, self.name, self._launcher)

    @property
    def is_of_an_engine(self) -> bool:
        """Whether an engine runs the workers, which starts another one for one that ends."""
        return self._launcher is None

    def opens(self) -> None:
        """See that this process, which now works for the run, ends with it. VersionsError if it is not fit for it."""
        if self.here.is_opened:
            return
        self.here.is_opened = True
        if self._launcher is not None:
            end_with(self._launcher)
            return
        check_versions()
        if introduce(
            self._root.owned_by(self)
        ):  # this process is an engine's worker, started for this run
            end_after(self)

    def confirm(self, rel: str | None) -> None:
        """LeaseLostError unless this run still owns the output. ``rel``: as of `Owner.confirm`."""
        here, now = self.here, _now()
        if here.beats_at is None:
            here.beats_at = now + random.uniform(0, HEARTBEAT_SECONDS)
        beats = self.is_of_an_engine and now >= here.beats_at  # otherwise the launcher does
        if rel in (None, MANIFEST, PLAN) or beats or now - here.looked >= look_seconds(self._root):
            self._look()
        if beats:
            self._beat()

    def _look(self) -> None:
        """TimeoutError if the answer comes when it counts no more."""
        try:
            self.here.looked = lease.look(self._root, self.name, _now)
        except LeaseLostError:
            self.here.looked = _NEVER  # for other threads too
            raise

    def _beat(self) -> None:
        """Say that the run lives, unless another worker of this one's group just did. A failure is not the shard's."""
        here = self.here
        try:
            if not lease.was_heard(self._root, here.heartbeat, self.name, HEARTBEAT_SECONDS):
                lease.put_heartbeat(self._root, here.heartbeat, self.name)
                if (
                    lease.read_lease(self._root) is None
                ):  # given back meanwhile: nothing stays beside a complete store
                    self._root.remove(here.heartbeat)
        except Exception as error:  # filesystems raise what they like
            _log.info("no heartbeat put for %s: %s", self._root, error)
        here.beats_at = _now() + random.uniform(HEARTBEAT_SECONDS / 2, HEARTBEAT_SECONDS)

    def count_retry(self) -> None:
        with self.here.lock:
            self.here.n_retries += 1

    def take_retries(self) -> int:
        """How often this process retried a call of the storage since it was last asked."""
        with self.here.lock:
            n_retries, self.here.n_retries = self.here.n_retries, 0
        return n_retries

    def release(self) -> None:
        """Give the lease back: the run's last write."""
        self.here.looked = _NEVER
        retry(partial(lease.release, self._root, self.name), local=self._root.is_local)

    def is_lost(self, seconds: float) -> bool:
        """Whether another run owns the output, or none: by a look at most ``seconds`` old. False if it can't be told now."""
        try:
            if _now() - self.here.looked >= seconds:
                self._look()
        except LeaseLostError:
            return True
        except Exception as error:  # filesystems raise what they like
            _log.info("the lease of %s can't be read: %s", self._root, error)
        return False


def owned(root: Root, run: str, launcher: Process | None = None) -> Root:
    """``root`` as the workers of ``run`` write to it; arguments as of `Run`."""
    return root.owned_by(Run(root, run, launcher))


def run_of(root: Root) -> Run | None:
    """The run that owns ``root``; None for a root that belongs to none."""
    return root.owner if isinstance(root.owner, Run) else None


def run_name(root: Root) -> str:
    """The name of the run that owns ``root``, "" for a root that belongs to none."""
    run = run_of(root)
    return "" if run is None else run.name


def end_with(launcher: Process) -> None:
    """End this process when ``launcher`` does, if it is another process of the same machine: nobody else would.

    Beam's local worker processes outlive a launcher that was killed, and no call of theirs fails: see the test of it in
    tests/pipeline/test_signals.py.
    """
    if launcher.pid == os.getpid() or not launcher.is_of_this_machine():
        return

    def watch() -> None:
        while launcher.alive():
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name=f"until {launcher.tag}", daemon=True).start()


def end_after(run: Run) -> None:
    """End this process, an engine's worker, once ``run`` has been over for a while.

    Engines do that, but for a worker whose job had another task cancelled on this machine while that one's worker started: Flink
    then never closes that task's function, and Beam keeps the job's workers until it is closed. tests/deploy/test_watched.py has
    such a worker, without a Flink around it.
    """

    def watch() -> None:
        n_lost = 0
        while n_lost < LOOKS_AT_END:
            time.sleep(HEARTBEAT_SECONDS)
            n_lost = n_lost + 1 if run.is_lost(HEARTBEAT_SECONDS) else 0
        os._exit(0)

    threading.Thread(target=watch, name="until the run's end", daemon=True).start()
