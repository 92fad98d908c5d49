"""What Flink's REST service is asked beyond Beam's own interface: its slots and cores, to cancel a job, why one does not move."""

import json
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions, PortableOptions

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners.beam_options import EMBEDDED_MASTERS, is_local, runner_name

ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})  # Flink's words
WAITING, ENDED_TASKS = frozenset({"created", "scheduled"}), frozenset({"finished", "canceled", "failed"})
PAGES = "/#/"  # what follows the REST service's address in that of a page
CANCEL_SECONDS, ANSWER_SECONDS = 30.0, 15.0
LOOK_SECONDS, LOOKS_WITHOUT_ANSWER = 2.0, 5  # at a job that is followed; a look without an answer takes up to ANSWER_SECONDS
PAGE_SECONDS = 60.0  # that a job takes from its submission to Flink's list, on a busy machine


def master_of(options: PipelineOptions) -> str | None:
    """The address of the Flink that ``options`` name; None of another runner, and of one within the job service."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    of_flink = runner_name(options) == "FlinkRunner" and not is_local(options) and master not in EMBEDDED_MASTERS
    return master if of_flink else None


def address_of(options: PipelineOptions) -> str | None:
    """The address of that Flink's REST service and pages."""
    master = master_of(options)
    return None if master is None else _base(master)


def page_of(master: str, job_id: str, goes_on: Callable[[], bool] = lambda: True) -> str:
    """The page of a job, which Flink lists some seconds after its submission if it ``goes_on``; Flink's own where it does not."""
    end = time.monotonic() + PAGE_SECONDS
    with suppress(CommandError):
        while not (jobs := _named(master, job_id)) and goes_on() and time.monotonic() < end:
            time.sleep(0.5)
        if jobs:
            return f"{_base(master)}{PAGES}job/running/{jobs[0]['jid']}/overview"
    return f"{_base(master)}{PAGES}overview"


def is_running(master: str, job_id: str) -> bool:
    """Whether the job has not ended. Arguments and errors as of `cancel_on_flink`."""
    return bool(_running(master, job_id))


def cancel_if_there(master: str | None, job_id: str) -> bool:
    """Cancel a job that may run on the Flink at ``master``; whether it did."""
    try:
        return master is not None and cancel_on_flink(master, job_id) > 0
    except (CommandError, OSError):
        return False


class OrphanedJob:
    """A job whose command is gone, as Beam's PipelineResult would have it."""

    def __init__(self, master: str, job_id: str) -> None:
        self._master, self._job_id = master, job_id

    def wait_until_finish(self) -> None:
        """Return when it has ended. RuntimeError with what Flink says of its failure, or where Flink answers no more."""
        failed_looks = 0
        while failed_looks < LOOKS_WITHOUT_ANSWER:
            time.sleep(LOOK_SECONDS)
            try:
                if not _running(self._master, self._job_id):
                    break
                failed_looks = 0
            except CommandError:
                failed_looks += 1
        for job in _named(self._master, self._job_id):
            if job["state"] != "FINISHED":
                said = answer(self._master, f"jobs/{job['jid']}/exceptions").get("root-exception")
                raise RuntimeError(said or f"Flink's job is {job['state']}")

    def cancel(self) -> None:
        """Nothing beside what `cancel_on_flink` does."""


def cancel_on_flink(master: str, job_id: str) -> int:
    """Cancel the job on the cluster at ``master`` whose name begins Beam's ``job_id`` (NAME_UUID); returns how many ran there."""
    jobs = _running(master, job_id)
    for job in jobs:
        request = urllib.request.Request(f"{_base(master)}/jobs/{job['jid']}?mode=cancel", method="PATCH")
        urllib.request.urlopen(request, timeout=CANCEL_SECONDS).close()
    return len(jobs)


def stalled_on_flink(master: str, job_id: str) -> str | None:
    """Why no task of the job runs or begins though some are due, None if one does. Arguments as of `cancel_on_flink`."""
    for job in _running(master, job_id):
        moving = {state: n for state, n in job["tasks"].items() if state not in WAITING | ENDED_TASKS | {"total"}}
        n_waiting = int(job["tasks"]["scheduled"])
        if n_waiting and not any(moving.values()):
            cluster = answer(master, "overview")
            return (
                f"{n_waiting} tasks wait for a slot on Flink, and none runs: {cluster['taskmanagers']} TaskManagers with "
                f"{cluster['slots-total']} slots are there, {cluster['slots-available']} of them free"
            )
    return None


def fit_to_cluster(options: PipelineOptions, beam_args: Sequence[str]) -> None:
    """The job server of the Flink's own version, and every slot of it, where ``beam_args`` don't say otherwise.

    Beam's own choices are its newest version, and one slot. CommandError: bad location if no Flink answers, bad usage for a
    version of which Beam has no job server.
    """
    flink = options.view_as(FlinkRunnerOptions)
    if runner_name(options) != "FlinkRunner" or flink.flink_master in EMBEDDED_MASTERS:
        return
    slots = int(answer(flink.flink_master, "overview")["slots-total"])
    if flink.parallelism <= 0 and slots:  # without any: a cluster that starts TaskManagers when a job asks for them
        flink.parallelism = slots
    given = any(argument.startswith("--flink_version") for argument in beam_args)
    if given or flink.flink_job_server_jar or options.view_as(PortableOptions).job_endpoint:
        return
    version = str(answer(flink.flink_master, "config")["flink-version"])
    flink.flink_version = version.rpartition(".")[0]
    if flink.flink_version not in FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS:
        raise CommandError(
            Exit.BAD_USAGE,
            f"the Flink at {flink.flink_master} is {version}, and Beam has job servers for "
            f"{', '.join(FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS)}: name one with --flink_version, or your own with "
            "--flink_job_server_jar=PATH",
        )


def threads_by_slot(task_managers: Sequence[Mapping[str, Any]]) -> int | None:
    """Threads of a worker process where ``task_managers`` (Flink's own list) stand; None if there are none yet.

    The slots of a TaskManager share one worker process, and TaskManagers of one host share its cores.
    """
    hosts = Counter(host_of(manager) for manager in task_managers)
    shares = [int(manager["hardware"]["cpuCores"]) // hosts[host_of(manager)] for manager in task_managers]
    return max(1, min(shares)) if shares else None


def host_of(task_manager: Mapping[str, Any]) -> str:
    """The host in a TaskManager's address, ``pekko.tcp://flink@HOST:PORT/user/rpc/taskmanager_0``."""
    return str(urllib.parse.urlsplit(str(task_manager["path"])).hostname)


def answer(master: str, path: str, remedy: str = "give its REST address, --flink_master=HOST:8081") -> Any:
    """What Flink's REST service says. CommandError (bad location) with ``remedy`` if it says nothing sensible."""
    base = _base(master)
    try:
        with urllib.request.urlopen(f"{base}/{path}", timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)
    except (OSError, ValueError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"no Flink answers at {base} ({error}): {remedy}") from error


def members(master: str) -> dict[str, str]:
    """The TaskManagers that Flink knows: id → host."""
    return {manager["id"]: host_of(manager) for manager in answer(master, "taskmanagers")["taskmanagers"]}


def _named(master: str, job_id: str) -> list[Any]:
    name = job_id.rpartition("_")[0] or job_id
    return [job for job in answer(master, "jobs/overview")["jobs"] if job["name"] == name]


def _running(master: str, job_id: str) -> list[Any]:
    return [job for job in _named(master, job_id) if job["state"] not in ENDED]


def _base(master: str) -> str:
    return master if "://" in master else f"http://{master}"
