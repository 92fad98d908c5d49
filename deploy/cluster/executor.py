"""Spark's executor and the worker beside it end together.

Beam starts one worker for all tasks of an executor, keeps it, and never looks whether it lives: a dead one would fail what Spark
gives to that executor, at once and again, and with it the job. Without its executor Spark starts another one, and that a worker.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

EXECUTOR = b"ExecutorBackend"  # in the name of its main class, whatever starts it: a standalone worker, YARN, Kubernetes


def end_executor(process: int) -> bool:
    """Kill ``process``, in which nothing else runs than a job's tasks, if it is an executor of Spark; whether it is one."""
    with suppress(OSError):  # no such process, or a system that does not tell
        if EXECUTOR in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)  # asked to end it would go on failing tasks meanwhile
            return True
    return False
