"""Run one ``elmo-store`` command on Beam's own portable job service with an external worker pool, then stop both.

python -m deploy.portable.run embed INPUT… --output URL …

It is what a cluster does, on one machine: the launcher submits over gRPC, the job service drives, and workers are processes
that know nothing but their endpoints. The environment's ``bin`` stands first in PATH, because the pool starts plain ``python``.
"""

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from deploy.cluster.engine import pool_options, run_on_engine
from deploy.cluster.processes import free_port, service

JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"
WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"


def options_for(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[str]:
    """Beam's options for a job service and a worker pool, both started into ``stack``."""
    ports = []
    for module, flag in ((JOB_SERVICE, "-p"), (WORKER_POOL, "--service_port")):
        port = free_port()
        command = [sys.executable, "-m", module, flag, str(port)]
        # The pool stops its workers on KeyboardInterrupt, not on SIGTERM.
        started = stack.enter_context(service(module, command, log=folder / f"{module}.log", stop=signal.SIGINT))
        started.wait_for_port(port)
        ports.append(port)
    job_port, pool_port = ports
    return ["--runner=PortableRunner", f"--job_endpoint=localhost:{job_port}", *pool_options(f"localhost:{pool_port}")]


if __name__ == "__main__":
    sys.exit(run_on_engine("deploy.portable.run", __doc__, options_for))
