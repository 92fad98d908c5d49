"""A worker process, and the one that watches it: if the worker dies, its job is told where and how.

The process that an engine started forks the watcher, and that the worker, before anything large is imported, so both stay small:
whoever needs memory and kills for it takes the worker.
"""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from transforms.runtime.work import BROKEN_EXIT, WATCHER

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # of the C library, on Linux
_PR_SET_PDEATHSIG = 1
DYING_SECONDS = 0.5  # from a process's last connection, which its engine sees end, to its end
_EXECUTOR = b"ExecutorBackend"  # in the name of its main class, whatever starts it: a standalone worker, YARN, Kubernetes


def run_watched(work: Callable[[], None]) -> int:
    """Run ``work`` in a process of its own; returns its exit status to this one, and 0 within its own.

    The engine ends its workers by ending this process, and what is below it with it (on Linux; elsewhere Beam's worker ends when
    its engine is gone). It may do so before this process has seen that the worker is dead: the one between them tells of that.
    """
    engine, started = os.getppid(), os.getpid()
    watcher = os.fork()
    return _exit_status(os.waitpid(watcher, 0)[1]) if watcher else _watch(work, engine, started)


def _watch(work: Callable[[], None], engine: int, started: int) -> int:
    """Run ``work`` in a child of this process, which ``started`` forked, and tell of its death."""
    os.setsid()
    reading, writing = os.pipe()
    began, watcher = time.monotonic(), os.getpid()
    child = os.fork()
    if not child:
        os.close(reading)
        _end_with(watcher, signal.SIGKILL)
        os.environ[WATCHER] = str(writing)
        work()
        return 0
    os.close(writing)
    signal.signal(signal.SIGTERM, lambda *_: _end_unless_dead(child))
    _end_with(started, signal.SIGTERM)
    with os.fdopen(reading, "rb") as stream:
        introduced = stream.read()  # until the worker has said which job it works for, or is dead
    _, waited, usage = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(waited)
    died = (
        status < 0 or status == BROKEN_EXIT
    )  # other codes are Beam's, which raises them itself or lost its engine
    if died:
        end_executor(engine)  # before it tries again, which takes milliseconds
    if died and introduced and not os.fork():  # a process of its own: the engine need not wait
        from transforms.runtime.ended import WorkerEnd, put_end

        seconds, peak_bytes = time.monotonic() - began, usage.ru_maxrss * 1024
        put_end(
            introduced,
            WorkerEnd(socket.gethostname(), child, status, seconds, peak_bytes, time.time()),
        )
    return _exit_status(waited)


def _exit_status(waited: int) -> int:
    status = os.waitstatus_to_exitcode(waited)
    return status if status >= 0 else 128 - status  # as shells have it


def end_executor(process: int) -> bool:
    """Kill ``process``, in which nothing else runs than a job's tasks, if it is an executor of Spark; whether it is one.

    Beam starts one worker for all tasks of an executor, keeps it, and never looks whether it lives: a dead one would fail all
    that Spark gives to that executor, and with it the job. Without its executor Spark starts another one, and that a worker.
    """
    with suppress(OSError):  # no such process, or a system that does not tell
        if _EXECUTOR in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)  # asked to end it would go on failing tasks meanwhile
            return True
    return False


def _end_unless_dead(child: int) -> None:
    """End this process, with which its engine is done; if ``child`` is dead or dying, it stays to tell of that."""
    end = time.monotonic() + DYING_SECONDS
    with suppress(ChildProcessError):  # waited for already
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > end:
                os._exit(128 + signal.SIGTERM)  # which ends the child
            time.sleep(DYING_SECONDS / 10)


def _end_with(parent: int, number: signal.Signals) -> None:
    """Have this process get the signal ``number`` when ``parent``, which started it, ends."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), number)
