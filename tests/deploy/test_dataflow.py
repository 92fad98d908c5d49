"""The real DataflowRunner, its requests caught on loopback: what a job asks for, what preflight refuses, how a job ends.

Not shown by any of this: fusion by the service, a GPU's availability, the pull of an image.
"""

import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs import runner
from pipeline.main import main
from tests.deploy.conftest import Arguments, started
from tests.store.support import make_store

pytest.importorskip(
    "google.cloud.dataflow",
    reason="the Dataflow client is not installed: pip install '.[dataflow]'",
)

from tests.deploy.cloud import JOB_ID, Cloud, cloud_server  # it needs what the extra brings

IMAGE = "europe-docker.pkg.dev/my-project/elmo/elmo-store-cuda:0.1.0"
ACCELERATOR = "type:nvidia-l4;count:1;machine_type:g2-standard-8;install-nvidia-driver"
CANCELLED = 5  # of the API's JobState
SECRET = "hunter2-that-nobody-may-see"


def beam_options(cloud: Cloud) -> list[str]:
    return [
        "--runner=DataflowRunner", "--project=my-project", "--region=europe-west1", "--no_auth",
        "--temp_location=gs://my-bucket/temp", "--staging_location=gs://my-bucket/staging",
        f"--dataflow_endpoint={cloud.endpoint}", f"--sdk_container_image={IMAGE}", "--sdk_location=container",
    ]  # fmt: skip


def run(cloud: Cloud, home: Path, arguments: Sequence[str]) -> Any:
    return started(
        [*arguments, *beam_options(cloud)],
        {**cloud.environment(str(home)), "AWS_SECRET_ACCESS_KEY": SECRET},
    )


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with cloud_server() as cloud, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{cloud.port}")
        yield cloud


@pytest.fixture(scope="module")
def submitted(
    cloud: Cloud, embed_arguments: Arguments, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Cloud, int, str]:
    """A job with a GPU, submitted and left: what the services got, the exit code, what was printed."""
    home = tmp_path_factory.mktemp("home") / "Of_the user"
    home.mkdir()
    gpu = ["--device", "cuda", "--accelerator", ACCELERATOR, "--shared-disk", "--no-wait"]
    arguments = [
        argument for argument in embed_arguments(home / "store", *gpu) if argument != "--quiet"
    ]
    process = run(cloud, home, arguments)
    out, err = process.communicate(timeout=240)
    assert process.returncode == Exit.COMPLETE, err
    return cloud, process.returncode, out


def pipeline_of(cloud: Cloud) -> Any:
    from apache_beam.portability.api import beam_runner_api_pb2

    (staged,) = [body for name, body in cloud.objects.items() if name.endswith("pipeline.pb")]
    return beam_runner_api_pb2.Pipeline.FromString(staged)


@pytest.mark.slow
def test_only_the_stage_that_embeds_asks_for_a_gpu_and_every_stage_runs_in_our_image(
    submitted: tuple[Cloud, int, str],
) -> None:
    from apache_beam.portability.api import beam_runner_api_pb2

    graph = pipeline_of(submitted[0])
    leaves = [
        t for t in graph.components.transforms.values() if t.environment_id and not t.subtransforms
    ]
    hints = {
        t.unique_name: graph.components.environments[t.environment_id].resource_hints
        for t in leaves
    }
    with_gpu = {name for name, hint in hints.items() if "beam:resources:accelerator:v1" in hint}
    assert with_gpu
    assert all("/Shards/Embed" in name for name in with_gpu)
    assert not any(
        "Tokenise" in name or "Plan" in name or "Number" in name or "Finish" in name
        for name in with_gpu
    )
    for name in with_gpu:
        assert hints[name]["beam:resources:accelerator:v1"].decode() == ACCELERATOR
        assert int(hints[name]["beam:resources:min_ram_bytes:v1"]) >= 10 * 10**9
    for environment in graph.components.environments.values():
        assert (
            beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image
            == IMAGE
        )
    stages = " ".join(t.unique_name for t in leaves)
    assert all(stage in stages for stage in ("Tokenise", "Plan", "Number", "Embed", "Finish"))


@pytest.mark.slow
def test_one_process_and_thread_a_machine_nothing_but_descriptions_staged_and_no_secret(
    submitted: tuple[Cloud, int, str],
) -> None:
    cloud, _, _ = submitted
    (job,) = cloud.jobs
    assert "no_use_multiple_sdk_containers" in job["environment"]["experiments"]
    assert job["environment"]["workerPools"][0]["numThreadsPerWorker"] == 1
    names = {name.rpartition("/")[2] for name in cloud.objects}
    assert names == {"pipeline.pb", "submission_environment_dependencies.txt"}
    assert {
        package["name"] for package in job["environment"]["workerPools"][0]["packages"]
    } <= names
    sent = [str(job).encode(), *cloud.objects.values()]
    assert not any(SECRET.encode() in body for body in sent)


@pytest.mark.slow
def test_a_job_is_called_by_its_run_and_no_wait_prints_its_id_and_console_address(
    submitted: tuple[Cloud, int, str],
) -> None:
    cloud, _, out = submitted
    assert re.fullmatch("elmo-store-embed-[0-9a-f]{8}", cloud.jobs[0]["name"])
    assert f"job {JOB_ID}\n" in out
    assert (
        f"https://console.cloud.google.com/dataflow/jobs/europe-west1/{JOB_ID}?project=my-project"
        in out
    )
    assert "elmo-store watch" in out


@pytest.mark.slow
def test_ctrl_c_cancels_the_job(embed_arguments: Arguments, tmp_path: Path) -> None:
    with cloud_server() as cloud:
        cloud.state = "JOB_STATE_RUNNING"
        process = run(cloud, tmp_path, embed_arguments(tmp_path / "store", "--shared-disk"))
        end = time.monotonic() + 120
        while not any(
            request.startswith("GET") and JOB_ID in request for request in cloud.requests
        ):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == Exit.INCOMPLETE, err
        assert f"cancelling job {JOB_ID}" in err
        assert len(cloud.requested_states) == 1
        assert cloud.requested_states[0] in ("JOB_STATE_CANCELLED", CANCELLED)


def pooling(folder: Path) -> list[str]:
    """``mix --pool`` of a small store in ``folder`` to ``out`` there."""
    make_store(str(folder / "store"))
    (folder / "w.json").write_text('{"w": [0.1, 0.5, -0.2], "gamma": 1.5}')
    given = ["--weights", str(folder / "w.json"), "--pool", "mean", "--output", str(folder / "out")]
    return ["mix", str(folder / "store"), *given, "--shared-disk", "--quiet"]


@pytest.mark.slow
def test_pooling_submits_descriptions_alone_and_says_that_nothing_was_made(tmp_path: Path) -> None:
    with cloud_server() as cloud:
        _, err = run(cloud, tmp_path, pooling(tmp_path)).communicate(timeout=240)
        assert (
            "was not made: rerun the same command" in err
        )  # the stand-in says that the job is done, and has no workers
        (job,) = cloud.jobs
        assert re.fullmatch("elmo-store-mix-[0-9a-f]{8}", job["name"])
        stages = " ".join(
            transform.unique_name for transform in pipeline_of(cloud).components.transforms.values()
        )
        assert "Make" in stages
        sent = [str(job).encode(), *cloud.objects.values()]
        assert not any(SECRET.encode() in body for body in sent)
        assert {name.rpartition("/")[2] for name in cloud.objects} == {
            "pipeline.pb",
            "submission_environment_dependencies.txt",
        }


def test_pooling_that_would_only_be_prepared_is_refused_before_anything_is_written(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = refused(
        capsys,
        [*pooling(tmp_path), *beam_options(cloud), "--template_location=gs://my-bucket/template"],
    )
    assert code == Exit.BAD_USAGE
    assert "--pool takes its files from workers while they run" in err
    assert not (tmp_path / "out").exists()


def refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_what_dataflow_needs_is_asked_for_before_anything_is_written(
    embed_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = embed_arguments(tmp_path / "store", "--shared-disk", "--runner=DataflowRunner")
    code, err = refused(capsys, command)
    assert code == Exit.BAD_USAGE
    assert "--temp_location is missing" in err
    code, err = refused(
        capsys, [*command, "--temp_location=gs://my-bucket/temp", f"--sdk_container_image={IMAGE}"]
    )
    assert code == Exit.BAD_USAGE
    assert "Missing required option: project." in err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--dry_run=True", "--dry-run (with a dash)"),
        ("--sdk_container_image=", "Google's own image, which has no elmo-store.*--setup_file"),
        (
            "--sdk_container_image=apache/beam_python3.9_sdk:2.60.0",
            "has Python 3.9 with Apache Beam 2.60.0, this command",
        ),
    ],
)
def test_what_the_service_or_its_workers_would_refuse_is_refused_before_anything_is_written(
    cloud: Cloud,
    embed_arguments: Arguments,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    problem: str,
) -> None:
    arguments = embed_arguments(
        tmp_path / "store", *beam_options(cloud), "--shared-disk", "--device", "cuda", option
    )
    code, err = refused(capsys, arguments)
    assert code == Exit.BAD_USAGE
    assert re.search(re.escape(problem).replace(r"\.\*", ".*"), err)
    assert not (tmp_path / "store").exists()


def test_storage_that_is_not_reached_is_told_before_anything_is_written(
    cloud: Cloud,
    embed_arguments: Arguments,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setattr(
        runner,
        "PipelineOptionsValidator",
        lambda *_: pytest.fail("Beam would ask the storage, for minutes"),
    )
    code, err = refused(
        capsys, embed_arguments(tmp_path / "store", *beam_options(cloud), "--shared-disk")
    )
    assert code == Exit.BAD_LOCATION
    assert (
        "the --temp_location gs://my-bucket/temp can't be used: 127.0.0.1:1 does not answer" in err
    )
    assert not (tmp_path / "store").exists()


def test_a_local_output_is_refused_because_workers_are_elsewhere(
    cloud: Cloud, embed_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = refused(capsys, embed_arguments(tmp_path / "store", *beam_options(cloud)))
    assert code == Exit.BAD_LOCATION
    assert f"{tmp_path}/store is a path of this machine" in err
    assert not (tmp_path / "store").exists()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.internal.apiclient", None)
    with (
        pytest.raises(CommandError, match=r"pip install '\.\[dataflow\]'"),
        runner.opened(["--runner=DataflowRunner"]),
    ):
        pass
