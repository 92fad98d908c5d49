"""The job service that a portable runner submits to: started before anything is written, ended with the job.

Beam would start it while the pipeline is submitted, in our own process group: its failures would come after the store's start
was written, Ctrl-C would end it before the job could be cancelled, and it would outlive a SIGKILL of this process.
"""

import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from apache_beam.options.pipeline_options import (
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)
from apache_beam.runners.runner import create_runner

from elmo_store.storage.process import held, scratch_folder
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.runners.beam_options import LauncherOptions, runner_name

REMEDY = "give --job_endpoint=HOST:PORT, or its program: --flink_job_server_jar, --spark_job_server_jar or --prism_location"
START_SECONDS, ANSWER_SECONDS = 120.0, 5.0
LOST_EXECUTOR = re.compile(r"Lost executor (\S+) on ([^\s:]+): (.*)")  # as Spark's driver logs it

log = logging.getLogger("apache_beam.job_service")  # shown where Beam's own log is


@contextmanager
def job_service(options: PipelineOptions) -> Iterator[None]:
    """A job service that answers, its address in ``options`` (``--job_endpoint``); one that we started is ended at the end.

    CommandError (bad location) if none can be had; names the remedy.
    """
    portable, name = options.view_as(PortableOptions), runner_name(options)
    if portable.job_endpoint is not None:
        _check_answers("--job_endpoint", portable.job_endpoint)
        yield
        return
    scheme, _, masters = str(options.view_as(SparkRunnerOptions).spark_master_url).partition("://")
    if (
        name == "SparkRunner" and scheme == "spark"
    ):  # which its driver would try for a minute, once the store is started
        _check_answers("--spark_master_url", masters)
    with scratch_folder() as folder:
        server = options.view_as(JobServerOptions)
        server.artifacts_dir = server.artifacts_dir or str(folder)
        with _started(name, options) as portable.job_endpoint:
            options.view_as(LauncherOptions).launcher_drives = (
                name != "FlinkRunner"
            )  # whose JobManager does
            yield


@contextmanager
def _started(name: str, options: PipelineOptions) -> Iterator[str]:
    say(f"starting Beam's job server for {name} …")
    for end in [
        time.monotonic() + START_SECONDS
    ] * 2:  # another process may take the port that Beam chose
        try:
            runner: Any = create_runner(name)
            server = runner.default_job_server(options)._job_server  # Beam's
            command, endpoint = (
                server.subprocess_cmd_and_endpoint()
            )  # fetched by Beam where it has to be and can be
        except (
            Exception
        ) as error:  # downloads, versions, files: whatever it is, the remedy is the same
            raise _no_server(name, error) from error
        port, said = endpoint.rpartition(":")[2], deque[str](maxlen=1)
        with held([str(part).replace("{{PORT}}", port) for part in command]) as output:
            reader = threading.Thread(
                target=pass_on, args=(output, said), name="job service's log", daemon=True
            )
            reader.start()
            while (
                not (answers := _answers(endpoint)) and reader.is_alive() and time.monotonic() < end
            ):
                time.sleep(0.1)
            if answers:
                yield endpoint
                return
    raise _no_server(name, "".join(said))


def _no_server(name: str, problem: object) -> CommandError:
    return CommandError(
        Exit.BAD_LOCATION, f"{name}: Beam's job server can't be started ({problem}): {REMEDY}"
    )


def _check_answers(option: str, endpoints: str) -> None:
    """CommandError (bad location) unless one of ``endpoints``, HOST:PORT with commas between, takes a connection."""
    if not any(map(_answers, endpoints.split(","))):
        raise CommandError(
            Exit.BAD_LOCATION, f"nothing answers at {endpoints}: start it there, or mend {option}"
        )


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS),
    ):
        return True
    return False


def pass_on(stream: IO[bytes], said: deque[str]) -> None:
    """Log what the service says, keep its last words in ``said``, and tell of executors that Spark's driver lost."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        log.info("%s", text)
        said.append(text)
        if lost := LOST_EXECUTOR.search(text):
            say(
                f"the engine lost executor {lost[1]} on {lost[2]}: {lost[3]}; its tasks are tried again elsewhere"
            )
