"""A job service is ended with the command that started it, however that ends."""

import io
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.runner import PipelineState

from pipeline.jobs.run import worker_error
from pipeline.runners.beam_options import pipeline_options
from pipeline.runners.job_service import pass_on
from pipeline.runners.submission import SubmittedJob

MISSING = 'Cannot run program "w": error=2, No such file or directory'
SERVICE = """#!{python}
import os, socket, sys, time
listener = socket.create_server(("localhost", int(sys.argv[sys.argv.index("--job_port") + 1])))
open({pid!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""
LAUNCHER = """
import sys, time
from pipeline.runners.beam_options import pipeline_options
from pipeline.runners.job_service import job_service
with job_service(pipeline_options(["--runner=PrismRunner", "--prism_location=" + sys.argv[1]])):
    print("answers", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_command_leaves_no_job_service_behind(tmp_path: Path) -> None:
    program, pid = tmp_path / "prism", tmp_path / "pid"
    program.write_text(SERVICE.format(python=sys.executable, pid=str(pid)))
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(program)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        said = launcher.stdout.readline()
        service = psutil.Process(int(pid.read_text()))
        launcher.kill()
    try:
        assert said == "answers\n"
        service.wait(timeout=30)
    finally:
        with suppress(psutil.NoSuchProcess):
            service.kill()


def test_an_executor_that_spark_loses_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = b"26/01/01 ERROR TaskSchedulerImpl: Lost executor 1 on node-7: Command exited with code 137\n"
    pass_on(io.BytesIO(b"INFO a\n" + line), deque())
    said = "the engine lost executor 1 on node-7: Command exited with code 137; its tasks are tried again elsewhere\n"
    assert capsys.readouterr().err == said


class Failed:
    """What Beam's client has of a job that failed: its service's messages, of which it raises the last."""

    state = PipelineState.FAILED

    def __init__(self, *said: str) -> None:
        messages = [beam_job_api_pb2.JobMessage(message_text=text) for text in said]
        self._messages = [
            beam_job_api_pb2.JobMessagesResponse(message_response=message) for message in messages
        ]

    def wait_until_finish(self) -> None:
        raise RuntimeError(self._messages[-1].message_response.message_text)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            [
                f"Failed\n\tat X\nCaused by: java.io.IOException: {MISSING}\n\tat Y",
                "java.io.IOException: error=2, No such file",
            ],
            MISSING,
        ),
        (
            ["Traceback (most recent call last):\n  File x\nValueError: bad\n\n\tat X", "Failed"],
            "ValueError: bad",
        ),
    ],
)
def test_the_cause_is_told_from_all_that_a_job_service_says(said: list[str], told: str) -> None:
    job = SubmittedJob(Failed(*said), pipeline_options(["--runner=SparkRunner"]), "job-1")
    with pytest.raises(RuntimeError) as raised:
        job.wait()
    assert worker_error(str(raised.value)) == told
