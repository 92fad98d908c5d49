"""A Spark standalone cluster on this machine from released jars: one master, workers that come and go, Beam's options for it.

It has no start scripts: the classes that Spark's scripts start are started here. Each job's driver is Beam's job service, which
runs beside the command; each worker runs one executor of one core.
"""

import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.cluster.artefacts import QUICK_START, jars_of, java_flags, pathing_jar, resolve
from deploy.cluster.processes import Service, free_port, service, wait_registered, worker_environment
from deploy.cluster.worker import environment_options, worker_script

POM = Path(__file__).resolve().parent / "pom.xml"
JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WORKER_MEMORY, EXECUTOR_MEMORY = "1g", "768m"  # an executor must fit into its worker
# How soon an executor that is gone is noticed, and how often a task may be lost before the job ends.
SETTINGS = {
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.task.maxFailures": "8",
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.ui.enabled": "false",
}


def job_server_jar(folder: Path, jars: Path | None = None) -> Path:
    """A jar in ``folder`` that Beam can start as Spark's job server (``--spark_job_server_jar``); ``jars``: as `jars_of`."""
    return pathing_jar(folder / "spark-job-server.jar", jars_of(POM, jars), JOB_SERVER)


def job_options(master: str, jar: Path, environment: Sequence[str]) -> list[str]:
    """Beam's options for a job on the Spark at ``master`` whose workers are those of ``environment``.

    Spark's own settings are the job server's JVM properties: the driver runs there.
    """
    return [
        "--runner=SparkRunner",
        f"--spark_master_url={master}",
        f"--spark_job_server_jar={jar}",
        f"--job_server_jvm_properties={QUICK_START}",
        *(f"--job_server_jvm_properties=-D{key}={value}" for key, value in SETTINGS.items()),
        *environment,
    ]


class SparkCluster:
    """The processes of one cluster. Workers are numbered from 0 in the order in which they were started."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.jar = job_server_jar(folder)
        self._stack = stack
        self._port, self._web_port = free_port(), free_port()
        self.workers: list[Service] = []
        self._home = _spark_home(folder)
        arguments = ["--host", "localhost", "--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("master", MASTER, arguments).wait_for_port(self._web_port)

    @property
    def master(self) -> str:
        """Of ``--spark_master_url``."""
        return f"spark://localhost:{self._port}"

    def beam_options(self) -> list[str]:
        """What a job needs to run here, with a thread for each worker's one core."""
        environment = environment_options(str(worker_script(self.folder)))
        n_workers = sum(worker.process.poll() is None for worker in self.workers)
        options = job_options(self.master, self.jar, environment)
        # The workers have these classes already; by default each job ships every jar to each.
        return [*options, f"--files_to_stage={self.jar}", f"--parallelism={n_workers}", "--threads=1"]

    def add_worker(self) -> int:
        """Start one more; returns its number. It is waited for by ``wait_registered``."""
        number = len(self.workers)
        name = f"worker-{number}"
        arguments = [
            "--host",
            "localhost",
            "--cores",
            "1",
            "--memory",
            WORKER_MEMORY,
            "--work-dir",
            str(self.folder / f"{name}-work"),
        ]
        arguments += ["--webui-port", str(free_port()), self.master]
        self.workers.append(self._start(name, WORKER, arguments))
        return number

    def wait_registered(self, n_workers: int) -> None:
        """Return when the master knows so many live workers. ClusterError if a process ends or the time is up before."""
        wait_registered(self.workers, n_workers, lambda: self.get()["aliveworkers"], self.folder)

    def get(self) -> Any:
        """What the master's web page says, as JSON."""
        with urllib.request.urlopen(f"http://localhost:{self._web_port}/json/", timeout=30) as reply:
            return json.load(reply)

    def _start(self, name: str, main_class: str, arguments: list[str]) -> Service:
        scratch = self.folder / name
        scratch.mkdir()
        command = ["java", "-Xmx256m", f"-Djava.io.tmpdir={scratch}", *java_flags(), "-cp", str(self.jar), main_class, *arguments]
        # A worker starts its executors with the jars of SPARK_HOME and the Scala version of this variable.
        env = {
            **worker_environment(),
            "SPARK_HOME": str(self._home),
            "SPARK_SCALA_VERSION": "2.12",
            "SPARK_LOCAL_DIRS": str(scratch),
        }
        env |= {"JDK_JAVA_OPTIONS": " ".join(java_flags()), "SPARK_LOCAL_HOSTNAME": "localhost"}
        return self._stack.enter_context(service(f"Spark {name}", command, log=self.folder / f"{name}.log", env=env))


def _spark_home(folder: Path) -> Path:
    """A SPARK_HOME whose ``jars`` are links to Maven's files."""
    home = folder / "home"
    (home / "jars").mkdir(parents=True)
    for jar in resolve(POM):
        link = home / "jars" / jar.name
        if not link.exists():
            os.symlink(jar, link)
    return home


@contextmanager
def spark_cluster(folder: Path, n_workers: int) -> Iterator[SparkCluster]:
    """A cluster with its files and logs in ``folder``, ready for jobs; stopped at the end, executors included."""
    with ExitStack() as stack:
        cluster = SparkCluster(folder, stack)
        for _ in range(n_workers):
            cluster.add_worker()
        cluster.wait_registered(n_workers)
        yield cluster
