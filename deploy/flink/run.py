"""Run one ``elmo-store`` command on a Flink cluster of this machine, or on one that exists.

    python -m deploy.flink.run [--task-managers N] embed INPUT… --output URL …
    python -m deploy.flink.run --master HOST:8081 [--worker PROGRAM] embed INPUT… --output URL …

The first form starts one JobManager and N TaskManagers (default 2) from released artefacts, which Maven resolves and keeps,
runs the command there and stops them. The second only adds the options for a cluster that runs already; its machines need the
package, with PROGRAM (default elmo-store-worker) in their PATH.
"""

import sys

from deploy.cluster.engine import run
from deploy.flink.cluster import FlinkCluster

if __name__ == "__main__":
    sys.exit(run(FlinkCluster, __doc__))
