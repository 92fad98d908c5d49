"""Processes of an engine on this machine: started in groups of their own, waited for by port, stopped with their children."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elmo_store.own_packages import put_ours_first

START_SECONDS = 120.0
STOP_SECONDS = 15.0
LOG_LINES = 15  # of a process that ended too early, shown with the error


class ClusterError(RuntimeError):
    """An engine that can't be started here: names the process, what it said last, or what is missing and how to get it."""


def worker_environment() -> dict[str, str]:
    """The environment of services and workers: this Python first in PATH, our packages found from a checkout, safe paths."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    put_ours_first([], environment)
    return environment


def wait_until(what: str, true: Callable[[], bool], seconds: float = 180) -> None:
    """Return when ``true()``; AssertionError if the time is up before."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not in {seconds:.0f} s"
        time.sleep(0.05)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Service:
    """One started process, the leader of a group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    def last_lines(self) -> str:
        """What it wrote last; "" without a log."""
        if self.log is None or not self.log.exists():
            return ""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])

    def wait_for_port(self, port: int, seconds: float = START_SECONDS) -> None:
        """Return when ``port`` answers. ClusterError if the process ends or the time is up before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_alive()
            with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
                return
            time.sleep(0.1)
        raise ClusterError(
            f"the {self.name} did not answer on port {port} in {seconds:.0f} s\n{self.last_lines()}"
        )

    def check_alive(self) -> None:
        """ClusterError with its last lines if the process has ended."""
        if self.process.poll() is not None:
            raise ClusterError(
                f"the {self.name} ended with {self.process.returncode}\n{self.last_lines()}"
            )

    def kill(self) -> None:
        """End the whole group at once, as a machine that dies would; children included."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, first: signal.Signals) -> None:
        """Ask with ``first``, then end whatever of its group is left."""
        with suppress(ProcessLookupError):
            self.process.send_signal(first)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.kill()


@contextmanager
def service(
    name: str,
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[Service]:
    """A process in a group of its own, stopped together with whatever it started.

    ``log``: the file that gets what it says, appended; None discards it. ``env``: beside the environment of all.
    """
    with ExitStack() as stack:
        sink = stack.enter_context(open(log, "ab")) if log is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            list(command),
            env={**worker_environment(), **(env or {})},
            stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        started = Service(name, process, log)
        try:
            yield started
        finally:
            started.stop(stop)
