"""Versions stand once: Beam and Python in pyproject.toml, the JVM's in deploy/flink/pom.xml; all other files agree with them."""

import re
import tomllib
from pathlib import Path

from tests.clusters.spark import SparkCluster


def one(pattern: str, path: Path) -> str:
    """The one value that every match of ``pattern`` in the file has."""
    (value,) = set(re.findall(pattern, path.read_text("utf-8")))
    return str(value)


def test_beam_and_python_are_one_version_each(repo_dir: Path) -> None:
    text = (repo_dir / "pyproject.toml").read_text("utf-8")
    beam = one(r'"apache-beam(?:\[gcp\])?>=([\d.]+),<3"', repo_dir / "pyproject.toml")
    python = str(tomllib.loads(text)["project"]["requires-python"]).removeprefix(">=")
    dockerfile = repo_dir / "deploy" / "docker" / "Dockerfile"
    assert one(r"BEAM_VERSION=(\d+\.\d+)", dockerfile) == beam
    assert (
        one(r"PYTHON_IMAGE=python:(\d+\.\d+)", dockerfile)
        == one(r"beam_python(\d+\.\d+)_sdk", dockerfile)
        == python
    )
    assert one(r"python(\d+)-template-launcher-base", dockerfile) == python.replace(".", "")


def test_beams_runners_and_their_engines_are_one_version_each(repo_dir: Path) -> None:
    flink, spark = repo_dir / "deploy" / "flink" / "pom.xml", SparkCluster.pom
    runner = r"<artifactId>beam-runners-[\w.-]+</artifactId>\s*<version>([\d.]+)<"
    assert one(runner, flink) == one(runner, spark)
    version = one(r"beam-runners-flink-([\d.]+)<", flink)
    assert (
        one(r"FLINK_IMAGE=flink:(\d+\.\d+)", repo_dir / "deploy" / "docker" / "Dockerfile")
        == version
    )
    manifest = repo_dir / "deploy" / "kubernetes" / "base" / "flink" / "cluster.yaml"
    assert one(r"flinkVersion: v(\w+)", manifest) == version.replace(".", "_")
    page = (repo_dir / "docs" / "deploy.md").read_text("utf-8")
    assert f"beam-runners-flink-{version}` {one(runner, flink)}" in page
