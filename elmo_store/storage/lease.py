"""Who may write to an output: a lease with an owner and heartbeats.

One object, `LEASE`, names the run that owns the output; its content alone decides. It is put on the condition that there is none,
and replaced only where its owner is dead, silent for longer than it promised, or pushed aside by the user. Heartbeats are objects
of their own, so that a late one can't bring back a lease that is lost: the launcher's, and one for each group of workers, which
are read by listing. A writer checks that the lease is still its own (`look`): a worker of a run that lost it, however late it
wakes, finds another name there and stops. What it finds counts for `look_seconds`, and whoever replaces a lease waits as long
before it changes anything, so that by then nobody begins a write on the word of the old one.

Whoever holds a lease in this process writes by `LeaseHolder.writable`, whose roots look at the lease before each change.
"""

import getpass
import logging
import math
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta

from elmo_store.errors import LeaseHeldError, LeaseLostError
from elmo_store.storage.failures import retry
from elmo_store.storage.json_values import convert, encoded_json
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root

LEASES = "_lease"  # the folder; gone when nobody writes
LEASE = f"{LEASES}/owner.json"
LAUNCHER_HEARTBEAT = f"{LEASES}/launcher.json"
WORKER_GROUPS = 16  # object stores take about one write a second of an object
HEARTBEAT_SECONDS = 10.0
LOCAL_LOOK_SECONDS, LOOK_SECONDS = 1.0, 10.0
# How long a run of this machine's processes may be silent before another machine may begin one.
LOCAL_PATIENCE_SECONDS = 45.0
CLOCKS_DIFFER_SECONDS = 300.0  # at most; a heartbeat that is older is old by any machine's clock
SILENT_HEARTBEATS = 3  # of a launcher that has ended
WAIT_SECONDS = 120.0  # the longest that a command waits for another run's lease to run out
_ATTEMPTS = 5
_MEMBERS = "members"  # of a collection: stores that have leases of their own
# Up to the end of the year 9999, where dates end: neither infinite nor NaN.
Seconds = Annotated[float, Meta(ge=0, le=253_402_300_799.0)]
T = TypeVar("T")
_VERSIONS = "versions/"  # of a collection: small objects that decide what is read
_NEVER = -math.inf
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """The right of one run to write to an output."""

    run: str  # a name that no other run has
    owner: str  # user@host, for people
    process: Process  # the launcher
    since: Seconds  # Unix time
    patience_seconds: Seconds  # without a heartbeat for so long it counts as abandoned
    local: bool  # the launcher's end is the end of all its workers

    @classmethod
    def of_this_process(cls, run: str, *, local: bool, patience_seconds: float) -> "Lease":
        """A lease for ``run``, begun now by this process."""
        return cls(run, _owner(), Process.here(), time.time(), patience_seconds, local)

    def has_ended(self) -> bool:
        """Whether nobody works for the run any more, as far as this machine can tell: a local run whose launcher is gone."""
        return self.local and self.process.is_of_this_machine() and not self.process.alive()


@dataclass(frozen=True)
class Heartbeat:
    """One heartbeat object, as `put_heartbeat` writes it."""

    run: str
    said: Seconds  # Unix time, by its writer's clock
    job: str = ""
    console: str = ""


@dataclass(frozen=True)
class Heartbeats:
    """What was last heard of a run."""

    said: Mapping[str, float] = field(
        default_factory=dict
    )  # by heartbeat: when, Unix seconds by its writer's clock
    job: str = ""  # the name by which an engine knows the job
    console: str = ""

    @property
    def last(self) -> float | None:
        """The latest."""
        return max(self.said.values(), default=None)


def read_lease(root: Root) -> Lease | None:
    """The lease that stands at ``root``; None without one, and for one that can't be read."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return _read(root)
    return None


def _read(root: Root) -> Lease | None:
    """Read the lease.

    Returns:
        The lease, None for one that can't be read: whoever wants the output replaces that.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no lease.
    """
    try:
        return _typed_json(root, LEASE, Lease)
    except (ValueError, RecursionError):
        return None
    except FileNotFoundError:
        # A link that leads nowhere has the lease's name, so nobody could put a new lease.
        if root.is_local and os.path.islink(root.path(LEASE)):
            return None
        raise


def _typed_json(root: Root, rel: str, kind: type[T]) -> T:
    """Return the JSON object ``rel`` as ``kind``. ValueError if one of its fields can't be."""
    value = root.get_json(rel)
    # Raises ValueError for NaN, and for half a surrogate pair, which no terminal prints.
    encoded_json(value)
    return convert(value, kind)


def look_seconds(root: Root) -> float:
    """How long a look at a lease counts, from before it was made; a request is dearer than a file."""
    return LOCAL_LOOK_SECONDS if root.is_local else LOOK_SECONDS


def worker_heartbeat(process: Process) -> str:
    """The object by which the group of a worker's process says that it lives."""
    return f"{LEASES}/worker-{zlib.crc32(process.tag.encode()) % WORKER_GROUPS:02d}.json"


def read_heartbeats(root: Root, run: str) -> Heartbeats:
    """The heartbeats of ``run``: a listing, and a read of each."""
    beats: dict[str, Heartbeat] = {}
    for name in root.list(LEASES):
        beat = None if name == LEASE else _heartbeat(root, name)
        if beat is not None and beat.run == run:
            beats[name] = beat
    said = {name: beat.said for name, beat in beats.items()}
    with_job = next((beat for beat in beats.values() if beat.job), None)
    if with_job is None:
        return Heartbeats(said)
    return Heartbeats(said, with_job.job, with_job.console)


def was_heard(root: Root, name: str, run: str, seconds: float) -> bool:
    """Whether the heartbeat ``name`` of ``run`` is of the last ``seconds``; one of a clock that differs by more is not."""
    beat = _heartbeat(root, name)
    return beat is not None and beat.run == run and abs(time.time() - beat.said) < seconds


def put_heartbeat(root: Root, name: str, run: str, job: str = "", console: str = "") -> None:
    """Say that ``run`` lives. ``name``: `LAUNCHER_HEARTBEAT` or a `worker_heartbeat`."""
    root.put_json(name, {"run": run, "said": time.time(), "job": job, "console": console})


def check(root: Root, run: str) -> None:
    """LeaseLostError unless ``run`` owns the output at ``root``."""
    lease = read_lease(root)
    if lease is None or lease.run != run:
        raise LeaseLostError(str(root), run, None if lease is None else described(lease))


def now() -> float:
    """Return seconds that pass while this machine sleeps, too: another one may take an output over meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def look(root: Root, run: str, clock: Callable[[], float] = now) -> float:
    """Check that ``run`` holds the lease at ``root``. Return when the look began, by ``clock``.

    Raises:
        LeaseLostError: another run holds the lease, or none.
        TimeoutError: the answer took so long that it counts no more.
    """
    began = clock()
    check(root, run)
    if clock() - began > LOOK_SECONDS:
        raise TimeoutError(f"the lease of {root} took more than {LOOK_SECONDS:.0f} s to read")
    return began


class Fence:
    """Confirm, before each change, that a run still holds its lease: the `Owner` of the roots that the run writes to.

    An earlier look counts for `look_seconds` where an object in a folder is put: there are many, and a late one among them is
    found by its marker. What decides alone is looked for anew: removals, versions, and objects directly in the root, such as the
    manifest.
    """

    def __init__(self, root: Root, run: str) -> None:
        """``root``: where the lease of ``run`` is; the roots that are written to may be others."""
        self._root, self._run = root.owned_by(None), run
        self._looked = _NEVER

    def __reduce__(self) -> tuple[Any, ...]:
        return Fence, (self._root, self._run)  # clocks differ from machine to machine

    def opens(self) -> None:
        """Do nothing: the holder's own process keeps the lease alive."""

    def confirm(self, rel: str | None) -> None:
        """Raise LeaseLostError unless the run still holds its lease. ``rel``: as of `Owner.confirm`."""
        is_one_of_many = rel is not None and "/" in rel and not rel.startswith(_VERSIONS)
        if is_one_of_many and now() - self._looked < look_seconds(self._root):
            return
        self._looked = _NEVER  # for other threads too, if the lease is lost
        self._looked = look(self._root, self._run)

    def count_retry(self) -> None:
        """Do nothing: nobody asks how often calls were retried."""


def described(lease: Lease, beats: Heartbeats | None = None) -> str:
    """A lease for people: whose, since when, last heard of when, which job."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lease.since))
    text = f"run {lease.run[:8]} of {lease.owner} (process {lease.process.pid}), since {since}"
    if beats is None:
        return text
    if beats.job:
        text += f", job {beats.job}" + (f" ({beats.console})" if beats.console else "")
    return text + (
        f", last heard of {max(0.0, time.time() - beats.last):.0f} s ago"
        if beats.last
        else ", not heard of"
    )


def acquire(
    root: Root,
    lease: Lease,
    *,
    take_over: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    on_progress: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make ``lease`` the one that stands at ``root``.

    A lease of a dead launcher whose workers ended with it is replaced at once; any other when nothing was heard of its run
    for as long as it promised, which is waited for if that is at most ``wait_seconds``; with ``take_over`` in any case.

    Raises:
        LeaseHeldError: another run owns the output and lives, or may.
    """
    data = encoded_json(asdict(lease))
    replaced = False
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            current = _read(root)
        except (FileNotFoundError, NotADirectoryError):
            try:
                if not root.put_new(LEASE, data):
                    continue  # another one was quicker
            except FileNotFoundError:  # the owner that another became meanwhile swept it
                if attempts_left:
                    continue
                raise
        else:
            if current is not None and not take_over:
                _wait_until_abandoned(root, current, wait_seconds, on_progress, sleep)
            root.put(LEASE, data)
            # Of two who replace it at once, both read what the later one wrote; and no look at the one before counts any more.
            sleep(look_seconds(root))
            replaced = True
        standing = read_lease(root)
        if standing is not None and standing.run == lease.run:
            if replaced:  # a late writer of the run before finds nothing to move: it looked at the lease after it wrote
                root.remove_unfinished(but=_MEMBERS)
            put_heartbeat(root, LAUNCHER_HEARTBEAT, lease.run)
            return
    current = read_lease(root)
    raise LeaseHeldError(
        str(root),
        "another run that begins at the same time" if current is None else described(current),
    )


def release(root: Root, run: str) -> None:
    """Remove what ``run`` has here: its heartbeats, then its lease. Nothing of another run's; doing it again is harmless."""
    current = read_lease(root)
    if current is not None and current.run != run:
        return
    for name in [*read_heartbeats(root, run).said, *([LEASE] if current else [])]:
        root.remove(name)


def launcher_is_gone(
    root: Root, lease: Lease, *, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Whether the process that took ``lease`` has ended, whatever its workers do.

    On another machine it has if its heartbeat stays as it is for half a minute, which is waited for.
    """
    if lease.process.is_of_this_machine():
        return not lease.process.alive()
    before = _heartbeat(root, LAUNCHER_HEARTBEAT)
    for _ in range(math.ceil(SILENT_HEARTBEATS * HEARTBEAT_SECONDS)):
        sleep(1.0)
        if _heartbeat(root, LAUNCHER_HEARTBEAT) != before:
            return False
    return True


def _wait_until_abandoned(
    root: Root,
    current: Lease,
    wait_seconds: float,
    on_progress: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    """Return when the run of ``current`` is known or believed to be dead. LeaseHeldError if it lives, or the wait is too long."""
    if current.has_ended():
        return
    beats = read_heartbeats(root, current.run)
    if current.process.is_of_this_machine() and current.process.alive():
        raise LeaseHeldError(str(root), described(current, beats))
    if (
        time.time() - max(current.since, beats.last or 0.0)
        > current.patience_seconds + CLOCKS_DIFFER_SECONDS
    ):
        return
    if current.patience_seconds > wait_seconds:
        raise LeaseHeldError(str(root), described(current, beats))
    on_progress(
        f"{root} belongs to {described(current, beats)}; waiting {current.patience_seconds:.0f} s for a heartbeat "
        "(`take_over=True` does not wait)"
    )
    for _ in range(math.ceil(current.patience_seconds)):
        sleep(1.0)
        standing = read_lease(root)
        if standing is None:
            return
        heard = read_heartbeats(root, standing.run)
        if (
            standing.run != current.run or heard.said != beats.said
        ):  # the last may be of a clock that is ahead
            raise LeaseHeldError(str(root), described(standing, heard))


def _heartbeat(root: Root, name: str) -> Heartbeat | None:
    """Return the heartbeat object ``name``; None without one, and for one that can't be read."""
    try:
        return _typed_json(root, name, Heartbeat)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def _owner() -> str:
    with suppress(Exception):  # a user without a name, such as a container's
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"{os.getuid() if hasattr(os, 'getuid') else '?'}@{socket.gethostname()}"


class LeaseHolder:
    """The lease of ``run`` on ``root``, alive until `end`; as a context it ends with the block.

    ``max_outage_seconds``: of a storage that can't be reached, before the run's job is cancelled; ``gave_up`` then
    says why, otherwise "".
    """

    def __init__(self, root: Root, run: str, max_outage_seconds: float = math.inf) -> None:
        self.root, self.run, self.gave_up = root, run, ""
        self._fence = Fence(root, run)
        self._max_outage_seconds = max_outage_seconds
        self._ended = threading.Event()
        self._job = ("", "")
        self._cancel: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._keep_beating, name="lease", daemon=True)

    @classmethod
    def take(
        cls,
        root: Root,
        run: str,
        *,
        local: bool = True,
        patience_seconds: float = LOCAL_PATIENCE_SECONDS,
        max_outage_seconds: float = math.inf,
        take_over: bool = False,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Take the lease for ``run`` and keep it alive; arguments as of the class, `Lease.of_this_process` and `acquire`.

        LeaseHeldError if another run has it; OSError if the output can't be written.
        """
        lease = Lease.of_this_process(run, local=local, patience_seconds=patience_seconds)
        acquire(root, lease, take_over=take_over, on_progress=on_progress)
        return cls.adopt(root, run, max_outage_seconds)

    @classmethod
    def adopt(
        cls, root: Root, run: str, max_outage_seconds: float, job: str = "", console: str = ""
    ) -> Self:
        """Keep the lease of ``run`` alive from here on, and name its ``job`` if it has one already."""
        holder = cls(root, run, max_outage_seconds)
        holder._job = (job, console)
        holder._thread.start()
        return holder

    @property
    def job(self) -> str:
        """The name by which an engine knows the run's job, "" before it has one."""
        return self._job[0]

    def writable(self, root: Root | None = None) -> Root:
        """Return ``root``, or the place of the lease, as this run writes to it: each change confirms the lease first."""
        return (root or self.root).owned_by(self._fence)

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is still this run's."""
        check(self.root, self.run)

    @property
    def lost_to(self) -> str | None:
        """Who has the lease in place of this run, None if it is still this run's or nobody's."""
        try:
            current = read_lease(self.root)
        except Exception as error:  # filesystems raise what they like, and the job may have failed for the same reason
            _log.info("the lease of %s can't be read: %s", self.root, error)
            return None
        return None if current is None or current.run == self.run else described(current)

    def say_job(self, job: str, console: str | None, cancel: Callable[[], None]) -> None:
        """From now on heartbeats name the job that an engine knows.

        ``cancel`` is called once another run has the lease, or the storage could not be reached for too long.
        """
        self._job, self._cancel = (job, console or ""), cancel
        self._beat()

    def leave(self) -> None:
        """No more heartbeats from here, but the lease stays: workers elsewhere go on, or may."""
        self._ended.set()
        self._thread.join()

    def end(self) -> None:
        """Give the lease back, if it is still this run's."""
        self.leave()
        try:
            if self.gave_up:  # the storage was waited for long enough
                release(self.root, self.run)
            else:
                retry(partial(release, self.root, self.run), local=self.root.is_local)
        except Exception as error:  # it runs out by itself; why the job ended is what matters
            _log.info("the lease of %s can't be given back: %s", self.root, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _keep_beating(self) -> None:
        beat_last = time.monotonic()
        while not self._ended.wait(HEARTBEAT_SECONDS):
            error = self._beat()
            if error is None or isinstance(
                error, PermissionError
            ):  # workers have credentials of their own
                beat_last = time.monotonic()
            elif self.lost_to is not None:
                self._give_up(f"another run took {self.root} over")
                return
            elif time.monotonic() - beat_last > self._max_outage_seconds:
                self._give_up(
                    f"{self.root} could not be reached for {self._max_outage_seconds:.0f} s"
                )
                return

    def _give_up(self, reason: str) -> None:
        """Spare the engine a job whose every write fails from now on."""
        self.gave_up = reason
        try:
            self._cancel()
        except Exception as error:  # an engine's client raises what it likes
            _log.warning("%s, and the job of this run can't be cancelled: %r", reason, error)

    def _beat(self) -> Exception | None:
        """Say that this run lives; returns why it could not be said."""
        try:
            self.check()
            put_heartbeat(self.root, LAUNCHER_HEARTBEAT, self.run, *self._job)
        except Exception as error:  # a look that fails must not end the job; a lease that is lost ends it where it writes
            _log.info("no heartbeat put for %s: %s", self.root, error)
            return error
        return None
