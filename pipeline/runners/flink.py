"""What Flink's REST service is asked beyond Beam's own interface: its version, slots and machines, its jobs, to cancel one."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner

from elmo_store.storage.failures import retry
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners.beam_options import is_local, runner_name

ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})  # Flink's words
PAGES = "/#/"  # what follows the REST service's address in that of a page
ANSWER_SECONDS = 15.0
LOOK_SECONDS = 0.5
LIST_SECONDS = 60.0  # that a job takes from its submission to Flink's list, on a busy machine


def address_of(options: PipelineOptions) -> str | None:
    """The address of the REST service of the Flink that ``options`` name; None of another runner, and without a cluster."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    if runner_name(options) != "FlinkRunner" or is_local(options) or master in MAGIC_HOST_NAMES:
        return None
    return str(FlinkRunner.add_http_scheme(master))


def fit_to_cluster(options: PipelineOptions, beam_args: Sequence[str]) -> None:
    """The job server of the Flink's own version, and every slot of it, where ``beam_args`` don't say otherwise.

    Beam's own choices are its newest version, and one slot. CommandError (bad location) if no Flink answers.
    """
    flink, address = options.view_as(FlinkRunnerOptions), address_of(options)
    if address is None:
        return
    slots = int(answer(address, "overview")["slots-total"])
    if (
        flink.parallelism <= 0 and slots
    ):  # without any: a cluster that starts TaskManagers when a job asks for them
        flink.parallelism = slots
    if not any(argument.startswith("--flink_version") for argument in beam_args):
        flink.flink_version = str(answer(address, "config")["flink-version"]).rpartition(".")[0]


def members(address: str) -> dict[str, str]:
    """The TaskManagers that Flink knows: id → host, of an address ``pekko.tcp://flink@HOST:PORT/user/rpc/taskmanager_0``."""
    managers = answer(address, "taskmanagers")["taskmanagers"]
    return {
        manager["id"]: str(urllib.parse.urlsplit(str(manager["path"])).hostname)
        for manager in managers
    }


def page_of(address: str, job_id: str) -> str:
    """The page of a job; Flink's own where it does not list the job."""
    with suppress(CommandError):
        if jobs := _listed(address, job_id):
            return f"{address}{PAGES}job/running/{jobs[0]['jid']}/overview"
    return f"{address}{PAGES}overview"


def running(address: str, job_id: str) -> list[Any]:
    """Jobs that have not ended, as Flink lists them, whose name begins Beam's ``job_id`` (NAME_UUID)."""
    return [job for job in _named(address, job_id) if job["state"] not in ENDED]


def cancel(address: str, job_id: str) -> bool:
    """Cancel a job; whether it ran. Errors of a Flink that can't be asked."""
    jobs = running(address, job_id)
    for job in jobs:
        request = urllib.request.Request(f"{address}/jobs/{job['jid']}?mode=cancel", method="PATCH")
        urllib.request.urlopen(request, timeout=ANSWER_SECONDS).close()
    return bool(jobs)


def follow(address: str, job_id: str) -> bool:
    """Return when a job has ended; whether Flink knew it. RuntimeError with what Flink says of its failure, or if it is lost."""
    try:
        jobs = _asked_again(partial(_listed, address, job_id))
        while any(job["state"] not in ENDED for job in jobs):
            time.sleep(LOOK_SECONDS)
            jobs = _asked_again(partial(_named, address, job_id))
        for job in jobs:
            if job["state"] != "FINISHED":
                answered = _asked_again(partial(answer, address, f"jobs/{job['jid']}/exceptions"))
                said = answered.get("root-exception")
                raise RuntimeError(said or f"Flink's job is {job['state']}")
    except CommandError as error:
        lost = "its JobManager is lost, and with it the job unless another one goes on"
        raise RuntimeError(f"no Flink answers at {address} ({error.__cause__}): {lost}") from error
    return bool(jobs)


def _asked_again(ask: Callable[[], Any]) -> Any:
    """Return what ``ask`` returns, and retry while Flink does not answer: another JobManager may go on."""
    return retry(ask, local=False, transient=lambda error: isinstance(error, CommandError))


def answer(address: str, path: str) -> Any:
    """What Flink's REST service says. CommandError (bad location) if it says nothing sensible."""
    try:
        with urllib.request.urlopen(f"{address}/{path}", timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)
    except (OSError, ValueError) as error:
        remedy = "give its REST address, --flink_master=HOST:8081"
        raise CommandError(
            Exit.BAD_LOCATION, f"no Flink answers at {address} ({error}): {remedy}"
        ) from error


def _listed(address: str, job_id: str) -> list[Any]:
    """The jobs of an id, which Flink lists some seconds after the submission."""
    end = time.monotonic() + LIST_SECONDS
    while not (jobs := _named(address, job_id)) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return jobs


def _named(address: str, job_id: str) -> list[Any]:
    name = job_id.rpartition("_")[0] or job_id
    return [job for job in answer(address, "jobs/overview")["jobs"] if job["name"] == name]
