"""The job service that a portable runner submits to: started before anything is written, ended with the job.

Beam would start it while the pipeline is submitted, in our own process group: its failures would come after the store's start
was written, Ctrl-C would end it before the job could be cancelled, and it would outlive a SIGKILL of this process.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions, SparkRunnerOptions
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.spark_runner import SparkJarJobServer

from elmo_store.storage.process import ended_with_this_process, scratch_folder
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.runners.beam_options import LauncherOptions, runner_name

SERVERS: dict[str, tuple[Callable[[PipelineOptions], Any], str]] = {  # Beam's, and the option that names its program
    "FlinkRunner": (FlinkJarJobServer, "--flink_job_server_jar"),
    "PrismRunner": (PrismJobServer, "--prism_location"),
    "SparkRunner": (SparkJarJobServer, "--spark_job_server_jar"),
}
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS, MASTER_SECONDS = 120.0, 10.0, 30.0, 5.0
LAST_LINES = 12
MESSAGES_THREAD = "wait_until_finish_read"  # Beam's (2.77)
LOST_EXECUTOR = re.compile(r"Lost executor (\S+) on ([^\s:]+): (.*)")  # as Spark's driver logs it

log = logging.getLogger("apache_beam.job_service")  # shown where Beam's own log is


@contextmanager
def job_service(options: PipelineOptions) -> Iterator[None]:
    """A job service that answers, its address in ``options`` (``--job_endpoint``); one that we started is ended at the end.

    CommandError (bad location) if none can be had; names what it said last and the remedy.
    """
    portable, name = options.view_as(PortableOptions), runner_name(options)
    if portable.job_endpoint is None and name in SERVERS:
        scheme, _, masters = str(options.view_as(SparkRunnerOptions).spark_master_url).partition("://")
        if name == "SparkRunner" and scheme == "spark":  # which its driver would try for a minute, once the store is started
            _wait_for("--spark_master_url", masters, lambda: None, MASTER_SECONDS)
        with messages_end_quietly(), scratch_folder() as folder:
            server = options.view_as(JobServerOptions)
            server.artifacts_dir = server.artifacts_dir or str(folder)
            with _started(name, options) as endpoint:
                portable.job_endpoint = endpoint
                options.view_as(LauncherOptions).launcher_drives = name != "FlinkRunner"  # whose JobManager does
                yield
        return
    if portable.job_endpoint not in (None, "embed"):
        _wait_for("--job_endpoint", str(portable.job_endpoint), lambda: None, ANSWER_SECONDS)
    yield


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
    say(f"starting Beam's job server for {name} …")
    last: deque[str] = deque(maxlen=LAST_LINES)
    server, program = SERVERS[name]
    try:
        command, endpoint = server(options).subprocess_cmd_and_endpoint()  # fetched by Beam where it has to be and can be
        port = endpoint.rpartition(":")[2]
        process = subprocess.Popen(
            [str(part).replace("{{PORT}}", port) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,  # Ctrl-C is for us: the job is cancelled through this service
        )  # fmt: skip
    except Exception as error:  # downloads, versions, files: whatever it is, the remedy is the same
        raise _no_server(name, program, error, last) from error
    threading.Thread(target=pass_on, args=(process.stdout, last), name="job service's log", daemon=True).start()

    def check() -> None:
        if process.poll() is not None:
            raise _no_server(name, program, f"it ended with {process.returncode}", last)

    try:
        with ended_with_this_process(process.pid):
            _wait_for("--job_endpoint", endpoint, check, START_SECONDS)
            yield endpoint
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _no_server(name: str, program: str, problem: object, last: deque[str]) -> CommandError:
    text = f"{name}: Beam's job server can't be started ({problem}): give {program}=PATH or --job_endpoint=HOST:PORT"
    return CommandError(Exit.BAD_LOCATION, "\n".join([text, *last]))


def _wait_for(option: str, endpoints: str, check: Callable[[], None], seconds: float) -> None:
    """Return when one of ``endpoints``, HOST:PORT with commas between, takes a connection. CommandError if none does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check()
        for endpoint in endpoints.split(","):
            host, _, port = endpoint.rpartition(":")
            with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
                return
        time.sleep(0.1)
    raise CommandError(Exit.BAD_LOCATION, f"nothing answers at {endpoints} ({seconds:.0f} s): start it there, or mend {option}")


def pass_on(stream: "IO[bytes]", last: deque[str]) -> None:
    """Log what the service says; keep its ``last`` lines, and tell of executors that Spark's driver lost."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        last.append(text)
        log.info("%s", text)
        if lost := LOST_EXECUTOR.search(text):
            say(f"the engine lost executor {lost[1]} on {lost[2]}: {lost[3]}; its tasks are tried again elsewhere")
