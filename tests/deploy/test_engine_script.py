"""``deploy.ENGINE.run`` for a cluster that exists: the command that it runs."""

import sys
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import JobServerOptions

from deploy.cluster import engine
from deploy.cluster.engine import Cluster
from deploy.flink.cluster import FlinkCluster
from deploy.spark.cluster import SparkCluster
from pipeline.runners.beam_options import pipeline_options, split_arguments


@pytest.mark.parametrize("kind", [FlinkCluster, SparkCluster])
def test_what_the_user_gives_wins_and_the_rest_is_left_to_the_users_cluster(
    kind: type[Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beam.jar").touch()
    given = ["embed", "corpus", "--job_server_jvm_properties=-Dspark.task.maxFailures=2", "--environment_type=LOOPBACK"]
    commands: list[list[str]] = []
    monkeypatch.setattr(engine, "run_command", commands.append)
    monkeypatch.setattr(engine.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["run", "--master", "spark://host:7077", "--jars", str(tmp_path), *given])
    engine.run(kind, "…")
    [[name, *arguments]] = commands
    assert name == "embed"
    own, beams = split_arguments(arguments)
    assert own == ["corpus"]
    options = pipeline_options(beams)
    assert options.get_all_options()["environment_type"] == "LOOPBACK"
    properties = options.view_as(JobServerOptions).job_server_jvm_properties
    assert properties[-1] == "-Dspark.task.maxFailures=2"  # a JVM heeds the last
    assert not [flag for flag in properties if "spark.ui" in flag or "spark.executor" in flag or "spark.network" in flag]
