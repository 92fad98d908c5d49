"""The store as workers see it: a write needs the lease, storage that fails in passing is tried again."""

import errno
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmo_store.errors import LeaseLostError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage import failures, lease
from elmo_store.storage.data import TEMPORARY_PREFIX, Range
from elmo_store.storage.failures import retry
from elmo_store.storage.lease import Lease, acquire, read_heartbeats, release
from elmo_store.storage.local_disk import LocalDisk
from elmo_store.storage.object_store import ObjectStore
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from transforms.runtime import owner
from transforms.runtime.owner import Here, Run, owned, run_of
from transforms.runtime.work import PLAN


def here_of(root: Root) -> Any:
    """What this process knows of the run that owns ``root``."""
    run = run_of(root)
    assert run is not None
    return run.here


def held(place: Path | str, run: str = "run") -> Root:
    root = Root(place)
    acquire(root, Lease.of_this_process(run, local=True, patience_seconds=9.0))
    return owned(root, run)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "look_seconds", lambda _: 0.0)


# What each writing method of `Root` changes.
WRITES: dict[str, Callable[[Root], Any]] = {
    "put": lambda root: root.put("a", b"old"),
    "put_json": lambda root: root.put_json("c", 1),
    "put of a file": lambda root: root.put("a", Path(__file__)),
    "put_new": lambda root: root.put_new("c", b"old"),
    "put_new of a file": lambda root: root.put_new("c", Path(__file__)),
    "create": lambda root: root.create("c", b"old"),
    "create over another": lambda root: root.create("a", b"old"),
    "copy_within": lambda root: root.copy_within(Root(root.url()), "a", "c"),
    "remove": lambda root: root.remove("a"),
    "remove_tree": lambda root: root.remove_tree("folder"),
    "remove_empty": lambda root: root.remove_empty("folder"),
    "remove_unfinished": lambda root: root.remove_unfinished(),
    "remove_unfinished_of": lambda root: root.remove_unfinished_of("a"),
}


@pytest.mark.parametrize("url", ["", "memory://fenced"])
def test_whoever_lost_the_lease_writes_and_removes_nothing(tmp_path: Path, url: str) -> None:
    for kind in (LocalDisk, ObjectStore):
        changes = {
            name
            for name, method in vars(kind).items()
            if "before" in getattr(method, "__annotations__", {})
        }
        assert {name for name in changes if not name.startswith("_")} <= WRITES.keys()
    place = url or tmp_path
    old = held(place)
    old.put("a", b"old")
    kept: Root = pickle.loads(pickle.dumps(old))  # a worker elsewhere
    kept.put("b", b"old")
    release(Root(place), "run")
    new = held(place, "another")
    new.put("a", b"new")
    half = new.path(f"folder/{TEMPORARY_PREFIX}half")
    new.filesystem.makedirs(new.path("folder/empty"))
    new.filesystem.pipe_file(half, b"of the other run")
    for stale in (old, kept):
        for write in WRITES.values():
            with pytest.raises(LeaseLostError, match="belongs to run another"):
                write(stale)
        assert stale.get("a") == b"new"  # reading is nobody's harm
    assert new.filesystem.exists(half)
    assert new.names("folder") == ["empty"]
    run_of(new).release()  # type: ignore[union-attr]
    with pytest.raises(LeaseLostError, match="its lease is gone"):
        new.put("a", b"late")
    assert Root(place).list() == ["a", "b"]
    Root(place).remove_tree()


def test_workers_put_heartbeats_while_they_write_and_no_two_of_a_group_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = held(tmp_path)
    put: list[str] = []
    sound = lease.put_heartbeat

    def noted(root: Root, name: str, run: str) -> None:
        put.append(name)
        sound(root, name, run)

    monkeypatch.setattr(lease, "put_heartbeat", noted)
    before = read_heartbeats(root, "run").last
    for worker in range(200):
        run = Run(root, "run")
        run.here = Here(Process("a machine", worker, "1"))
        run.here.beats_at = 0.0
        root = root.owned_by(run)
        root.put("a", b"")
    assert len(put) == len(set(put)) == lease.WORKER_GROUPS
    after = read_heartbeats(Root(tmp_path), "run").last
    assert before is not None
    assert after is not None
    assert after > before
    run_of(root).release()  # type: ignore[union-attr]
    assert Root(tmp_path).list() == ["a"]


def test_a_heartbeat_that_fails_fails_no_shard_and_is_put_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = held(tmp_path)
    root.put("a", b"")
    now = [owner._now() + owner.HEARTBEAT_SECONDS]
    monkeypatch.setattr(owner, "_now", lambda: now[0])
    sound, failures = LocalDisk.put, [OSError("429: one write a second")] * 3

    def too_many(
        self: LocalDisk, rel: str, data: Any, before: Callable[[], None], **options: bool
    ) -> str:
        if "worker-" in rel and failures:
            raise failures.pop()
        return sound(self, rel, data, before)

    monkeypatch.setattr(LocalDisk, "put", too_many)
    pauses = []
    while not (
        names := [name for name in Root(tmp_path).names(lease.LEASES) if name.startswith("worker-")]
    ):
        root.put("a", b"")
        pauses.append((here_of(root).beats_at or 1e9) - now[0])
        now[0] += 0.1
    assert len(names) == 1
    assert not failures
    assert max(pauses) <= owner.HEARTBEAT_SECONDS
    assert len(pauses) < 10 * 3 * owner.HEARTBEAT_SECONDS + 2  # of a tenth of a second each


@pytest.mark.parametrize("url", ["", "memory://looks"])
def test_a_look_counts_for_a_while_and_not_for_what_nobody_would_find_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(owner, "look_seconds", lease.look_seconds)
    now, looks = [0.0], 0
    sound = lease.check

    def counted(root: Root, run: str) -> None:
        nonlocal looks
        looks += 1
        sound(root, run)

    monkeypatch.setattr(lease, "check", counted)
    root = held(url or tmp_path)
    here_of(root).beats_at = 1e9
    monkeypatch.setattr(owner, "_now", lambda: now[0])
    for _ in range(120):
        root.put("states/a", b"")
        now[0] += 0.5
    assert looks == (6 if url else 60)
    copy: Root = pickle.loads(pickle.dumps(root))
    now[0] += 0.1 if url else -0.1
    looks = 0
    root.put("states/a", b"")
    copy.put("states/a", b"")
    assert looks <= 1  # one of a process, however many copies
    for write in (
        lambda: root.put(MANIFEST, b"{}"),
        lambda: root.put(PLAN, b"{}"),
        lambda: root.remove("states/a"),
    ):
        looks = 0
        write()
        assert looks in (
            1,
            2,
        )  # a put on a disk looks before it writes a temporary file, and before the rename
    release(Root(url or tmp_path), "run")
    for write in (
        lambda: root.put(MANIFEST, b"{}"),
        lambda: root.put("states/a", b""),
    ):  # what one finds counts for the other
        with pytest.raises(LeaseLostError):
            write()
    Root(url or tmp_path).remove_tree()


@pytest.mark.parametrize(("url", "objects"), [("", LocalDisk), ("memory://again", ObjectStore)])
def test_a_write_that_is_retried_looks_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    objects: type[LocalDisk | ObjectStore],
) -> None:
    """Its first attempt failed when the run still owned the store; another one owns it now."""
    monkeypatch.setattr(failures, "LONGEST_PAUSE_SECONDS", 0.01)
    place, overtaken = url or tmp_path, False
    root = held(place)
    sound = objects.put

    def fails_and_is_overtaken(
        self: Any, rel: str, data: Any, before: Callable[[], None], **options: bool
    ) -> str:
        nonlocal overtaken
        if rel == "a" and not overtaken:
            overtaken = True
            release(Root(place), "run")
            held(place, "another").put("a", b"new")
            raise OSError("reset")
        return sound(self, rel, data, before)

    monkeypatch.setattr(objects, "put", fails_and_is_overtaken)
    with pytest.raises(LeaseLostError):
        root.put("a", b"old")
    assert Root(place).get("a") == b"new"
    Root(place).remove_tree()


class Failing:
    """Raises the errors one by one, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *_: Any) -> bytes:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"answer"


def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Failing(OSError("reset"), TimeoutError(), ConnectionError())
    assert retry(work, local=True) == b"answer"
    assert work.calls == 4

    class HttpError(Exception):  # clients have errors of their own
        __module__ = "gcsfs.retry"
        status_code = 503

    monkeypatch.setattr(failures, "LONGEST_PAUSE_SECONDS", 0.01)
    work = Failing(*[HttpError("503")] * 20)
    assert retry(work, local=False) == b"answer"
    assert work.calls == 21


def test_an_outage_is_waited_for_until_the_deadline_and_then_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(failures, "DEADLINE_SECONDS", 0.3)
    work = Failing(*[OSError(f"down {i}") for i in range(1000)])
    began = time.monotonic()
    with pytest.raises(OSError, match="down"):
        retry(work, local=False)
    assert time.monotonic() - began < 10
    assert work.calls > 3


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("a"), PermissionError("403"), ValueError("x"), MemoryError(), OSError(errno.ENOSPC, "full"),
     OSError(errno.EROFS, "read only"), LeaseLostError("a", "b", None), AssertionError("x"), RuntimeError("x"),
     ZeroDivisionError("x"), RecursionError("x"), Exception("of nobody that is known")],
)  # fmt: skip
def test_what_no_repetition_mends_is_told_at_once(error: Exception) -> None:
    work = Failing(error)
    with pytest.raises(type(error)):
        retry(work, local=False)
    assert work.calls == 1


@pytest.mark.slow
def test_every_operation_of_a_worker_s_root_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = held(tmp_path)
    root.put("a", b"abc")
    operations: dict[str, Callable[[], Any]] = {
        "put": lambda: root.put("b", b"x"),
        "put_new": lambda: root.put_new("c", b"x"),
        "get": lambda: root.get("a"),
        "get_many": lambda: root.get_many(["a"]),
        "tails": lambda: root.get_tails({"a": 1}),
        "ranges": lambda: root.read_ranges([Range("a", 0, memoryview(bytearray(3)))]),
        "crc32c": lambda: root.crc32c("a"),
        "stat": lambda: (root.size("a"), root.stamp("a")),
        "listed": lambda: root.sizes(),
        "names": lambda: root.names(""),
        "remove": lambda: root.remove("b"),
        "remove_tree": lambda: root.remove_tree("c"),
        "remove_unfinished": lambda: root.remove_unfinished(),
        "remove_unfinished_of": lambda: root.remove_unfinished_of("a"),
        "remove_empty": lambda: root.remove_empty("e"),
    }
    for name, operation in operations.items():
        real, failures = getattr(LocalDisk, name), [OSError("reset")] * 2

        def torn(
            *arguments: Any, real: Any = real, failures: list[OSError] = failures, **options: Any
        ) -> Any:
            if failures:
                raise failures.pop()
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(LocalDisk, name, torn)
            operation()
        assert not failures, name


LATE_WORKER = """
import pickle, sys, threading, time
roots = [pickle.loads(open(sys.argv[1], "rb").read()) for _ in range(3)]
print(threading.active_count())
for root in roots:
    root.size("a")
print(threading.active_count(), flush=True)
time.sleep(60)
"""


def test_a_process_that_uses_a_root_ends_with_its_launcher(tmp_path: Path) -> None:
    """It is watched by one thread, which a root that is only unpickled does not start."""
    launcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    of = Process.of(launcher.pid)
    (tmp_path / "root").write_bytes(pickle.dumps(owned(Root(tmp_path), "run", of)))
    with subprocess.Popen(
        [sys.executable, "-c", LATE_WORKER, tmp_path / "root"], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        try:
            assert [worker.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
            assert worker.poll() is None
            launcher.kill()
            assert worker.wait(20) == 1
        finally:
            worker.kill()
            launcher.kill()
            launcher.wait()
