"""Processes, and what they leave when they are killed: temporary files say in their names whose they are.

What a dead process of this machine left is removed by the next command that would leave such a thing; nothing of one that
lives, and of another machine's only what is a day old.
"""

import hashlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated

from msgspec import Meta

ABANDONED_SECONDS = 86_400.0  # a temporary file so old is nobody's, whichever machine it is of
_FOLDER_PREFIX = "elmo-store-"
# A shell's, which outlives a SIGKILL of this process: runs a command, which it asks to end when its own input ends, held by this
# process, and kills 10 s later.
_HELD = """"$@" </dev/null &
exec >/dev/null 2>&1
cat
kill $!
for _ in $(seq 100); do kill -0 $! || exit; sleep 0.1; done
kill -9 $!
"""
_TAG_DIGITS = 8  # after a process's tag, which tell its temporary files apart
_TAG = re.compile(r"([0-9a-f]{8})\.([0-9]{1,10})\.([0-9]{0,20})-")


@dataclass(frozen=True)
class Process:
    """A process, told apart from any that has its number later or elsewhere."""

    machine: str  # this start of a machine, and the namespace that its process numbers are of
    # A signal to process 0 or to a negative number would go to a group of processes.
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    started: str  # in ticks since the machine started; "" where the system does not tell

    @classmethod
    def here(cls) -> "Process":
        """This one."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The one of this machine that has a number now."""
        return cls(_machine(), pid, _started(pid))

    @property
    def tag(self) -> str:
        """The process as it stands in the names of its temporary files."""
        return f"{_machine_digest(self.machine)}.{self.pid}.{self.started}-"

    def is_of_this_machine(self) -> bool:
        """Whether `alive` can tell."""
        return self.machine == _machine()

    def alive(self) -> bool:
        """Whether it still runs; of a process of this machine."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # no process has a number that large
            return False
        except PermissionError:
            pass
        return self.started in ("", _started(self.pid))


def temporary_tag() -> str:
    """What begins the names of this process's temporary files: the process, and a number that no other of its files has."""
    return f"{_tag_of(os.getpid())}{secrets.token_hex(_TAG_DIGITS // 2)}-"


def is_temporary_of(tagged: str, name: str) -> bool:
    """Return True if a temporary file, whose name is ``tagged`` from the tag on, is to become ``name``."""
    match = _TAG.match(tagged)
    return match is not None and tagged[match.end() + _TAG_DIGITS :] == f"-{name}"


def is_abandoned(tagged: str, changed: float) -> bool:
    """Whether a temporary file can be removed: ``tagged`` is its name from the tag on, ``changed`` its time in Unix seconds."""
    match = _TAG.match(tagged)
    if match is not None and match[1] == _machine_digest(_machine()):
        return not Process(_machine(), int(match[2]), match[3]).alive()
    return time.time() - changed > ABANDONED_SECONDS


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for temporary files of this process, removed at the end; those of this user's dead processes are removed first."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(_FOLDER_PREFIX) or not _TAG.match(
                entry.name, len(_FOLDER_PREFIX)
            ):
                continue
            with suppress(
                FileNotFoundError
            ):  # its process, or another command, may have just removed it
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.getuid() and is_abandoned(
                    entry.name.removeprefix(_FOLDER_PREFIX), status.st_mtime
                ):
                    shutil.rmtree(entry.path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER_PREFIX}{temporary_tag()}") as folder:
        yield Path(folder)


@contextmanager
def held(command: Sequence[str]) -> Iterator[IO[bytes]]:
    """Within the block run a program in a session of its own; its output. It ends with the block, and with this process, however
    that ends: asked first, then killed.
    """
    process = subprocess.Popen(
        ["sh", "-c", _HELD, "sh", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.stdin.close()
        process.wait()


@lru_cache(1)
def _tag_of(pid: int) -> str:
    return Process.of(pid).tag


def _machine_digest(machine: str) -> str:
    return hashlib.sha256(machine.encode()).hexdigest()[:8]


@lru_cache(1)
def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = (
                file.read().rpartition(b")")[2].split()
            )  # after the name, which may hold anything
        return "ended" if fields[0] == b"Z" else fields[19].decode()
    except (OSError, IndexError):
        return ""
