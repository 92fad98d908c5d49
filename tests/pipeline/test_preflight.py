"""Preflight of a runner: what is refused before anything is written, what an engine is asked, what its failures say."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners import preflight
from pipeline.runners.beam_options import pipeline_options, runner_name, split_arguments
from pipeline.runners.flink import fit_to_cluster, threads_by_slot
from pipeline.runners.submission import worker_error
from pipeline.runners.workers import Workers, workers_of
from tests.pipeline.conftest import Command

OURS = {"--output", "--shard-rows"}


@pytest.mark.parametrize(
    ("given", "beams"),
    [
        (["a", "--runner=FlinkRunner", "--object_reuse=x"], ["--runner=FlinkRunner", "--object_reuse=x"]),
        (["--object_reuse=x", "a", "--runner", "FlinkRunner"], ["--object_reuse=x", "--runner", "FlinkRunner"]),
        (["a", "--object_reuse=x"], []),  # no job service: a typing error
        (["a", "--runner=DataflowRunner", "--wrker_zone=x"], ["--runner=DataflowRunner"]),
        (["a", "--runner=FlinkRunner", "--shard-rws=64"], ["--runner=FlinkRunner"]),  # not Beam's spelling
        (["a", "--runner=FlinkRunner", "--flink_mastr=x"], ["--runner=FlinkRunner"]),  # nearly Beam's: a typing error
        (["a", "--runner=FlinkRunner", "--output=b"], ["--runner=FlinkRunner"]),
    ],
)
def test_options_that_nobody_here_knows_go_to_an_engine_whose_job_service_may(given: list[str], beams: list[str]) -> None:
    assert split_arguments(given, OURS)[1] == beams


@pytest.mark.parametrize(("environment", "millis"), [("PROCESS", 60_000), ("EXTERNAL", 1)])
def test_on_spark_a_worker_is_kept_where_its_executor_ends_with_it(environment: str, millis: int) -> None:
    options = pipeline_options(["--runner=SparkRunner", f"--environment_type={environment}"])
    assert options.get_all_options()["environment_cache_millis"] == millis


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("flink", "FlinkRunner"), ("DATAFLOWRUNNER", "DataflowRunner"), ("a.b.FlinkRunner", "FlinkRunner"), ("Other", "Other")],
)
def test_a_runner_has_one_name_however_it_is_spelled(spelled: str, name: str) -> None:
    assert runner_name(pipeline_options([f"--runner={spelled}"])) == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--runner=NoSuchRunner"], "NoSuchRunner"),
        (["--runner=PortableRunner"], "--job_endpoint"),
        (
            ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=LOOPBACK"],
            "nothing answers at localhost:1 ",
        ),
        (["--runner=FlinkRunner", "--flink_master=localhost:1"], "no Flink answers"),
        (
            ["--runner=SparkRunner", "--spark_master_url=spark://localhost:1,localhost:2"],
            "nothing answers at localhost:1,localhost:2",
        ),
        (["--runner=SparkRunner", "--spark_job_server_jar=/no/such.jar"], "give --spark_job_server_jar=PATH or --job_endpoint"),
        (["--runner=PrismRunner", "--prism_location=/no/such/prism"], "--prism_location"),
        (["--no-wait"], "ends with this command"),
    ],
)
def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(
    options: list[str], words: str, embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("ANSWER_SECONDS", "MASTER_SECONDS"):
        monkeypatch.setattr(f"pipeline.runners.job_service.{name}", 1.0)
    assert embed(tmp_path / "store", *options) in (Exit.BAD_USAGE, Exit.BAD_LOCATION)
    err = capsys.readouterr().err
    assert words in err
    assert "rerun the same command to resume" not in err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("place", ["/data/store", "store", "file:///data", "memory://store"])
def test_paths_of_this_machine_are_refused_for_workers_on_others(place: str) -> None:
    remote = pipeline_options(["--runner=FlinkRunner", "--flink_master=cluster.example:8081"])
    with pytest.raises(CommandError, match="a path of this machine"):
        preflight.check_reach(remote, [Location("output", place)], shared_disk=False)
    preflight.check_reach(remote, [Location("output", place)], shared_disk=True)
    preflight.check_reach(remote, [Location("output", "s3://bucket/store")], shared_disk=False)
    for here in (["--runner=FlinkRunner", "--flink_master=localhost:8081"], ["--runner=SparkRunner"], []):
        preflight.check_reach(pipeline_options(here), [Location("output", place)], shared_disk=False)


def manager(host: str, cores: int) -> dict[str, Any]:
    return {"path": f"pekko.tcp://flink@{host}:4711/user/rpc/taskmanager_0", "hardware": {"cpuCores": cores}}


def test_task_managers_of_one_host_share_its_cores() -> None:
    assert threads_by_slot([]) is None
    assert threads_by_slot([manager("a", 8), manager("b", 16)]) == 8
    assert threads_by_slot([manager("a", 8), manager("a", 8), manager("b", 16)]) == 4
    assert threads_by_slot([manager("a", 2)] * 4) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 64)), min_size=1, max_size=9))
def test_threads_never_exceed_any_hosts_cores(hosts: list[tuple[str, int]]) -> None:
    threads = threads_by_slot([manager(*host) for host in hosts])
    assert threads is not None
    assert threads >= 1
    for host, cores in hosts:
        here = sum(name == host for name, _ in hosts)
        assert threads * here <= max(cores, here)


@pytest.fixture
def flink_rest() -> Iterator[str]:
    """Flink's REST service as far as a launcher asks it: five slots on two hosts."""
    answers = {
        "/overview": {"slots-total": 5},
        "/config": {"flink-version": "1.19.1"},
        "/taskmanagers": {"taskmanagers": [manager("a", 8), manager("b", 8), manager("b", 8)]},
    }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[self.path]).encode())

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_flink_clusters_slots_are_the_workers_unless_parallelism_says_otherwise(flink_rest: str) -> None:
    master = ["--runner=FlinkRunner", f"--flink_master={flink_rest}"]
    options = pipeline_options(master)
    fit_to_cluster(options, master)
    assert workers_of(options) == Workers(5, 4)
    fewer = pipeline_options([*master, "--parallelism=2"])
    fit_to_cluster(fewer, master)
    assert workers_of(fewer) == Workers(2, 4)


def test_the_job_server_is_of_the_flinks_own_version(flink_rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(*more: str) -> object:
        arguments = ["--runner=FlinkRunner", f"--flink_master={flink_rest}", *more]
        options = pipeline_options(arguments)
        fit_to_cluster(options, arguments)
        return options.get_all_options()["flink_version"]

    assert version() == "1.19"
    assert version("--flink_version=2.0") == "2.0"
    monkeypatch.setattr(FlinkRunnerOptions, "PUBLISHED_FLINK_VERSIONS", ["2.2"])
    with pytest.raises(CommandError, match=r"is 1\.19\.1.*has job servers for 2\.2.*--flink_version.*--flink_job_server_jar"):
        version()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--runner=FlinkRunner", "--flink_master=far:8081"], "PROCESS"),
        (["--runner=SparkRunner", "--spark_master_url=spark://far:7077"], "PROCESS"),
        (["--runner=FlinkRunner", "--flink_master=far:8081", "--environment_type=EXTERNAL"], "EXTERNAL"),
        (["--runner=FlinkRunner"], None),
        (["--runner=SparkRunner", "--spark_master_url=local[2]"], None),
        (["--runner=PrismRunner"], None),
    ],
)
def test_workers_of_a_cluster_are_our_program_unless_others_are_asked_for(
    arguments: list[str], environment: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = pipeline_options(arguments)
    assert options.get_all_options()["environment_type"] == environment
    preflight.check_workers(options, arguments)
    assert ("elmo-store-worker" in capsys.readouterr().err) == (environment == "PROCESS")


def test_a_lost_task_is_tried_eight_times_on_spark_unless_a_number_is_given() -> None:
    def properties(*more: str) -> object:
        return pipeline_options(["--runner=SparkRunner", *more]).get_all_options()["job_server_jvm_properties"]

    assert properties() == properties() == ["-Dspark.task.maxFailures=8"]
    given = "-Dspark.task.maxFailures=2"
    assert properties(f"--job_server_jvm_properties={given}") == [given]


@pytest.mark.parametrize(
    "runner", ["--runner=FlinkRunner --flink_master=far:8081", "--runner=PortableRunner --job_endpoint=far:1"]
)
def test_beams_stock_image_is_refused_with_the_two_lines_that_work(runner: str) -> None:
    arguments = [*runner.split(), "--environment_type=DOCKER"]
    with pytest.raises(CommandError, match=r"(?s)no elmo-store.*PROCESS.*elmo-store-worker.*EXTERNAL.*HOST:PORT") as refused:
        preflight.check_workers(pipeline_options(arguments), arguments)
    assert refused.value.code == Exit.BAD_USAGE
    own = [*arguments, "--environment_config=mine:1"]
    preflight.check_workers(pipeline_options(own), own)


def test_dataflow_has_one_process_a_machine_unless_one_a_cpu_is_asked_for() -> None:
    one = pipeline_options(["--runner=DataflowRunner", "--max_num_workers=7"])
    assert workers_of(one) == Workers(7, None)
    assert one.get_all_options()["experiments"] == ["no_use_multiple_sdk_containers"]
    many = pipeline_options(["--runner=DataflowRunner", "--max_num_workers=7", "--experiments=use_multiple_sdk_containers"])
    assert workers_of(many) == Workers(7, 1)


JAVA = """Pipeline BeamApp failed in state FAILED: java.lang.RuntimeException: org.apache.flink.JobExecutionException: Job failed.
\tat org.apache.beam.A.run(A.java:1)
Caused by: java.lang.RuntimeException: Error received from SDK harness for instruction 4: Traceback (most recent call last):
  File "x.py", line 4, in f
    raise ValueError("a part is missing")
ValueError: a part is missing [while running 'EmbedCorpus/Plan']

\tat org.apache.beam.B.run(B.java:2)
\t... 1 more"""


def test_a_workers_exception_is_what_the_user_is_told() -> None:
    assert worker_error(JAVA) == "ValueError: a part is missing [while running 'EmbedCorpus/Plan']"


def test_without_a_workers_exception_the_first_line_and_the_last_cause_are_told() -> None:
    text = "Pipeline J failed in state FAILED: java.lang.E: x\n\tat a.B\nCaused by: java.net.ConnectException: refused\n\tat c.D"
    assert worker_error(text).splitlines() == [
        "Pipeline J failed in state FAILED: java.lang.E: x",
        "Caused by: java.net.ConnectException: refused",
    ]
