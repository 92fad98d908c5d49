"""``elmo-store-worker`` for a test's cluster: each process stops in the middle of its work until the test lets it go on.

So a fault meets a job where the test means it to, on a slow machine and on a fast one. The test and the processes meet in a
folder: ``limit`` says how many shards each process may write, and how many all of them; ``written`` has a byte for each shard;
``held-LIMIT-PID`` says that a process waits; a fault is a file that the first process to remove it suffers.
"""

import importlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.errors import DeviceLostError
from tests.clusters.processes import wait_until

KILLED_LOADING, DEVICE_LOST = (
    "killed-loading",
    "device-lost",
)  # a process is killed as it loads its model; finds its GPU lost
FIRST_LIMIT, NO_LIMIT = 5, 1 << 30
HELD_SECONDS = 600  # by then workers are at work, on a slow machine too


@dataclass
class Gate:
    """What holds the workers of a job back, in an empty ``folder`` of its own."""

    folder: Path
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.let_write(FIRST_LIMIT)
        here = Path(__file__).resolve().parents[2]
        command = shlex.join([sys.executable, "-m", "tests.deploy.held_worker", str(self.folder)])
        Path(self.program).write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(here))} exec {command} "$@"\n'
        )
        Path(self.program).chmod(0o755)

    @property
    def program(self) -> str:
        """What an engine starts as a worker."""
        return str(self.folder / "worker")

    def let_write(self, each: int, in_all: int = NO_LIMIT) -> None:
        """Let each process write so many shards, those that it has written included, and all of them so many."""
        new = self.folder / "new-limit"
        new.write_text(f"{each}-{in_all}")
        new.replace(self.folder / "limit")

    def open(self) -> None:
        """Hold nobody any more."""
        self.let_write(NO_LIMIT)

    def add(self, *faults: str) -> None:
        """Have the first process that meets each of these suffer it."""
        for fault in faults:
            (self.folder / fault).touch()

    def is_left(self, fault: str) -> bool:
        """Whether nobody has suffered ``fault`` yet."""
        return (self.folder / fault).exists()

    def wait_held(self, n: int, process: "subprocess.Popen[str]") -> list[int]:
        """Process ids of the ``n`` or more that wait and were not returned before, at this limit; ``process`` must go on."""

        def new() -> set[str]:
            return {path.name for path in self.folder.glob("held-*")} - self._seen

        wait_until(
            f"{n} workers held at work",
            lambda: len(new()) >= n or process.poll() is not None,
            HELD_SECONDS,
        )
        assert process.poll() is None, process.communicate()
        names = new()
        self._seen |= names
        return [int(name.rpartition("-")[2]) for name in sorted(names)]


def pass_gate(folder: Path, n_written: int) -> None:
    """Return when this process, which has written so many shards, may write one more."""
    while True:
        limit = (folder / "limit").read_text()
        each, in_all = map(int, limit.split("-"))
        with open(folder / "written", "ab") as written:
            if n_written < each and written.tell() < in_all:
                written.write(b".")
                return
        (folder / f"held-{limit}-{os.getpid()}").touch()
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Be ``elmo-store-worker``, held back by the test's `Gate` at ``folder``."""
    boot = importlib.import_module("deploy.cluster.boot")
    work = boot.work

    def is_hit(fault: str) -> bool:
        with suppress(FileNotFoundError):
            (folder / fault).unlink()
            return True
        return False

    def held_work(worker_id: str, endpoint: str) -> None:
        embed = importlib.import_module("transforms.stages.embed")
        load, compute, write, numbers = (
            embed.load_engine,
            embed.compute,
            embed.write_shard,
            itertools.count(),
        )

        def loaded(*arguments: Any) -> Any:
            if is_hit(KILLED_LOADING):
                os.kill(os.getpid(), signal.SIGKILL)
            return load(*arguments)

        def computed(*arguments: Any, **options: Any) -> Any:
            if is_hit(DEVICE_LOST):
                raise DeviceLostError("CUDA error: an illegal memory access was encountered")
            return compute(*arguments, **options)

        def written(*arguments: Any) -> Any:
            pass_gate(folder, next(numbers))
            return write(*arguments)

        embed.load_engine, embed.compute, embed.write_shard = loaded, computed, written  # type: ignore[attr-defined]
        work(worker_id, endpoint)

    boot.work = held_work  # type: ignore[attr-defined]
    os._exit(boot.main(sys.argv[2:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
