"""The job service that a portable runner submits to: started before anything is written, ended with the job.

Beam would start it while the pipeline is submitted, in our own process group: its failures would come after the store's start
was written, Ctrl-C would end it before the job could be cancelled, and it would outlive a SIGKILL of this process.
"""

import logging
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions, SparkRunnerOptions
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.spark_runner import SparkJarJobServer

from elmo_store.storage.process import ended_with_this_process, scratch_folder
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.runners.beam_options import LauncherOptions, runner_name

SERVERS = {"FlinkRunner": FlinkJarJobServer, "PrismRunner": PrismJobServer, "SparkRunner": SparkJarJobServer}
REMEDY = "give --job_endpoint=HOST:PORT, or its program: --flink_job_server_jar, --spark_job_server_jar or --prism_location"
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS, MASTER_SECONDS = 120.0, 10.0, 30.0, 5.0
MESSAGES_THREAD = "wait_until_finish_read"  # Beam's (2.77)
LOST_EXECUTOR = re.compile(r"Lost executor (\S+) on ([^\s:]+): (.*)")  # as Spark's driver logs it

log = logging.getLogger("apache_beam.job_service")  # shown where Beam's own log is


@contextmanager
def job_service(options: PipelineOptions) -> Iterator[None]:
    """A job service that answers, its address in ``options`` (``--job_endpoint``); one that we started is ended at the end.

    CommandError (bad location) if none can be had; names the remedy.
    """
    portable, name = options.view_as(PortableOptions), runner_name(options)
    if portable.job_endpoint is not None or name not in SERVERS:
        if portable.job_endpoint not in (None, "embed"):
            _wait_for("--job_endpoint", str(portable.job_endpoint), lambda: None, ANSWER_SECONDS)
        yield
        return
    scheme, _, masters = str(options.view_as(SparkRunnerOptions).spark_master_url).partition("://")
    if name == "SparkRunner" and scheme == "spark":  # which its driver would try for a minute, once the store is started
        _wait_for("--spark_master_url", masters, lambda: None, MASTER_SECONDS)
    quieten_messages()
    with scratch_folder() as folder:
        server = options.view_as(JobServerOptions)
        server.artifacts_dir = server.artifacts_dir or str(folder)
        with _started(name, options) as endpoint:
            portable.job_endpoint = endpoint
            options.view_as(LauncherOptions).launcher_drives = name != "FlinkRunner"  # whose JobManager does
            yield


def quieten_messages() -> None:
    """Spare the screen the traceback of Beam's thread that reads a job's messages, which ends when the job service does."""
    before = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if error.thread is None or error.thread.name != MESSAGES_THREAD:
            before(error)

    threading.excepthook = hook


@contextmanager
def _started(name: str, options: PipelineOptions) -> Iterator[str]:
    say(f"starting Beam's job server for {name} …")
    try:
        command, endpoint = SERVERS[name](options).subprocess_cmd_and_endpoint()  # fetched by Beam where it has to be and can be
        port = endpoint.rpartition(":")[2]
        process = subprocess.Popen(
            [str(part).replace("{{PORT}}", port) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,  # Ctrl-C is for us: the job is cancelled through this service
        )  # fmt: skip
    except Exception as error:  # downloads, versions, files: whatever it is, the remedy is the same
        raise _no_server(name, error) from error
    threading.Thread(target=pass_on, args=(process.stdout,), name="job service's log", daemon=True).start()

    def check() -> None:
        if process.poll() is not None:
            raise _no_server(name, f"it ended with {process.returncode}; --log-level info shows what it said")

    try:
        with ended_with_this_process(process.pid):
            _wait_for("--job_endpoint", endpoint, check, START_SECONDS)
            yield endpoint
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()


def _no_server(name: str, problem: object) -> CommandError:
    return CommandError(Exit.BAD_LOCATION, f"{name}: Beam's job server can't be started ({problem}): {REMEDY}")


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


def pass_on(stream: IO[bytes]) -> None:
    """Log what the service says, and tell of executors that Spark's driver lost."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        log.info("%s", text)
        if lost := LOST_EXECUTOR.search(text):
            say(f"the engine lost executor {lost[1]} on {lost[2]}: {lost[3]}; its tasks are tried again elsewhere")
