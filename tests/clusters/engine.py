"""What Flink and Spark have in common: a cluster of released jars on this machine, and Beam's options for a job on it."""

import json
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from deploy.cluster.job_server import job_server_jar
from tests.clusters.artefacts import QUICK_START, java_flags, resolve
from tests.clusters.processes import START_SECONDS, ClusterError, Service, free_port, service


def pool_options(address: str) -> list[str]:
    """Beam's options for workers that a pool starts: each machine (or pod) has one of its own at ``address``, HOST:PORT."""
    return ["--environment_type=EXTERNAL", f"--environment_config={address}"]


def environment_options(program: str) -> list[str]:
    """Beam's options for workers that are processes of ``program``, which every machine of the cluster has."""
    return [
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps({'command': program})}",
    ]


class Cluster(ABC):
    """The processes of one cluster on this machine. Members are numbered from 0 in the order in which they were started.

    Attributes:
        engine: as Beam calls it, "Flink". member: what a worker machine runs, "TaskManager".
        pom: names its released jars.
        properties: of the job server's JVM.
        master_option: Beam's option for the cluster's address.
    """

    engine: ClassVar[str]
    member: ClassVar[str]
    pom: ClassVar[Path]
    properties: ClassVar[tuple[str, ...]] = ()
    master_option: ClassVar[str]

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.jar = self.job_server_jar(folder)
        self.port, self.web_port = free_port(), free_port()
        self.members: list[Service] = []
        self._stack = stack
        self.start_leader().wait_for_port(self.web_port)

    @classmethod
    def job_server_jar(cls, folder: Path) -> Path:
        """A jar in ``folder`` that Beam can start as the engine's job server."""
        return job_server_jar(folder / "job-server.jar", cls.engine.lower(), resolve(cls.pom))

    @property
    @abstractmethod
    def master(self) -> str:
        """The cluster's address, of the engine's ``master_option``."""

    @abstractmethod
    def start_leader(self) -> Service:
        """Start what the members register with."""

    @abstractmethod
    def start_member(self, name: str) -> Service:
        """Start one more member."""

    @abstractmethod
    def n_registered(self) -> int:
        """Members, or slots of one a member, that the leader knows. OSError or ValueError while it does not answer."""

    def add_member(self) -> int:
        """Start one more; returns its number. It is waited for by ``wait_registered``."""
        number = len(self.members)
        self.members.append(self.start_member(f"{self.member}-{number}"))
        return number

    def wait_registered(self, n: int) -> None:
        """Return when the leader knows ``n`` members.

        ClusterError if a member ends (but for those that were killed on purpose), or the time is up before.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for member in self.members:
                if member.process.returncode is None:
                    member.check_alive()
            with suppress(
                OSError, ValueError
            ):  # a leader's pages are not there, or not whole, as soon as its port is
                if self.n_registered() >= n:
                    return
            time.sleep(0.2)
        raise ClusterError(
            f"{n} members did not register in {START_SECONDS:.0f} s, see the logs in {self.folder}"
        )

    def beam_options(self) -> list[str]:
        """What a job needs to run here; its workers, on this machine, are those that the command chooses itself."""
        return [
            "--shared-disk",
            "--threads=1",  # the members share this machine's cores
            f"--runner={self.engine}Runner",
            f"{self.master_option}={self.master}",
            f"--{self.engine.lower()}_job_server_jar={self.jar}",
            f"--files_to_stage={self.jar}",  # the members have these classes; by default each job ships every jar to each
            *(f"--job_server_jvm_properties={value}" for value in (QUICK_START, *self.properties)),
        ]

    def get(self, path: str) -> Any:
        """What the leader's web service says at ``path``, from JSON."""
        with urllib.request.urlopen(
            f"http://localhost:{self.web_port}/{path}", timeout=30
        ) as reply:
            return json.load(reply)

    def start_java(
        self, name: str, main_class: str, flags: Sequence[str], arguments: Sequence[str], **env: str
    ) -> Service:
        """Start a Java class of the engine's jars, with a folder ``name`` for its temporary files and a log."""
        scratch = self.folder / name
        command = [
            "java",
            *flags,
            f"-Djava.io.tmpdir={scratch}",
            *java_flags(),
            "-cp",
            str(self.jar),
            main_class,
            *arguments,
        ]
        scratch.mkdir()
        log = self.folder / f"{name}.log"
        return self._stack.enter_context(
            service(f"{self.engine} {name}", command, log=log, env=env)
        )


ClusterType = TypeVar("ClusterType", bound=Cluster)


@contextmanager
def cluster_of(kind: type[ClusterType], folder: Path, n_members: int) -> Iterator[ClusterType]:
    """A cluster with its files and logs in ``folder``, ready for jobs; stopped at the end, workers included."""
    with ExitStack() as stack:
        cluster = kind(folder, stack)
        for _ in range(n_members):
            cluster.add_member()
        cluster.wait_registered(n_members)
        yield cluster
