"""Beam's own portable job service with an external worker pool: what a cluster does, on one machine."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clusters.engine import pool_options
from tests.clusters.processes import free_port, service

JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"
WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"


@contextmanager
def portable_service(folder: Path, python: str = sys.executable) -> Iterator[list[str]]:
    """Beam's options for a job service and a worker pool of ``python``'s environment; their logs in ``folder``."""
    env = {
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    }  # the pool starts plain `python`
    if python != sys.executable:
        env["PYTHONPATH"] = ""  # its workers import what is installed there
    ports = []
    with ExitStack() as stack:
        for module, flag in ((JOB_SERVICE, "-p"), (WORKER_POOL, "--service_port")):
            ports.append(free_port())
            command = [python, "-m", module, flag, str(ports[-1])]
            # The pool stops its workers on KeyboardInterrupt, not on SIGTERM.
            started = service(
                module, command, log=folder / f"{module}.log", env=env, stop=signal.SIGINT
            )
            stack.enter_context(started).wait_for_port(ports[-1])
        service_options = [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{ports[0]}",
            "--shared-disk",
        ]
        yield [*service_options, *pool_options(f"localhost:{ports[1]}")]
