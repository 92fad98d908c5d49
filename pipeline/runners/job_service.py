"""The job service that a portable runner submits to: started before anything is written, asked what it knows, ended with the job.

Beam would start it while the pipeline is submitted, in our own process group: its failures would come after the store's start
was written, and Ctrl-C would end it before the job could be cancelled.
"""

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.spark_runner import SparkJarJobServer

from elmo_store.storage.process import ended_with_this_process, scratch_folder
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.runners.beam_options import runner_name

SERVERS: dict[str, Callable[[PipelineOptions], Any]] = {
    "FlinkRunner": FlinkJarJobServer,
    "PrismRunner": PrismJobServer,
    "SparkRunner": SparkJarJobServer,
}
REMEDIES = {
    "FlinkRunner": "give --flink_job_server_jar=PATH or --job_endpoint=HOST:PORT",
    "PrismRunner": "give --prism_location=PATH, or put `prism` into PATH, see docs/deploy.md",
    "SparkRunner": "give --spark_job_server_jar=PATH or --job_endpoint=HOST:PORT",
}
START_SECONDS = 120.0
STOP_SECONDS = 10.0
ANSWER_SECONDS = 30.0
LAST_LINES = 12
MESSAGES_THREAD = "wait_until_finish_read"  # Beam's (2.77)
LOST_EXECUTOR = re.compile(r"Lost executor (\S+) on ([^\s:]+): (.*)")  # as Spark's driver logs it

log = logging.getLogger("apache_beam.job_service")  # shown where Beam's own log is


@contextmanager
def job_service(options: PipelineOptions) -> Iterator[None]:
    """A job service that answers, its address in ``options`` (``--job_endpoint``); one that we started is ended at the end.

    CommandError (bad location) if none can be had; names what it said last and the remedy.
    """
    portable = options.view_as(PortableOptions)
    name = runner_name(options)
    if portable.job_endpoint is None and name in SERVERS and not _submits_uber_jar(options):
        with messages_end_quietly(), scratch_folder() as folder:
            server_options = options.view_as(JobServerOptions)
            server_options.artifacts_dir = server_options.artifacts_dir or str(folder)
            with _started(name, options) as endpoint:
                portable.job_endpoint = endpoint
                yield
        return
    if portable.job_endpoint not in (None, "embed"):
        _wait_for(str(portable.job_endpoint), lambda: None, ANSWER_SECONDS)
    yield


def declared_options(options: PipelineOptions) -> set[str] | None:
    """Names of the options that the job service itself declares; None if there is no service to ask."""
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint in (None, "embed"):
        return None
    try:
        with grpc.insecure_channel(endpoint) as channel:
            stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            reply = stub.DescribePipelineOptions(request, timeout=ANSWER_SECONDS, wait_for_ready=True)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return set()
        raise CommandError(
            Exit.BAD_LOCATION, f"the job service at {endpoint} does not answer: {error.details()}: look at --job_endpoint"
        ) from error
    return {option.name for option in reply.options}


def _submits_uber_jar(options: PipelineOptions) -> bool:
    """Whether Beam sends the job to the engine's REST service as one jar: then there is no job service."""
    flink, spark = options.view_as(FlinkRunnerOptions), options.view_as(SparkRunnerOptions)
    return bool(flink.flink_submit_uber_jar if runner_name(options) == "FlinkRunner" else spark.spark_submit_uber_jar)


@contextmanager
def messages_end_quietly() -> Iterator[None]:
    """Spare the screen the traceback of Beam's thread that reads a job's messages, which ends when the job service does."""
    before = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if error.thread is None or error.thread.name != MESSAGES_THREAD:
            before(error)

    threading.excepthook = hook
    try:
        yield
    finally:
        for thread in threading.enumerate():
            if thread.name == MESSAGES_THREAD:
                thread.join(STOP_SECONDS)
        threading.excepthook = before


@contextmanager
def _started(name: str, options: PipelineOptions) -> Iterator[str]:
    command, endpoint = _command(name, options)
    log.info("starting the job service: %s", " ".join(command))
    say(f"starting Beam's job server for {name} …")
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us: the job is cancelled through this service
        )  # fmt: skip
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{name}: its job service can't be started: {error}: {REMEDIES[name]}") from error
    end = partial(_end, process)
    atexit.register(end)
    last: deque[str] = deque(maxlen=LAST_LINES)
    threading.Thread(target=pass_on, args=(process.stdout, last), name="job service's log", daemon=True).start()

    def check() -> None:
        if process.poll() is not None:
            said = "\n".join(last)
            raise CommandError(
                Exit.BAD_LOCATION, f"{name}: its job service ended with {process.returncode}: {REMEDIES[name]}\n{said}"
            )

    try:
        with ended_with_this_process(process.pid):
            _wait_for(endpoint, check, START_SECONDS)
            yield endpoint
    finally:
        end()
        atexit.unregister(end)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its group; once more is harmless."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _command(name: str, options: PipelineOptions) -> tuple[Sequence[str], str]:
    """The command line and address of the runner's job service; fetched by Beam where it has to be and can be."""
    try:
        command, endpoint = SERVERS[name](options).subprocess_cmd_and_endpoint()
    except Exception as error:  # downloads, versions, files: whatever it is, the remedy is the same
        raise CommandError(
            Exit.BAD_LOCATION, f"{name}: Beam can't get the program of its job service ({error}): {REMEDIES[name]}"
        ) from error
    port = endpoint.rpartition(":")[2]
    return [str(part).replace("{{PORT}}", port) for part in command], endpoint


def _wait_for(endpoint: str, check: Callable[[], None], seconds: float) -> None:
    host, _, port = endpoint.rpartition(":")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check()
        with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
            return
        time.sleep(0.1)
    raise CommandError(
        Exit.BAD_LOCATION, f"no job service answers at {endpoint} ({seconds:.0f} s): start it, or mend --job_endpoint=HOST:PORT"
    )


def pass_on(stream: "IO[bytes]", last: deque[str]) -> None:
    """Log what the service says; keep its ``last`` lines, and tell of executors that Spark's driver lost."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        last.append(text)
        log.info("%s", text)
        if lost := LOST_EXECUTOR.search(text):
            say(f"the engine lost executor {lost[1]} on {lost[2]}: {lost[3]}; its tasks are tried again elsewhere")
