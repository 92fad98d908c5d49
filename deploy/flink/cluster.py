"""A Flink cluster on this machine from released jars: one JobManager, TaskManagers that come and go, Beam's options for it.

It is a standalone session cluster without start scripts: the same classes that Flink's scripts start, with the configuration of
``config.yaml``.
"""

import json
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.cluster.artefacts import QUICK_START, jars_of, java_flags, pathing_jar
from deploy.cluster.processes import Service, free_port, service, wait_registered
from deploy.cluster.worker import environment_options, worker_script

HERE = Path(__file__).resolve().parent
POM, CONFIGURATION = HERE / "pom.xml", HERE / "config.yaml"
JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
LOG_TIMES = "-Dorg.slf4j.simpleLogger.showDateTime=true"


def job_server_jar(folder: Path, jars: Path | None = None) -> Path:
    """A jar in ``folder`` that Beam can start as Flink's job server (``--flink_job_server_jar``); ``jars``: as `jars_of`."""
    return pathing_jar(folder / "flink-job-server.jar", jars_of(POM, jars), JOB_SERVER)


def job_options(master: str, jar: Path, environment: Sequence[str]) -> list[str]:
    """Beam's options for a job on the Flink at ``master`` whose workers are those of ``environment``."""
    return [
        "--runner=FlinkRunner",
        f"--flink_master={master}",
        f"--flink_job_server_jar={jar}",
        f"--job_server_jvm_properties={QUICK_START}",
        *environment,
    ]


class FlinkCluster:
    """The processes of one cluster. TaskManagers are numbered from 0 in the order in which they were started."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.jar = job_server_jar(folder)
        self.rest_port = free_port()
        self._rpc_port = free_port()
        self._stack = stack
        self.task_managers: list[Service] = []
        self._configuration = folder / "conf"
        self._configuration.mkdir()
        shutil.copy(CONFIGURATION, self._configuration / "config.yaml")
        manager = self._start("JobManager", JOB_MANAGER, "256m", ["--executionMode", "cluster"])
        manager.wait_for_port(self.rest_port)

    @property
    def master(self) -> str:
        """Of ``--flink_master``."""
        return f"localhost:{self.rest_port}"

    def beam_options(self) -> list[str]:
        """What a job needs to run here."""
        # The TaskManagers have these classes already; by default each job ships every jar to each.
        environment = environment_options(str(worker_script(self.folder)))
        return [*job_options(self.master, self.jar, environment), f"--files_to_stage={self.jar}"]

    def add_task_manager(self) -> int:
        """Start one more; returns its number. It is waited for by ``wait_registered``."""
        number = len(self.task_managers)
        name = f"TaskManager-{number}"
        self.task_managers.append(self._start(name, TASK_MANAGER, "384m", [f"-Dtaskmanager.resource-id={name}"]))
        return number

    def wait_registered(self, n_slots: int) -> None:
        """Return when so many slots are known to the JobManager. ClusterError if a process ends or the time is up before."""
        wait_registered(self.task_managers, n_slots, lambda: self.get("overview")["slots-total"], self.folder)

    def get(self, path: str) -> Any:
        """An answer of Flink's REST service."""
        with urllib.request.urlopen(f"http://{self.master}/{path}", timeout=30) as reply:
            return json.load(reply)

    def _start(self, name: str, main_class: str, heap: str, arguments: list[str]) -> Service:
        scratch = self.folder / name
        scratch.mkdir()
        command = [
            "java", f"-Xmx{heap}", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}", LOG_TIMES, *java_flags(),
            "-cp", str(self.jar), main_class, "--configDir", str(self._configuration), *arguments,
            f"-Drest.port={self.rest_port}", f"-Djobmanager.rpc.port={self._rpc_port}", f"-Dio.tmp.dirs={scratch}",
        ]  # fmt: skip
        return self._stack.enter_context(service(f"Flink {name}", command, log=self.folder / f"{name}.log"))


@contextmanager
def flink_cluster(folder: Path, n_task_managers: int) -> Iterator[FlinkCluster]:
    """A cluster with its files and logs in ``folder``, ready for jobs; stopped at the end, workers included."""
    with ExitStack() as stack:
        cluster = FlinkCluster(folder, stack)
        for _ in range(n_task_managers):
            cluster.add_task_manager()
        cluster.wait_registered(n_task_managers)
        yield cluster
