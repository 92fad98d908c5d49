"""What Flink's REST service is asked about a job beyond Beam's own interface: to cancel it, and why it does not move."""

import urllib.request
from typing import Any

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions

from pipeline.cli.exit_codes import CommandError
from pipeline.runners.beam_options import is_local, runner_name
from pipeline.runners.workers import flink_answer

ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})  # Flink's words
WAITING, ENDED_TASKS = frozenset({"created", "scheduled"}), frozenset({"finished", "canceled", "failed"})
CONSOLE = "/#/overview"  # what follows the REST service's address in that of Flink's page
CANCEL_SECONDS = 30.0


def console_of(options: PipelineOptions) -> str | None:
    """The address of the page of the Flink that ``options`` name; None of another runner."""
    if runner_name(options) != "FlinkRunner" or is_local(options):
        return None
    return f"{_base(options.view_as(FlinkRunnerOptions).flink_master)}{CONSOLE}"


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
            cluster = flink_answer(master, "overview")
            return (
                f"{n_waiting} tasks wait for a slot on Flink, and none runs: {cluster['taskmanagers']} TaskManagers with "
                f"{cluster['slots-total']} slots are there, {cluster['slots-available']} of them free"
            )
    return None


def _running(master: str, job_id: str) -> list[Any]:
    name = job_id.rpartition("_")[0] or job_id
    return [job for job in flink_answer(master, "jobs/overview")["jobs"] if job["name"] == name and job["state"] not in ENDED]


def _base(master: str) -> str:
    return master if "://" in master else f"http://{master}"
