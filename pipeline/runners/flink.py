"""What Flink's REST service is asked beyond Beam's own interface: its slots and cores, to cancel a job, why one does not move."""

import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions, PortableOptions

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners.beam_options import EMBEDDED_MASTERS, is_local, runner_name

ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})  # Flink's words
WAITING, ENDED_TASKS = frozenset({"created", "scheduled"}), frozenset({"finished", "canceled", "failed"})
CONSOLE = "/#/overview"  # what follows the REST service's address in that of Flink's page
CANCEL_SECONDS, ANSWER_SECONDS = 30.0, 15.0


def master_of(options: PipelineOptions) -> str | None:
    """The address of the Flink that ``options`` name; None of another runner, and of one within the job service."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    of_flink = runner_name(options) == "FlinkRunner" and not is_local(options) and master not in EMBEDDED_MASTERS
    return master if of_flink else None


def console_of(options: PipelineOptions) -> str | None:
    """The address of the page of that Flink."""
    master = master_of(options)
    return None if master is None else f"{_base(master)}{CONSOLE}"


def cancel_if_there(console: str | None, job_id: str) -> bool:
    """Cancel a job that may run on the Flink at ``console``; whether it did."""
    try:
        return console is not None and cancel_on_flink(console.removesuffix(CONSOLE), job_id) > 0
    except (CommandError, OSError):
        return False


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


def answer(master: str, path: str) -> Any:
    """What Flink's REST service says. CommandError (bad location) if it says nothing sensible."""
    base = _base(master)
    try:
        with urllib.request.urlopen(f"{base}/{path}", timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)
    except (OSError, ValueError) as error:
        raise CommandError(
            Exit.BAD_LOCATION, f"no Flink answers at {base} ({error}): give its REST address, --flink_master=HOST:8081"
        ) from error


def _running(master: str, job_id: str) -> list[Any]:
    name = job_id.rpartition("_")[0] or job_id
    return [job for job in answer(master, "jobs/overview")["jobs"] if job["name"] == name and job["state"] not in ENDED]


def _base(master: str) -> str:
    return master if "://" in master else f"http://{master}"
