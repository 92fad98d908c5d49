"""Who may write to an output: a lease with an owner and signs of life, on any filesystem.

One object, `layout.LEASE`, names the run that owns the output; its content alone decides. It is put on the condition that there
is none, and replaced only where its owner is dead, silent for longer than it promised, or pushed aside by the user. Signs of
life are objects of their own, so that a late one can't bring back a lease that is lost. Who writes looks whether the lease is
still its own (`check`): a worker of a run that lost it, however late it wakes, finds another name there and stops.
"""

import getpass
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from elmo_store.errors import LeaseHeldError, LeaseLostError
from elmo_store.format.layout import LEASE, LEASES
from elmo_store.storage.process import Process
from elmo_store.storage.root import SETTLE_SECONDS, Root

LAUNCHER_SIGN, WORKER_SIGN = f"{LEASES}/launcher.json", f"{LEASES}/worker.json"
CLOCKS_DIFFER_SECONDS = 300.0  # two machines' clocks at most; an older sign is old whoever's clock it was written by
WAIT_SECONDS = 120.0  # the longest that a command waits for another run's lease to run out
_ATTEMPTS = 5


@dataclass(frozen=True)
class Lease:
    """The right of one run to write to an output."""

    run: str  # a name that no other run has
    owner: str  # user@host, for people
    process: Process  # the launcher
    since: float  # Unix seconds
    patience_seconds: float  # without a sign of life for so long it counts as abandoned
    local: bool  # the launcher's end is the end of all its workers

    @classmethod
    def of_this_process(cls, run: str, *, local: bool, patience_seconds: float) -> "Lease":
        """A lease for ``run``, begun now by this process."""
        return cls(run, _owner(), Process.here(), time.time(), patience_seconds, local)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the store."""
        return {**vars(self), "process": vars(self.process)}

    @classmethod
    def parse(cls, value: Any) -> "Lease":
        """The inverse of ``to_json``. KeyError or TypeError for anything else."""
        process = value["process"]
        return cls(
            str(value["run"]), str(value["owner"]),
            Process(str(process["machine"]), int(process["pid"]), str(process["started"])),
            float(value["since"]), float(value["patience_seconds"]), bool(value["local"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Signs:
    """What was last heard of the runs of an output. Times are Unix seconds by the clock of who wrote them."""

    said: float | None = None
    job: str = ""  # the name by which an engine knows the job
    console: str = ""


def read_lease(root: Root) -> Lease | None:
    """The lease that stands at ``root``; None without one, and for one that can't be read."""
    try:
        return Lease.parse(root.get_json(LEASE))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def read_signs(root: Root, run: str) -> Signs:
    """The signs of life of ``run``."""
    found = [value for name in (LAUNCHER_SIGN, WORKER_SIGN) if (value := _sign(root, name)).get("run") == run]
    if not found:
        return Signs()
    job = next((one for one in found if one.get("job")), {})
    return Signs(max(float(one.get("said", 0)) for one in found), str(job.get("job", "")), str(job.get("console", "")))


def give_sign(root: Root, name: str, run: str, job: str = "", console: str = "") -> None:
    """Say that ``run`` lives. ``name``: `LAUNCHER_SIGN` or `WORKER_SIGN`."""
    root.put(name, encoded_sign(run, job, console))


def encoded_sign(run: str, job: str = "", console: str = "") -> bytes:
    """A sign of life as it stands in the store."""
    return _encoded({"run": run, "said": time.time(), "job": job, "console": console})


def check(root: Root, run: str) -> None:
    """LeaseLostError unless ``run`` owns the output at ``root``."""
    there = read_lease(root)
    if there is None or there.run != run:
        raise LeaseLostError(str(root), run, None if there is None else described(there))


def described(lease: Lease, signs: Signs | None = None) -> str:
    """A lease for people: whose, since when, last heard of when, which job."""
    text = f"run {lease.run[:8]} of {lease.owner} (process {lease.process.pid}), since {_clock(lease.since)}"
    if signs is None:
        return text
    if signs.job:
        text += f", job {signs.job}" + (f" ({signs.console})" if signs.console else "")
    return text + (f", last heard of {max(0.0, time.time() - signs.said):.0f} s ago" if signs.said else ", not heard of")


def acquire(
    root: Root,
    lease: Lease,
    *,
    take_over: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    say: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make ``lease`` the one that stands at ``root``.

    A lease of a dead launcher whose workers ended with it is replaced at once; any other when nothing was heard of its run
    for as long as it promised, which is waited for if that is at most ``wait_seconds``; with ``take_over`` in any case.

    Raises:
        LeaseHeldError: another run owns the output and lives, or may.
    """
    data = lease.to_json()
    replaced = False
    for _ in range(_ATTEMPTS):
        there = read_lease(root)
        if there is None and root.size(LEASE) is None:
            if not root.put_new(LEASE, _encoded(data)):
                continue  # another one was quicker
        else:
            if there is not None and not take_over:
                _wait_until_abandoned(root, there, wait_seconds, say, sleep)
            root.put(LEASE, _encoded(data))
            sleep(SETTLE_SECONDS)  # of two who replace it at once, both read what the later one wrote
            replaced = True
        now = read_lease(root)
        if now is not None and now.run == lease.run:
            if replaced:  # a late writer of the run before finds nothing to move: it looked at the lease after it wrote
                root.remove_temporaries()
            give_sign(root, LAUNCHER_SIGN, lease.run)
            return
    there = read_lease(root)
    raise LeaseHeldError(str(root), "another run that begins at the same time" if there is None else described(there))


def release(root: Root, run: str) -> None:
    """Remove what ``run`` has here: its signs of life, then its lease. Nothing of another run's; doing it again is harmless."""
    there = read_lease(root)
    if there is not None and there.run != run:
        return
    for name in (LAUNCHER_SIGN, WORKER_SIGN):
        if _sign(root, name).get("run") == run:
            root.remove_many([name])
    if there is not None:
        root.remove_many([LEASE])


def _wait_until_abandoned(
    root: Root, there: Lease, wait_seconds: float, say: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Return when the run of ``there`` is known or believed to be dead. LeaseHeldError if it lives, or the wait is too long."""
    signs = read_signs(root, there.run)
    if there.process.is_of_this_machine():
        if there.process.alive():
            raise LeaseHeldError(str(root), described(there, signs))
        if there.local:
            return
    heard = max(there.since, signs.said or 0.0)
    if time.time() - heard > there.patience_seconds + CLOCKS_DIFFER_SECONDS:
        return
    if there.patience_seconds > wait_seconds:
        raise LeaseHeldError(str(root), described(there, signs))
    say(
        f"{root} belongs to {described(there, signs)}; waiting {there.patience_seconds:.0f} s for a sign of life "
        "(--take-over does not wait)"
    )
    waited = 0.0
    while waited < there.patience_seconds:
        sleep(1.0)
        waited += 1.0
        now = read_lease(root)
        if now is None:
            return
        if now.run != there.run or read_signs(root, now.run).said != signs.said:
            raise LeaseHeldError(str(root), described(now, read_signs(root, now.run)))


def _sign(root: Root, name: str) -> dict[str, Any]:
    try:
        value = root.get_json(name)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("said"), int | float) else {}


def _encoded(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _owner() -> str:
    with suppress(Exception):  # a user without a name, such as a container's
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"{os.getuid() if hasattr(os, 'getuid') else '?'}@{socket.gethostname()}"
