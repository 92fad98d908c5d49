"""Who may write to an output: one run at a time, on a disk and on an object store, whoever wakes late."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

from elmo_store.errors import LeaseHeldError, LeaseLostError
from elmo_store.storage import lease as leases
from elmo_store.storage.lease import (
    LAUNCHER_HEARTBEAT,
    LEASE,
    Lease,
    LeaseHolder,
    acquire,
    check,
    put_heartbeat,
    read_heartbeats,
    read_lease,
    release,
)
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from tests.buckets import CLIENTS, bucket_root

ELSEWHERE = Process("another machine", 1, "1")


def of(
    run: str, process: Process | None = None, *, local: bool = True, patience: float = 3.0
) -> Lease:
    return Lease(run, "me@here", process or Process.here(), time.time(), patience, local)


class Clock:
    """In place of sleep: counts, and may do something."""

    def __init__(self, each: object = None) -> None:
        self.slept = 0.0
        self._each = each

    def __call__(self, seconds: float) -> None:
        self.slept += seconds
        if callable(self._each):
            self._each()


def ended() -> Process:
    """A process of this machine that is no more."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = Process.of(child.pid)
    assert process.alive()
    child.kill()
    time.sleep(0.1)
    assert not process.alive()  # nobody has waited for it yet: it is a zombie
    child.wait()
    assert not process.alive()
    return process


@pytest.fixture(params=["disk", *CLIENTS])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "disk":
        return Root(tmp_path / "out")
    return bucket_root(request, request.param)


@pytest.mark.slow
def test_of_many_who_put_at_once_one_succeeds(root: Root) -> None:
    won = []
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        if root.put_new("one", f"{number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert root.get("one") == f"{won[0]}".encode()
    assert root.list() == ["one"]


def test_a_lease_is_one_run_s_until_it_is_given_back(root: Root) -> None:
    acquire(root, of("first"))
    check(root, "first")
    launchers = read_heartbeats(root, "first").last or 0.0
    put_heartbeat(root, leases.worker_heartbeat(ELSEWHERE), "first")
    assert (read_heartbeats(root, "first").last or 0.0) > launchers
    with pytest.raises(LeaseHeldError, match="belongs to run first of me@here"):
        acquire(root, of("second"))
    with pytest.raises(LeaseLostError, match="run second may not write"):
        check(root, "second")
    release(root, "second")
    check(root, "first")
    release(root, "first")
    assert root.list() == []
    with pytest.raises(LeaseLostError, match="its lease is gone"):
        check(root, "first")
    acquire(root, of("second"))
    check(root, "second")


@pytest.fixture
def disk(tmp_path: Path) -> Root:
    return Root(tmp_path / "out")


def test_a_dead_launcher_whose_workers_died_with_it_is_replaced_at_once(disk: Root) -> None:
    acquire(disk, of("dead", ended()))
    clock = Clock()
    acquire(disk, of("next"), sleep=clock)
    check(disk, "next")
    assert clock.slept <= 1.0


def test_a_run_elsewhere_is_replaced_when_it_stayed_silent(disk: Root) -> None:
    acquire(disk, of("silent", ELSEWHERE))
    clock, said = Clock(), list[str]()
    acquire(disk, of("next"), sleep=clock, on_progress=said.append)
    check(disk, "next")
    assert 3.0 <= clock.slept <= 5.0
    assert "take_over=True" in said[0]


def test_a_sign_of_life_ends_the_wait(disk: Root) -> None:
    acquire(disk, of("alive", ELSEWHERE))
    with pytest.raises(LeaseHeldError, match="last heard of 0 s ago"):
        acquire(
            disk, of("next"), sleep=Clock(lambda: put_heartbeat(disk, LAUNCHER_HEARTBEAT, "alive"))
        )
    check(disk, "alive")


def test_nobody_waits_for_a_long_silence(disk: Root) -> None:
    acquire(disk, of("left", ELSEWHERE, patience=900.0))
    with pytest.raises(LeaseHeldError, match="Wait until it ends"):
        acquire(disk, of("next"), sleep=Clock())
    acquire(disk, of("next"), take_over=True, sleep=Clock())
    check(disk, "next")


def test_a_launcher_of_an_engine_may_die_and_its_workers_live(disk: Root) -> None:
    acquire(disk, of("engine", ended(), local=False))
    with pytest.raises(LeaseHeldError):
        acquire(
            disk,
            of("next"),
            sleep=Clock(
                lambda: put_heartbeat(disk, leases.worker_heartbeat(Process.here()), "engine")
            ),
        )


def test_a_heartbeat_of_a_clock_that_is_ahead_hides_no_other(disk: Root) -> None:
    acquire(disk, of("engine", ended(), local=False))
    names = [leases.worker_heartbeat(Process("there", pid, "1")) for pid in range(9)]
    disk.put_json(names[0], {"run": "engine", "said": time.time() + 200})
    other = next(name for name in names if name != names[0])
    with pytest.raises(LeaseHeldError):
        acquire(disk, of("next"), sleep=Clock(lambda: put_heartbeat(disk, other, "engine")))
    assert not leases.was_heard(disk, names[0], "engine", 20.0)
    release(disk, "engine")
    assert disk.list() == []


def test_who_replaces_a_lease_waits_as_long_as_a_look_at_it_counts() -> None:
    root = Root("memory://replaced")
    acquire(root, of("first"))
    clock = Clock()
    acquire(root, of("second"), take_over=True, sleep=clock)
    assert clock.slept >= leases.look_seconds(root) > leases.LOCAL_LOOK_SECONDS
    root.remove_tree()


def test_an_old_sign_needs_no_wait(disk: Root) -> None:
    acquire(disk, replace(of("old", ELSEWHERE), since=time.time() - 1000))
    disk.put_json(LAUNCHER_HEARTBEAT, {"run": "old", "said": time.time() - 1000})
    clock = Clock()
    acquire(disk, of("next"), sleep=clock)
    assert clock.slept <= 1.0


def test_of_two_who_replace_a_lease_at_once_one_has_it(disk: Root) -> None:
    acquire(disk, of("dead", ended()))
    # The second one's put comes after the first one's, before the first one looks again.
    later = Clock(lambda: disk.put_json(LEASE, asdict(of("quicker"))))
    with pytest.raises(LeaseHeldError, match="run quicker"):
        acquire(disk, of("slower"), sleep=later)
    check(disk, "quicker")


@pytest.mark.parametrize(
    "damage", [b"", b"[", b"[1]", b"{}", b"\xff", b'{"run": 1, "process": 7}', b"[" * 100_000]
)
def test_a_lease_that_cannot_be_read_is_nobodys(disk: Root, damage: bytes) -> None:
    disk.put(LEASE, damage)
    disk.put(LAUNCHER_HEARTBEAT, damage)
    assert read_lease(disk) is None
    with pytest.raises(LeaseLostError):
        check(disk, "any")
    acquire(disk, of("next"), sleep=Clock())
    check(disk, "next")
    assert read_heartbeats(disk, "next").last is not None


def test_a_lease_is_read_back_as_it_was_written(disk: Root) -> None:
    lease = Lease.of_this_process("run", local=False, patience_seconds=5.0)
    assert msgspec.convert(json.loads(json.dumps(asdict(lease))), Lease) == lease


def test_a_run_whose_lease_another_one_has_cancels_its_job(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    cancelled = threading.Event()
    with LeaseHolder.take(disk, "first") as first:
        first.say_job("job", None, cancelled.set)
        assert not cancelled.wait(0.1)
        acquire(disk, of("second"), take_over=True)
        assert cancelled.wait(10)


@pytest.mark.slow
def test_a_run_whose_storage_stays_away_cancels_its_job_and_one_that_comes_back_keeps_it(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    cancelled, reachable, expired = threading.Event(), threading.Event(), threading.Event()
    reachable.set()
    put = leases.put_heartbeat

    def put_if_reachable(*arguments: str) -> None:
        if expired.is_set():
            raise PermissionError("the credentials have expired")
        if not reachable.is_set():
            raise ConnectionError("away")
        put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(leases, "put_heartbeat", put_if_reachable)
    with LeaseHolder.take(disk, "first", max_outage_seconds=2.0) as first:
        first.say_job("job", None, cancelled.set)
        for _ in range(3):
            reachable.clear()
            time.sleep(0.2)
            reachable.set()
            time.sleep(0.1)
        expired.set()  # here, which says nothing of the workers' own
        assert not cancelled.wait(2.5)
        expired.clear()
        reachable.clear()
        assert cancelled.wait(30)
        assert "could not be reached for 2 s" in first.gave_up


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_what_a_holder_writes_is_refused_once_another_run_has_the_lease(
    place: str, tmp_path: Path
) -> None:
    root = Root(tmp_path if place == "disk" else f"memory://{tmp_path.name}")
    member = Root(root.url("members/a"))
    holder = LeaseHolder.take(root, "first")
    own, of_member = holder.writable(), holder.writable(member)
    own.put("elmo_store.json", b"first")
    of_member.put("states/a", b"first")
    root.remove(LEASE)
    with LeaseHolder.take(root, "second"):
        for write in (
            lambda: own.put("elmo_store.json", b"late"),
            lambda: own.put_new("versions/00000001.json", b"late"),
            lambda: of_member.remove("states/a"),
            lambda: of_member.put("elmo_store.json", b"late"),
        ):
            with pytest.raises(LeaseLostError, match="belongs to run second"):
                write()
        # From now on no earlier look counts for what is one of many, either.
        with pytest.raises(LeaseLostError, match="belongs to run second"):
            of_member.put("states/a", b"late")
    holder.end()
    assert (member.get("states/a"), root.get("elmo_store.json")) == (b"first", b"first")


def test_an_object_is_created_once_and_never_written_over(tmp_path: Path) -> None:
    root, pieces = Root(tmp_path), (b"one", memoryview(b" piece"))
    assert root.create("folder/a", pieces) == root.stamp("folder/a")
    stamp = root.stamp("folder/a")
    assert root.create("folder/a", b"one piece") == stamp  # by an earlier attempt
    root.put("folder/a", b"late by another run")
    assert root.create("folder/a", pieces) != stamp
    assert root.get("folder/a") == b"one piece"
