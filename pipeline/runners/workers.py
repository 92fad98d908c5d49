"""How many worker processes a job has, and how many CPU threads each may use: what decides the size of its tasks.

Flink is asked over its REST service; nobody else tells the launcher.
"""

from dataclasses import dataclass

from apache_beam.options.pipeline_options import DebugOptions, FlinkRunnerOptions, PipelineOptions, WorkerOptions

from pipeline.runners import flink
from pipeline.runners.beam_options import MANY_WORKERS, is_local, n_local_processes, runner_name
from pipeline.runners.machine import cores

UNKNOWN_WORKERS = 32  # how many a cluster has where nobody says


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
    if runner_name(options) == "DataflowRunner":
        worker, experiments = options.view_as(WorkerOptions), options.view_as(DebugOptions).experiments or []
        n = int(worker.max_num_workers or worker.num_workers or UNKNOWN_WORKERS)
        return Workers(n, 1 if MANY_WORKERS in experiments else None)  # one process a vCPU, or one a machine
    master, parallelism = flink.master_of(options), options.view_as(FlinkRunnerOptions).parallelism  # a portable option, this
    threads = None if master is None else flink.threads_by_slot(flink.answer(master, "taskmanagers")["taskmanagers"])
    return Workers(parallelism if parallelism > 0 else UNKNOWN_WORKERS, threads)


def shared_threads(processes: int) -> int | None:
    """Threads of one of several worker processes of this machine; None (all cores) for a single one."""
    if processes <= 1:
        return None
    return max(1, cores() // processes)
