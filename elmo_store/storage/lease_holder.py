"""A process's hold on an output: the lease taken before anything is written, signs of life, and given back at the end."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from elmo_store.errors import StoreError
from elmo_store.storage import lease
from elmo_store.storage.lease import LAUNCHER_SIGN, Lease
from elmo_store.storage.root import Root

SIGN_SECONDS = 10.0
# How long a run of this machine's processes may be silent before another machine may begin one.
LOCAL_PATIENCE_SECONDS = 45.0
_log = logging.getLogger(__name__)


class Tenure:
    """The lease of ``run`` on ``root``, alive until `end`; as a context it ends with the block."""

    def __init__(self, root: Root, run: str) -> None:
        self.root, self.run = root, run
        self._ended = threading.Event()
        self._job = ("", "")
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    @classmethod
    def take(
        cls,
        root: Root,
        run: str,
        *,
        local: bool = True,
        patience_seconds: float = LOCAL_PATIENCE_SECONDS,
        take_over: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Take the lease for ``run`` and keep it alive; arguments as of `Lease.of_this_process` and `lease.acquire`.

        LeaseHeldError if another run has it; OSError if the output can't be written.
        """
        lease.acquire(
            root, Lease.of_this_process(run, local=local, patience_seconds=patience_seconds), take_over=take_over, say=say
        )
        tenure = cls(root, run)
        tenure._thread.start()
        return tenure

    def check(self) -> None:
        """LeaseLostError unless the lease is still this run's."""
        lease.check(self.root, self.run)

    @property
    def lost_to(self) -> str | None:
        """Who has the lease in place of this run, None if it is still this run's or nobody's."""
        try:
            there = lease.read_lease(self.root)
        except Exception as error:  # filesystems raise what they like, and the job may have failed for the same reason
            _log.info("the lease of %s can't be read: %s", self.root, error)
            return None
        return None if there is None or there.run == self.run else lease.described(there)

    def say_job(self, job: str, console: str | None) -> None:
        """From now on signs of life name the job that an engine knows."""
        self._job = (job, console or "")
        self._say()

    def leave(self) -> None:
        """No more signs from here, but the lease stays: workers elsewhere go on, or may."""
        self._ended.set()
        self._thread.join()

    def end(self) -> None:
        """Give the lease back, if it is still this run's."""
        self.leave()
        try:
            self._release()
        except (OSError, StoreError) as error:  # it runs out by itself
            _log.warning("the lease of %s can't be given back: %s", self.root, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def _release(self) -> None:
        lease.release(self.root, self.run)

    def _live(self) -> None:
        while not self._ended.wait(SIGN_SECONDS):
            self._say()

    def _say(self) -> None:
        try:
            self.check()
            lease.give_sign(self.root, LAUNCHER_SIGN, self.run, *self._job)
        except Exception as error:  # a look that fails must not end the job; a lease that is lost ends it where it writes
            _log.info("no sign of life given for %s: %s", self.root, error)
