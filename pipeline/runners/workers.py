"""How many worker processes a job has, and how many CPU threads each may use: what decides the size of its tasks.

Flink is asked over its REST service; nobody else tells the launcher.
"""

import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.options.pipeline_options import DebugOptions, FlinkRunnerOptions, PipelineOptions, WorkerOptions

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners.beam_options import MANY_WORKERS, is_local, n_local_processes, runner_name
from pipeline.runners.machine import cores

UNKNOWN_WORKERS = 32  # how many a cluster has where nobody says
ANSWER_SECONDS = 15.0
EMBEDDED_MASTERS = ("[auto]", "[local]")  # Flink within the job service itself


@dataclass(frozen=True)
class Workers:
    """Worker processes that embed at once, and the CPU threads of each (None: all cores that it finds)."""

    n: int
    threads: int | None


def workers_of(options: PipelineOptions) -> Workers:
    """The workers of a job with ``options``, as far as can be known before it runs."""
    if is_local(options):
        processes = n_local_processes(options)
        return Workers(processes, shared_threads(processes))
    name = runner_name(options)
    if name == "FlinkRunner":
        return _flink_workers(options)
    if name == "DataflowRunner":
        worker, experiments = options.view_as(WorkerOptions), options.view_as(DebugOptions).experiments or []
        n = int(worker.max_num_workers or worker.num_workers or UNKNOWN_WORKERS)
        return Workers(n, 1 if MANY_WORKERS in experiments else None)  # one process a vCPU, or one a machine
    parallelism = options.view_as(FlinkRunnerOptions).parallelism  # a portable option in all but its class
    return Workers(parallelism if parallelism > 0 else UNKNOWN_WORKERS, None)


def shared_threads(processes: int) -> int | None:
    """Threads of one of several worker processes of this machine; None (all cores) for a single one."""
    if processes <= 1:
        return None
    return max(1, cores() // processes)


def _flink_workers(options: PipelineOptions) -> Workers:
    flink = options.view_as(FlinkRunnerOptions)
    n = flink.parallelism if flink.parallelism > 0 else UNKNOWN_WORKERS
    if flink.flink_master in EMBEDDED_MASTERS:  # a job service that was started elsewhere knows its master
        return Workers(n, None)
    return Workers(n, threads_by_slot(flink_answer(flink.flink_master, "taskmanagers")["taskmanagers"]))


def set_parallelism(options: PipelineOptions) -> None:
    """Every slot of a Flink cluster works for the job unless ``--parallelism`` says otherwise: Flink's own default is one.

    CommandError (bad location) if no Flink answers.
    """
    flink = options.view_as(FlinkRunnerOptions)
    if runner_name(options) != "FlinkRunner" or flink.flink_master in EMBEDDED_MASTERS:
        return
    slots = int(flink_answer(flink.flink_master, "overview")["slots-total"])
    if flink.parallelism <= 0 and slots:  # without any: a cluster that starts TaskManagers when a job asks for them
        flink.parallelism = slots


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


def flink_answer(master: str, path: str) -> Any:
    """What Flink's REST service says. CommandError (bad location) if it says nothing sensible."""
    base = master if "://" in master else f"http://{master}"
    try:
        with urllib.request.urlopen(f"{base}/{path}", timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)
    except (OSError, ValueError) as error:
        raise CommandError(
            Exit.BAD_LOCATION, f"no Flink answers at {base} ({error}): give its REST address, --flink_master=HOST:8081"
        ) from error
