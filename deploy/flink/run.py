"""Run one ``elmo-store`` command on a Flink cluster of this machine, or on one that exists.

    python -m deploy.flink.run [--task-managers N] embed INPUT… --output URL …
    python -m deploy.flink.run --master HOST:8081 [--worker PROGRAM] embed INPUT… --output URL …

The first form starts one JobManager and N TaskManagers (default 2) from released artefacts, which Maven resolves and keeps,
runs the command there and stops them. The second only adds the options for a cluster that runs already; its machines need the
package, with PROGRAM (default elmo-store-worker) in their PATH.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from deploy.cluster.command import run_on_engine
from deploy.cluster.worker import environment_options, pool_options
from deploy.flink.cluster import flink_cluster, job_options, job_server_jar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this script."""
    parser.add_argument("--task-managers", type=int, default=2, metavar="N", help="TaskManagers to start (default: 2)")
    parser.add_argument("--master", metavar="HOST:PORT", help="Flink's REST address of a cluster that exists; nothing is started")


def options_for(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[str]:
    """Beam's options for the cluster that ``args`` ask for, started into ``stack`` if it does not exist."""
    if args.master is None:
        return stack.enter_context(flink_cluster(folder, args.task_managers)).beam_options()
    jar = job_server_jar(folder, Path(args.jars) if args.jars else None)
    environment = pool_options(args.pool) if args.pool else environment_options(args.worker)
    return job_options(args.master, jar, environment)


if __name__ == "__main__":
    sys.exit(run_on_engine("deploy.flink.run", __doc__, add_arguments, options_for))
