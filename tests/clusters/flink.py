"""A Flink cluster on this machine from released jars: one JobManager, TaskManagers that come and go.

It is a standalone session cluster without start scripts: the same classes that Flink's scripts start, with the configuration of
``config.yaml``.
"""

import shutil
from pathlib import Path

from tests.clusters.engine import Cluster
from tests.clusters.processes import Service

HERE = Path(__file__).resolve().parents[2] / "deploy" / "flink"
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


class FlinkCluster(Cluster):
    """One JobManager and its TaskManagers, a slot each; `get` asks Flink's REST service."""

    engine, member = "Flink", "TaskManager"
    pom = HERE / "pom.xml"
    master_option = "--flink_master"

    @property
    def master(self) -> str:
        return f"localhost:{self.web_port}"

    def start_leader(self) -> Service:
        configuration = self.folder / "conf"
        configuration.mkdir()
        shutil.copy(HERE / "config.yaml", configuration / "config.yaml")
        return self._start("JobManager", JOB_MANAGER, "256m", ["--executionMode", "cluster"])

    def start_member(self, name: str) -> Service:
        return self._start(name, TASK_MANAGER, "384m", [f"-Dtaskmanager.resource-id={name}"])

    def n_registered(self) -> int:
        return int(self.get("overview")["slots-total"])

    def _start(self, name: str, main_class: str, heap: str, arguments: list[str]) -> Service:
        flags = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        ports = [f"-Drest.port={self.web_port}", f"-Djobmanager.rpc.port={self.port}"]
        own = [
            "--configDir",
            str(self.folder / "conf"),
            *arguments,
            *ports,
            f"-Dio.tmp.dirs={self.folder / name}",
        ]
        return self.start_java(name, main_class, flags, own)
