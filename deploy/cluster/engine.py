"""What Flink and Spark have in common: Beam's options, a cluster on this machine, the script ``deploy.ENGINE.run``.

The script takes an engine's own options, then an ``elmo-store`` command, which is run as a process of its own.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

from deploy.cluster.artefacts import QUICK_START, jars_of, java_flags, pathing_jar
from deploy.cluster.processes import START_SECONDS, ClusterError, Service, free_port, service, worker_environment

NO_ENGINE = 3  # as elmo-store's own code for a location that can't be used


def pool_options(address: str) -> list[str]:
    """Beam's options for workers that a pool starts: each machine (or pod) has one of its own at ``address``, HOST:PORT."""
    return ["--environment_type=EXTERNAL", f"--environment_config={address}"]


def environment_options(program: str) -> list[str]:
    """Beam's options for workers that are processes of ``program``, which every machine of the cluster has."""
    return ["--environment_type=PROCESS", f"--environment_config={json.dumps({'command': program})}"]


class Cluster(ABC):
    """The processes of one cluster on this machine. Members are numbered from 0 in the order in which they were started.

    Attributes:
        engine: as Beam calls it, "Flink". member: what a worker machine runs, "TaskManager".
        pom: names its released jars.
        job_server: the Java class of Beam's job server; properties: of its JVM.
        master_option: Beam's option for the cluster's address; address: the form of that.
        members_option: of ``deploy.ENGINE.run``, how many members to start.
    """

    engine: ClassVar[str]
    member: ClassVar[str]
    pom: ClassVar[Path]
    job_server: ClassVar[str]
    properties: ClassVar[tuple[str, ...]] = ()
    master_option: ClassVar[str]
    address: ClassVar[str]
    members_option: ClassVar[str]

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.jar = self.job_server_jar(folder)
        self.port, self.web_port = free_port(), free_port()
        self.members: list[Service] = []
        self._stack = stack
        self.start_leader().wait_for_port(self.web_port)

    @classmethod
    def job_server_jar(cls, folder: Path, jars: Path | None = None) -> Path:
        """A jar in ``folder`` that Beam can start as the engine's job server; ``jars``: as `jars_of`."""
        return pathing_jar(folder / f"{cls.engine.lower()}-job-server.jar", jars_of(cls.pom, jars), cls.job_server)

    @classmethod
    def job_options(cls, master: str, jar: Path, environment: Sequence[str]) -> list[str]:
        """Beam's options for a job on the cluster at ``master`` whose workers are those of ``environment``."""
        return [
            f"--runner={cls.engine}Runner",
            f"{cls.master_option}={master}",
            f"--{cls.engine.lower()}_job_server_jar={jar}",
            *(f"--job_server_jvm_properties={value}" for value in (QUICK_START, *cls.properties)),
            *environment,
        ]

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
            with suppress(OSError, ValueError):  # a leader's pages are not there, or not whole, as soon as its port is
                if self.n_registered() >= n:
                    return
            time.sleep(0.2)
        raise ClusterError(f"{n} members did not register in {START_SECONDS:.0f} s, see the logs in {self.folder}")

    def beam_options(self) -> list[str]:
        """What a job needs to run here. Workers are this Python's: they need no installation, and work from a checkout."""
        script = self.folder / "elmo-store-worker"
        program = "from elmo_store.__main__ import worker; worker()"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{program}" "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        # The members have these classes already; by default each job ships every jar to each.
        options = self.job_options(self.master, self.jar, environment_options(str(script)))
        return [*options, f"--files_to_stage={self.jar}"]

    def get(self, path: str) -> Any:
        """What the leader's web service says at ``path``, from JSON."""
        with urllib.request.urlopen(f"http://localhost:{self.web_port}/{path}", timeout=30) as reply:
            return json.load(reply)

    def start_java(self, name: str, main_class: str, flags: Sequence[str], arguments: Sequence[str], **env: str) -> Service:
        """Start a Java class of the engine's jars, with a folder ``name`` for its temporary files and a log."""
        scratch = self.folder / name
        command = ["java", *flags, f"-Djava.io.tmpdir={scratch}", *java_flags(), "-cp", str(self.jar), main_class, *arguments]
        scratch.mkdir()
        log = self.folder / f"{name}.log"
        return self._stack.enter_context(service(f"{self.engine} {name}", command, log=log, env=env))


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


def run_command(arguments: Sequence[str]) -> int:
    """``elmo-store`` to its end in a process of its own; returns its exit code.

    Ctrl-C in a terminal reaches it as well as us: it cancels its job and says so, and is waited for.
    """
    process = subprocess.Popen([sys.executable, "-m", "elmo_store", *arguments], env=worker_environment())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
    finally:
        if process.poll() is None:  # we were told to end: so is it, with the chance to cancel its job
            process.send_signal(signal.SIGINT)
            process.wait()


def _leave(number: int, _: FrameType | None) -> None:
    """SIGTERM ends the script as an exception does, so that what it started is stopped."""
    raise SystemExit(128 + number)


def run(kind: type[Cluster], doc: str | None) -> int:
    """``deploy.ENGINE.run``: a command on a cluster that is started for it, or on one that exists.

    Returns the command's exit code, 3 without an engine. ``doc``: the script's docstring.
    """
    parser = _parser(kind, doc)
    args = parser.parse_args()
    if not args.command:
        parser.error("name the command to run, such as: embed INPUT --output URL")
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        if args.logs:
            folder = Path(args.logs).absolute()
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-store-engine-")))
        try:
            if args.master is None:
                options = stack.enter_context(cluster_of(kind, folder, args.members)).beam_options()
            else:
                environment = pool_options(args.pool) if args.pool else environment_options(args.worker)
                options = kind.job_options(args.master, kind.job_server_jar(folder, args.jars), environment)
        except ClusterError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return NO_ENGINE
        name, *given = args.command
        return run_command([name, *options, *given])  # what the user gives stands last, and wins


def _parser(kind: type[Cluster], doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m deploy.{kind.engine.lower()}.run", description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    started = f"{kind.member}s to start (default: 2)"
    add(kind.members_option, type=int, default=2, metavar="N", dest="members", help=started)
    add("--master", metavar=kind.address, help=f"{kind.engine}'s address, of a cluster that exists; nothing is started")
    add("--worker", default="elmo-store-worker", metavar="PROGRAM",
        help="for a cluster that exists: its machines' program of the workers (default: elmo-store-worker)")  # fmt: skip
    add("--pool", metavar="HOST:PORT",
        help=f"for a cluster that exists: the worker pool beside each {kind.member}, such as localhost:50000, instead of "
        "PROGRAM (default: none)")  # fmt: skip
    add("--jars", type=Path, metavar="FOLDER",
        help="for a cluster that exists: the engine's jars (default: Maven resolves and keeps them)")  # fmt: skip
    add("--logs", metavar="FOLDER", help="keep the engine's files and logs there (default: a folder that is removed)")
    add("command", nargs=argparse.REMAINDER, help="embed …, mix …: a command of elmo-store with its options")
    return parser
