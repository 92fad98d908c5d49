"""A Spark standalone cluster on this machine from released jars: one master, workers that come and go.

It has no start scripts: the classes that Spark's scripts start are started here. Each job's driver is Beam's job service, which
runs beside the command; each worker runs one executor of one core.
"""

import os
from pathlib import Path

from tests.clusters.artefacts import java_flags, resolve
from tests.clusters.engine import Cluster
from tests.clusters.processes import Service, free_port

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKER_MEMORY, EXECUTOR_MEMORY = "1g", "768m"  # an executor must fit into its worker


class SparkCluster(Cluster):
    """One master and its workers, one core each."""

    engine, member = "Spark", "worker"
    pom = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "pom.xml"
    # Of a cluster of this machine: small, without a page of each job's own, quick to notice an executor that is gone. They are
    # the job server's: the driver runs there.
    properties = (
        f"-Dspark.executor.memory={EXECUTOR_MEMORY}",
        "-Dspark.executor.heartbeatInterval=2s",
        "-Dspark.network.timeout=30s",
        "-Dspark.network.timeoutInterval=10s",
        "-Dspark.ui.enabled=false",
    )
    master_option = "--spark_master_url"

    @property
    def master(self) -> str:
        return f"spark://localhost:{self.port}"

    def start_leader(self) -> Service:
        jars = self.folder / "home" / "jars"  # a SPARK_HOME whose jars are links to Maven's files
        jars.mkdir(parents=True)
        for jar in {path.name: path for path in resolve(self.pom)}.values():
            os.symlink(jar, jars / jar.name)
        return self._start(
            "master", MASTER, ["--port", str(self.port), "--webui-port", str(self.web_port)]
        )

    def start_member(self, name: str) -> Service:
        resources = [
            "--cores",
            "1",
            "--memory",
            WORKER_MEMORY,
            "--work-dir",
            str(self.folder / f"{name}-work"),
        ]
        return self._start(
            name, WORKER, [*resources, "--webui-port", str(free_port()), self.master]
        )

    def n_registered(self) -> int:
        return int(self.get("json/")["aliveworkers"])

    def beam_options(self) -> list[str]:
        """With a task for each worker's one core."""
        n_workers = sum(worker.process.poll() is None for worker in self.members)
        return [*super().beam_options(), f"--parallelism={n_workers}"]

    def _start(self, name: str, main_class: str, arguments: list[str]) -> Service:
        # A worker starts its executors with the jars of SPARK_HOME and the Scala version of this variable.
        return self.start_java(
            name, main_class, ["-Xmx256m"], ["--host", "localhost", *arguments], SPARK_HOME=str(self.folder / "home"),
            SPARK_SCALA_VERSION="2.12", SPARK_LOCAL_DIRS=str(self.folder / name), SPARK_LOCAL_HOSTNAME="localhost",
            JDK_JAVA_OPTIONS=" ".join(java_flags()),
        )  # fmt: skip
