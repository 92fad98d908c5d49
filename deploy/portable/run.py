"""Run one ``elmo-store`` command on Beam's own portable job service with an external worker pool, then stop both.

    python -m deploy.portable.run embed INPUT… --output URL …

May import the standard library only. It is what a cluster does, on one machine: the launcher submits over gRPC, the job
service drives, and workers are processes that know nothing but their endpoints. Three things a cluster must get right
too are done here: the environment's ``bin`` stands first in PATH, because the pool starts plain ``python``; PYTHONSAFEPATH
keeps the working folder's modules out of the workers; and the pool's own children are stopped with it.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"
WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"
START_SECONDS = 120.0
STOP_SECONDS = 15.0


def worker_environment() -> dict[str, str]:
    """The environment of services and workers: this Python first in PATH, safe paths, our packages found from a checkout."""
    ours = str(Path(__file__).resolve().parent.parent.parent)
    paths = [ours, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], what: str) -> None:
    """Return when ``port`` answers. RuntimeError if ``process`` ends or the time is up before."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the {what} ended with {process.returncode} before it answered")
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the {what} did not answer on port {port} in {START_SECONDS:.0f} s")


@contextmanager
def service(module: str, arguments: Sequence[str], port: int, log: int | None) -> Iterator[None]:
    """A Beam service in a process group of its own, stopped together with whatever it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=worker_environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(port, process, module)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # the pool stops its workers on KeyboardInterrupt, not on SIGTERM
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(arguments: Sequence[str]) -> int:
    """Start both services, run the command with them, stop them; returns the command's exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    job_port, pool_port = free_port(), free_port()
    log = None if os.environ.get("PORTABLE_LOG") else subprocess.DEVNULL
    with (
        service(JOB_SERVICE, ["-p", str(job_port)], job_port, log),
        service(WORKER_POOL, ["--service_port", str(pool_port)], pool_port, log),
    ):
        command = [
            sys.executable, "-m", "pipeline", *arguments,
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{job_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{pool_port}",
        ]  # fmt: skip
        return subprocess.run(command, env=worker_environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
