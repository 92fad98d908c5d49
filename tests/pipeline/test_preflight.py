"""Preflight of a runner: what is refused before anything is written, what an engine is asked, what its failures say."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.preflight import check_reach
from pipeline.jobs.run import worker_error
from pipeline.runners.beam_options import n_workers, pipeline_options, runner_name, split_arguments
from pipeline.runners.flink import fit_to_cluster
from tests.pipeline.conftest import Command


@pytest.mark.parametrize(
    ("given", "beams"),
    [
        (
            ["a", "--runner=FlinkRunner", "--files_to_stage=x"],
            ["--runner=FlinkRunner", "--files_to_stage=x"],
        ),  # a job service's
        (["a", "--runner=FlinkRunner", "--flink_mastr=x"], ["--runner=FlinkRunner"]),
        (["a", "--runner=FlinkRunner", "--output=b"], ["--runner=FlinkRunner"]),
    ],
)
def test_what_is_neither_beams_nor_a_job_services_stays_ours(
    given: list[str], beams: list[str]
) -> None:
    assert split_arguments(given)[1] == beams


@pytest.mark.parametrize(("more", "millis"), [([], 60_000), (["--environment_type=EXTERNAL"], 0)])
def test_on_spark_a_worker_is_kept_where_its_executor_ends_with_it(
    more: list[str], millis: int
) -> None:
    options = pipeline_options(
        ["--runner=SparkRunner", "--spark_master_url=spark://far:7077", *more]
    )
    assert options.get_all_options()["environment_cache_millis"] == millis


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("flink", "FlinkRunner"),
        ("DATAFLOWRUNNER", "DataflowRunner"),
        ("apache_beam.runners.portability.flink_runner.FlinkRunner", "FlinkRunner"),
    ],
)
def test_a_runner_has_one_name_however_it_is_spelled(spelled: str, name: str) -> None:
    assert runner_name(pipeline_options([f"--runner={spelled}"])) == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--runner=NoSuchRunner"], "NoSuchRunner"),
        (
            [
                "--runner=PortableRunner",
                "--job_endpoint=localhost:1",
                "--environment_type=LOOPBACK",
            ],
            "nothing answers at localhost:1:",
        ),
        (["--runner=FlinkRunner", "--flink_master=localhost:1"], "no Flink answers"),
        (
            ["--runner=SparkRunner", "--spark_master_url=spark://localhost:1,localhost:2"],
            "nothing answers at localhost:1,localhost:2",
        ),
        (
            ["--runner=SparkRunner", "--spark_job_server_jar=/no/such.jar"],
            "give --job_endpoint=HOST:PORT, or its program: --flink_job_server_jar, --spark_job",
        ),
        (["--runner=PrismRunner", "--prism_location=/no/such/prism"], "--prism_location"),
        (["--no-wait"], "ends with this command"),
        (["--runner=PortableRunner"], "give --job_endpoint=HOST:PORT"),
        (["--runner=PortableRunner", "--job_endpoint=embed"], "nothing answers at embed"),
        (
            ["--runner=FlinkRunner", "--environment_type=DOCKER"],
            "Beam's own image has no elmo-store",
        ),
        (["--runner=SparkRunner", "--environment_type=EXTERNAL"], "external_service_address"),
        (["--runner=FlinkRunner", "--environment_type=NONE"], "Unknown environment type: NONE"),
        (
            ["--runner=FlinkRunner", "--environment_type=PROCESS", "--environment_config=no JSON"],
            "can't be used (Expecting value",
        ),
        (
            ["--runner=FlinkRunner", "--environment_type=LOOPBACK", "--environment_config=x"],
            "not compatible",
        ),
        (["--runner=PrismRunner", "--setup_file=no/such/setup.py"], "no/such/setup.py"),
    ],
)
def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(
    options: list[str],
    words: str,
    embed: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert embed(tmp_path / "store", *options) in (Exit.BAD_USAGE, Exit.BAD_LOCATION)
    err = capsys.readouterr().err
    assert words in err
    assert "rerun the same command to resume" not in err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("place", ["/data/store", "store", "file:///data", "memory://store"])
def test_paths_of_this_machine_are_refused_for_workers_on_others(place: str) -> None:
    remote = pipeline_options(["--runner=FlinkRunner", "--flink_master=cluster.example:8081"])
    with pytest.raises(CommandError, match="a path of this machine"):
        check_reach(remote, [Location("output", place)], shared_disk=False)
    check_reach(remote, [Location("output", place)], shared_disk=True)
    check_reach(remote, [Location("output", "s3://bucket/store")], shared_disk=False)
    for here in (
        ["--runner=PrismRunner"],
        ["--runner=SparkRunner", "--spark_master_url=local[2]"],
        [],
    ):
        check_reach(pipeline_options(here), [Location("output", place)], shared_disk=False)


@pytest.fixture
def flink_rest() -> Iterator[str]:
    """Flink's REST service as far as a launcher asks it before a job."""
    answers = {"/overview": {"slots-total": 5}, "/config": {"flink-version": "1.19.1"}}

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


def test_a_flink_clusters_slots_are_the_workers_unless_parallelism_says_otherwise(
    flink_rest: str,
) -> None:
    master = ["--runner=FlinkRunner", f"--flink_master={flink_rest}"]
    options = pipeline_options(master)
    fit_to_cluster(options, master)
    assert n_workers(options) == 5
    fewer = pipeline_options([*master, "--parallelism=2"])
    fit_to_cluster(fewer, master)
    assert n_workers(fewer) == 2


def test_the_job_server_is_of_the_flinks_own_version(flink_rest: str) -> None:
    def version(*more: str) -> object:
        arguments = ["--runner=FlinkRunner", f"--flink_master={flink_rest}", *more]
        options = pipeline_options(arguments)
        fit_to_cluster(options, arguments)
        return options.get_all_options()["flink_version"]

    assert version() == "1.19"
    assert version("--flink_version=2.0") == "2.0"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--runner=FlinkRunner", "--flink_master=far:8081"], "PROCESS"),
        (["--runner=SparkRunner", "--spark_master_url=spark://far:7077"], "PROCESS"),
        (
            ["--runner=FlinkRunner", "--flink_master=far:8081", "--environment_type=EXTERNAL"],
            "EXTERNAL",
        ),
        (["--runner=FlinkRunner"], "LOOPBACK"),
        (["--runner=SparkRunner", "--spark_master_url=local[2]"], "LOOPBACK"),
        (["--runner=PortableRunner", "--job_endpoint=far:1"], "PROCESS"),
        (["--runner=PrismRunner"], "LOOPBACK"),
    ],
)
def test_workers_of_a_cluster_are_our_program_unless_others_are_asked_for(
    arguments: list[str], environment: str
) -> None:
    """Beam's own choice is its image, which has no elmo-store."""
    options = pipeline_options(arguments).get_all_options()
    assert options["environment_type"] == environment
    assert options["environment_config"] == (
        '{"command": "elmo-store-worker"}' if environment == "PROCESS" else None
    )


def test_dataflow_has_one_process_a_machine() -> None:
    options = pipeline_options(
        ["--runner=DataflowRunner", "--max_num_workers=7", "--experiments=mine"]
    )
    assert n_workers(options) == 7
    assert options.get_all_options()["experiments"] == ["no_use_multiple_sdk_containers", "mine"]


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
