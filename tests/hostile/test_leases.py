"""Lease files that somebody edited: they count as unreadable, and nothing waits for them or fails with a traceback."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from elmo_store.storage.lease import (
    LAUNCHER_HEARTBEAT,
    LEASE,
    Lease,
    acquire,
    check,
    described,
    put_heartbeat,
    read_heartbeats,
    read_lease,
    was_heard,
)
from elmo_store.storage.process import Process, temporary_tag
from elmo_store.storage.root import Root

ELSEWHERE = Process("another machine", 1, "1")


def lease_of(run: str, process: Process = ELSEWHERE) -> Lease:
    return Lease(run, "me@here", process, 1.7e9, 3.0, False)


def no_sleep(_: float) -> None:
    pass


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "out")


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "since 1e300": lambda lease: lease.update(since=1e300),
    "since NaN": lambda lease: lease.update(since=float("nan")),
    "since infinite": lambda lease: lease.update(since=float("inf")),
    "since before 1970": lambda lease: lease.update(since=-1e12),
    "process id above 2^31": lambda lease: lease["process"].update(pid=2**31),
    "process id of 400 digits": lambda lease: lease["process"].update(pid=10**400),
    "process id 0, which is a group": lambda lease: lease["process"].update(pid=0),
    "process id of all processes": lambda lease: lease["process"].update(pid=-1),
    "patience NaN": lambda lease: lease.update(patience_seconds=float("nan")),
    "patience infinite": lambda lease: lease.update(patience_seconds=float("inf")),
    "patience below 0": lambda lease: lease.update(patience_seconds=-1),
    "half a surrogate pair": lambda lease: lease.update(owner="\ud800"),
}


@pytest.mark.parametrize("machine", ["this machine", "another machine"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_lease_counts_as_unreadable_and_is_replaced(
    root: Root, edit: str, machine: str
) -> None:
    process = Process.here() if machine == "this machine" else ELSEWHERE
    value = asdict(lease_of("edited", process))
    EDITS[edit](value)
    root.put(LEASE, json.dumps(value).encode())

    current = read_lease(root)
    acquire(root, lease_of("next"), sleep=no_sleep)

    assert current is None
    check(root, "next")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(10**400, id="400 digits"),
        1e300,
        float("nan"),
        float("-inf"),
        "now",
        None,
        True,
    ],
)
def test_an_edited_heartbeat_is_not_heard(root: Root, said: Any) -> None:
    acquire(root, lease_of("run"), sleep=no_sleep)
    beat = {"run": "run", "said": said, "job": "", "console": ""}
    root.put(LAUNCHER_HEARTBEAT, json.dumps(beat).encode())

    beats = read_heartbeats(root, "run")

    assert beats.last is None
    assert not was_heard(root, LAUNCHER_HEARTBEAT, "run", 1e12)
    assert "not heard of" in described(lease_of("run"), beats)


def test_a_heartbeat_may_be_without_a_job(root: Root) -> None:
    put_heartbeat(root, LAUNCHER_HEARTBEAT, "run")
    root.put(LAUNCHER_HEARTBEAT, json.dumps({"run": "run", "said": 5}).encode())
    assert read_heartbeats(root, "run").last == 5.0


def test_a_dangling_link_as_lease_is_replaced(root: Root, tmp_path: Path) -> None:
    path = Path(root.path(LEASE))
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "nowhere")

    acquire(root, lease_of("next"), sleep=no_sleep)

    check(root, "next")
    assert not path.is_symlink()
    assert not (tmp_path / "nowhere").exists()


def test_a_temporary_file_of_an_impossible_process_is_swept(root: Root) -> None:
    machine = temporary_tag().partition(".")[0]
    folder = Path(root.path())
    folder.mkdir()
    left = folder / f".writing-{machine}.9999999999.1-0000-a~"
    left.write_bytes(b"")

    root.sweep()

    assert not left.exists()
