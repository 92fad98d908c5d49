"""A command's hold on its output: the lease taken before anything is written, signs of life, and given back at the end.

May import elmo_store, transforms' patience and the exit codes.
"""

import logging
import sys
import threading
import uuid
from contextlib import suppress
from functools import partial
from types import TracebackType

from elmo_store import lease
from elmo_store.errors import LeaseHeldError, StoreError
from elmo_store.layout import LEASE, LEASES, WORK
from elmo_store.lease import LAUNCHER_SIGN, Lease
from elmo_store.manifest import read_manifest
from elmo_store.storage import Root
from pipeline.exit_codes import CommandError, Exit
from transforms.job_root import again

SIGN_SECONDS = 10.0
# How long a run may be silent before another one may begin: a command that waits says something every 10 s, workers of an engine
# when they write; an engine may take its time to start any.
LOCAL_PATIENCE_SECONDS, ENGINE_PATIENCE_SECONDS, LEFT_PATIENCE_SECONDS = 45.0, 120.0, 900.0
_log = logging.getLogger(__name__)


def tidy(root: Root) -> None:
    """Remove what a run that was killed at its very end left beside its complete store, unless it may still live.

    Nothing happens where nothing is left, and in a place that can only be read.
    """
    own = Lease.of_this_process(uuid.uuid4().hex, local=True, patience_seconds=LOCAL_PATIENCE_SECONDS)

    def remove() -> None:
        if not root.list(WORK) and not root.list(LEASES):
            return
        there = lease.read_lease(root)
        if there is None or there.run != own.run:  # not taken by an attempt before
            lease.acquire(root, own, wait_seconds=0.0)
        if read_manifest(root).complete:
            root.remove_many([*root.list(WORK), *(rel for rel in root.list(LEASES) if rel != LEASE)])  # signs of the dead
        lease.release(root, own.run)

    with suppress(OSError, StoreError):  # LeaseHeldError: whoever has it is not done, or will be believed dead later
        again(remove, local=root.is_local)


class Tenure:
    """The lease of ``run`` on ``root``, alive until `end`; as a context it ends with the block."""

    def __init__(self, root: Root, run: str) -> None:
        self.root, self.run = root, run
        self._ended = threading.Event()
        self._job = ("", "")
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    @classmethod
    def begin(cls, root: Root, run: str, *, local: bool, waits: bool, take_over: bool) -> "Tenure":
        """Take the lease. ``local``: workers end with this process; ``waits``: this process stays until the job ends.

        CommandError: refused if another run has it, bad location if the output can't be written.
        """
        patience = LOCAL_PATIENCE_SECONDS if local else ENGINE_PATIENCE_SECONDS if waits else LEFT_PATIENCE_SECONDS
        own = Lease.of_this_process(run, local=local, patience_seconds=patience)
        try:
            lease.acquire(root, own, take_over=take_over, say=lambda text: print(text, file=sys.stderr, flush=True))
        except LeaseHeldError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
        except (OSError, StoreError) as error:
            raise CommandError(Exit.BAD_LOCATION, f"the output {root} can't be written: {error}") from error
        tenure = cls(root, run)
        tenure._thread.start()
        return tenure

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
            again(partial(lease.release, self.root, self.run), local=self.root.is_local)
        except (OSError, StoreError) as error:  # it runs out by itself
            _log.warning("the lease of %s can't be given back: %s", self.root, error)

    def __enter__(self) -> "Tenure":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def _live(self) -> None:
        while not self._ended.wait(SIGN_SECONDS):
            self._say()

    def _say(self) -> None:
        try:
            lease.check(self.root, self.run)
            lease.give_sign(self.root, LAUNCHER_SIGN, self.run, *self._job)
        except Exception as error:  # a look that fails must not end the job; a lease that is lost ends it where it writes
            _log.info("no sign of life given for %s: %s", self.root, error)
