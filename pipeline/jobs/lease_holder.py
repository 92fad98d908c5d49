"""A command's hold on its output, with a job's patience: exit codes for a lease that can't be had, removals tried again."""

import sys
import uuid
from contextlib import suppress
from functools import partial
from typing import Self

from elmo_store.errors import LeaseHeldError, StoreError
from elmo_store.format.layout import WORK
from elmo_store.format.manifest import read_manifest
from elmo_store.storage import lease
from elmo_store.storage.lease import LEASE, LEASES, LOCAL_PATIENCE_SECONDS, Lease
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from transforms.runtime.job_root import retry

# How long a run may be silent before another one may begin: a command that waits says something every 10 s, workers of an engine
# when they write; an engine may take its time to start any.
ENGINE_PATIENCE_SECONDS, LEFT_PATIENCE_SECONDS = 120.0, 900.0


def tidy(root: Root) -> None:
    """Remove what a run that was killed at its very end left beside its complete store, unless it may still live.

    Nothing happens where nothing is left, and in a place that can only be read.
    """
    own = Lease.of_this_process(uuid.uuid4().hex, local=True, patience_seconds=LOCAL_PATIENCE_SECONDS)

    def remove() -> None:
        root.sweep()
        if not root.holds(WORK) and not root.holds(LEASES):  # an empty folder is something too
            return
        there = lease.read_lease(root)
        if there is None or there.run != own.run:  # not taken by an attempt before
            lease.acquire(root, own, wait_seconds=0.0)
        if read_manifest(root).complete:
            root.remove_tree(WORK)
            root.remove_many([rel for rel in root.list(LEASES) if rel != LEASE])  # heartbeats of the dead
            root.sweep(LEASES)
        lease.release(root, own.run)

    with suppress(OSError, StoreError):  # LeaseHeldError: whoever has it is not done, or will be believed dead later
        retry(remove, local=root.is_local)


class LeaseHolder(lease.LeaseHolder):
    """The lease of ``run`` on ``root``, as a command takes it."""

    @classmethod
    def begin(cls, root: Root, run: str, *, local: bool, waits: bool, take_over: bool) -> Self:
        """Take the lease. ``local``: workers end with this process; ``waits``: this process stays until the job ends.

        CommandError: refused if another run has it, bad location if the output can't be written.
        """
        patience = LOCAL_PATIENCE_SECONDS if local else ENGINE_PATIENCE_SECONDS if waits else LEFT_PATIENCE_SECONDS
        try:
            return cls.take(root, run, local=local, patience_seconds=patience, take_over=take_over, say=_say)
        except LeaseHeldError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
        except (OSError, StoreError) as error:
            raise CommandError(Exit.BAD_LOCATION, f"the output {root} can't be written: {error}") from error

    def _release(self) -> None:
        retry(partial(lease.release, self.root, self.run), local=self.root.is_local)


def _say(text: str) -> None:
    """One line to standard error, at once."""
    print(text, file=sys.stderr, flush=True)
