"""Beam's job server of an engine as one small jar that names the jars which Maven resolved, each where it is.

python -m deploy.cluster.job_server flink|spark FOLDER_OF_JARS OUT.jar

Beam starts a job server from one jar: a file of 20 kB does what a shaded one of 200 MB would.
"""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

SERVERS = {
    "flink": "org.apache.beam.runners.flink.FlinkJobServerDriver",
    "spark": "org.apache.beam.runners.spark.SparkJobServerDriver",
}
# Beam, Flink and Spark reach into the JDK by reflection, which Java 17 allows only where it is told to.
OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.text", "java.time",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
MANIFEST_BYTES = (
    72  # the longest line of a jar's manifest, its end not counted (JAR File Specification)
)


def job_server_jar(target: Path, engine: str, jars: Sequence[Path]) -> Path:
    """Write ``target``, a jar of nothing but a manifest: ``java -jar`` runs ``engine``'s server with ``jars`` as class path."""
    entries = {
        "Manifest-Version": "1.0",
        "Main-Class": SERVERS[engine],
        "Class-Path": " ".join(jar.resolve().as_uri() for jar in jars),
        "Add-Opens": " ".join(f"java.base/{package}" for package in OPENED),
    }
    text = "".join(folded(f"{name}: {value}") for name, value in entries.items())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr("META-INF/MANIFEST.MF", text + "\r\n")
    return target


def folded(line: str) -> str:
    """One manifest entry in lines of at most 72 bytes; a space continues the line before. ASCII only."""
    first, rest = line[:MANIFEST_BYTES], line[MANIFEST_BYTES:]
    size = MANIFEST_BYTES - 1
    return "\r\n ".join([first, *(rest[i : i + size] for i in range(0, len(rest), size))]) + "\r\n"


if __name__ == "__main__":
    engine, folder, target = sys.argv[1:]
    job_server_jar(Path(target), engine, sorted(Path(folder).glob("*.jar")))
