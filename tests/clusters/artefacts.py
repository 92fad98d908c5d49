"""Released Java artefacts of an engine: resolved by Maven from a pom, kept in Maven's own cache.

python -m tests.clusters.artefacts POM… resolves them now, so that a later start needs no network
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.cluster.job_server import OPENED
from tests.clusters.processes import ClusterError

MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
MAVEN_SECONDS = 900

# The JVMs of a short job load thousands of classes once and pass pointers on: the quick compiler alone starts them sooner.
QUICK_START = "-XX:TieredStopAtLevel=1"


def java_flags() -> list[str]:
    """What every JVM of an engine on this machine gets before its class."""
    return [QUICK_START, *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)]


def missing_tools() -> str | None:
    """Why no engine can be started on this machine, None if it can."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} not found in PATH: install Java 17 and Maven (Debian: openjdk-17-jre-headless, maven)"


def resolve(pom: Path) -> list[Path]:
    """Every jar of ``pom``'s dependencies in class path order. ClusterError if Maven can't have them.

    The answer is remembered beside Maven's cache by the pom's hash and believed while every file of it is there: Maven itself
    takes seconds to say the same again.
    """
    if (problem := missing_tools()) is not None:
        raise ClusterError(problem)
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "elmo-store"
        / "artefacts"
    )
    remembered = cache / f"{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}.classpath"
    if remembered.is_file():
        jars = [Path(name) for name in remembered.read_text("utf-8").split(os.pathsep)]
        if all(jar.is_file() for jar in jars):
            return jars
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two of them at once may spoil Maven's cache
        return _ask_maven(pom, remembered)


def _ask_maven(pom: Path, remembered: Path) -> list[Path]:
    answer = remembered.with_suffix(f".{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(pom), MAVEN_GOAL, f"-Dmdep.outputFile={answer}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False
    )
    if done.returncode or not answer.is_file():
        last = "\n".join(line for line in done.stdout.splitlines() if "ERROR" in line)[-2000:]
        raise ClusterError(
            f"Maven could not resolve {pom}: {' '.join(command)} ended with {done.returncode}\n{last}"
        )
    answer.replace(remembered)
    return [Path(name) for name in remembered.read_text("utf-8").strip().split(os.pathsep)]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {len(resolve(Path(name)))} jars")
