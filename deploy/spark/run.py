"""Run one ``elmo-store`` command on a Spark standalone cluster of this machine, or on one that exists.

    python -m deploy.spark.run [--workers N] embed INPUT… --output URL …
    python -m deploy.spark.run --master spark://HOST:7077 [--worker PROGRAM] embed INPUT… --output URL …

The first form starts one master and N workers (default 2) from released artefacts, which Maven resolves and keeps, runs the
command there and stops them. The second only adds the options for a cluster that runs already: its jars hold Beam's Spark
runner, and its machines the package, with PROGRAM in their PATH.
"""

import sys

from deploy.cluster.engine import run
from deploy.spark.cluster import SparkCluster

if __name__ == "__main__":
    sys.exit(run(SparkCluster, __doc__))
