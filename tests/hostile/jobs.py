"""A small job that the faults are put into, commands in processes that start at once, and what can be told of their outputs.

The processes are forked from a server that has imported everything, so that a start costs a few hundredths of a second; each is
the leader of a process group, which a kill ends as a whole.
"""

import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.texts import write_model
from elmo_store.storage.data import TEMPORARY_PREFIX

OBJECTS = (
    "sentences",
    "indexes",
    "states",
    "states.zarr",
    "rejects",
)  # what must be the same bytes whatever happened
SECONDS_AT_MOST = 900
_CONTEXT = multiprocessing.get_context("forkserver")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
)


@dataclass(frozen=True)
class SmallJob:
    """What is embedded: files of lines, and the model."""

    folder: Path
    shard_rows: int = 64

    @classmethod
    def make(
        cls,
        folder: Path,
        n_files: int = 12,
        n_lines: int = 60,
        *,
        shard_rows: int = 64,
        text_seed: int = 7,
    ) -> "SmallJob":
        """A corpus of about 12 tokens a line, blank and refused lines among them, and a random model of 16 dimensions."""
        (folder / "corpus").mkdir(parents=True, exist_ok=True)
        write_model(folder / "model.safetensors", "tiny")
        words = [
            "the",
            "cat",
            "sat",
            "on",
            "a",
            "mat",
            ",",
            "naïve",
            "dogs",
            "ran",
            "東京",
            "away",
            "from",
            "it",
            "quickly",
            ".",
        ]
        draw = random.Random(text_seed)
        for number in range(n_files):
            lines = [
                " ".join(draw.choices(words, k=draw.randint(0, 24))).encode()
                for _ in range(n_lines)
            ]
            lines[number % n_lines] = b"refused: \xff"
            (folder / "corpus" / f"{number:03d}.lines").write_bytes(b"\n".join(lines) + b"\n")
        return cls(folder, shard_rows)

    def arguments(self, output: Path | str, form: str, *more: str) -> list[str]:
        """The command line of the job."""
        return [
            "embed", str(self.folder / "corpus"), "--output", str(output), "--model", str(self.folder / "model.safetensors"),
            "--input-format", "lines", "--shard-rows", str(self.shard_rows), "--store", form, "--threads", "1", "--quiet", *more,
        ]  # fmt: skip


@dataclass(frozen=True)
class Trap:
    """A signal to a process at a change of a file below a folder.

    Changes are what Python's audit events tell: files opened for writing, renamed, removed, folders made and removed. What a C
    library writes by itself (HDF5, FAISS) is met by a delay: the kill comes so long after a change.
    """

    below: Path  # the folder whose changes count
    log: Path  # a file that gets a line for each change, before it is made
    # the signal comes before this change (1, 2, …), or ``delay_seconds`` after; 0: so long after the start, if at all
    at: int = 0
    delay_seconds: float = 0.0
    stops: bool = False  # SIGSTOP instead of SIGKILL; without a delay

    def set(self) -> None:
        """Set it in this process."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        numbers = itertools.count(1)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if (event in _CHANGES or (event == "open" and args[2] & _WRITES)) and self._concerns(
                args[0]
            ):
                number = next(numbers)
                os.write(descriptor, f"{event} {args[0]!r}\n".encode("utf-8", "backslashreplace"))
                if number == self.at:
                    self._spring()

        sys.addaudithook(hook)
        if self.at == 0 and self.delay_seconds:
            self._spring()

    def changes(self) -> list[str]:
        """What was about to be changed, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def _concerns(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        text = os.fsdecode(path)
        return text.startswith(f"{self.below}/") or not text.startswith(
            "/"
        )  # in an open folder, as `shutil.rmtree` removes it

    def _spring(self) -> None:
        if self.delay_seconds:
            signal.setitimer(
                signal.ITIMER_REAL, self.delay_seconds
            )  # nobody handles SIGALRM: the kernel ends the process
        else:
            os.kill(os.getpid(), signal.SIGSTOP if self.stops else signal.SIGKILL)


class Command:
    """One ``elmo-store`` command in a process group of its own."""

    def __init__(
        self, arguments: Sequence[str], log: Path, prepare: Callable[[], Any] | None = None
    ) -> None:
        """``prepare``: called in the process before the command; what it returns, if it can be called, at the end."""
        _CONTEXT.set_forkserver_preload(["tests.hostile.preload"])
        self.log = log
        self._process = _CONTEXT.Process(target=_run, args=(list(arguments), str(log), prepare))
        self._process.start()

    def wait(self, seconds: float = SECONDS_AT_MOST) -> int:
        """Its exit code; below 0 if a signal ended it. TimeoutError with its log's end if it does not end in time."""
        self._process.join(seconds)
        if self._process.is_alive():
            self.kill_group()
            raise TimeoutError(
                f"the command did not end within {seconds} s:\n{self.output()[-3000:]}"
            )
        code = self._process.exitcode
        return code if code is not None else -1

    def succeed(self) -> None:
        """Wait for it. RuntimeError unless it succeeds."""
        if self.wait():
            raise RuntimeError(f"the command fails without any fault:\n{self.output()}")

    def kill_group(self) -> None:
        """kill -9: the process, if it still runs, and all that it started."""
        if self._process.pid:  # killpg of 0 is one's own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def wait_until_stopped(self) -> bool:
        """Wait for SIGSTOP or the end; whether it stands still."""
        while self._process.is_alive():
            with suppress(OSError, IndexError):
                state = (
                    Path(f"/proc/{self._process.pid}/stat")
                    .read_text()
                    .rpartition(")")[2]
                    .split()[0]
                )
                if state == "T":
                    return True
            time.sleep(0.005)
        return False

    def resume(self) -> None:
        """SIGCONT."""
        if self._process.pid:
            os.kill(self._process.pid, signal.SIGCONT)

    def output(self) -> str:
        """What it wrote to the terminal."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _run(arguments: list[str], log: str, prepare: Callable[[], Any] | None) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    at_end = prepare() if prepare else None
    from pipeline.main import main

    try:
        code = main(arguments)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    if callable(at_end):
        at_end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries are not waited for, as after a kill


def contents(store: Path) -> dict[str, str]:
    """SHA-256 of every object that must be the same whoever wrote it."""
    files = [path for name in OBJECTS for path in _objects(store / name)]
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def _objects(folder: Path) -> list[Path]:
    """Files below ``folder``. Nobody takes a temporary one for an object; on a file server it stays where its removal failed."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(TEMPORARY_PREFIX)
    ]


def faults_of(url: str) -> list[str]:
    """What is wrong with a complete store, its objects compared with one another too."""
    import elmo_store
    from tests.store.deep import all_faults

    return all_faults(elmo_store.open(url))


def differences(actual: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Names of which the two differ."""
    return sorted(name for name in {*actual, *wanted} if actual.get(name) != wanted.get(name))
