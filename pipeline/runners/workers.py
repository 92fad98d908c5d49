"""The workers of a job, as far as the launcher can know them: how many processes, with how many threads and how much memory.

A container sees all of its host; what it may use stands in its cgroup (version 2) and in those above it.
"""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    WorkerOptions,
)

from pipeline.runners import flink
from pipeline.runners.beam_options import MANY_WORKERS, is_local, runner_name

UNKNOWN_WORKERS = 32  # how many a cluster has where nobody says


@dataclass(frozen=True)
class Workers:
    """Worker processes that embed at once, and the CPU threads of each (None: all cores that it finds)."""

    n: int
    threads: int | None


def workers_of(options: PipelineOptions) -> Workers:
    """The workers of a job with ``options``; Flink is asked over its REST service."""
    if is_local(options):
        processes = n_local_processes(options)
        return Workers(processes, max(1, cores() // processes) if processes > 1 else None)
    if runner_name(options) == "DataflowRunner":
        worker, experiments = options.view_as(WorkerOptions), options.view_as(DebugOptions).experiments or []
        n = int(worker.max_num_workers or worker.num_workers or UNKNOWN_WORKERS)
        return Workers(n, 1 if MANY_WORKERS in experiments else None)  # one process a vCPU, or one a machine
    address, parallelism = flink.address_of(options), options.view_as(FlinkRunnerOptions).parallelism  # Spark's too
    threads = None if address is None else flink.threads_by_slot(flink.answer(address, "taskmanagers")["taskmanagers"])
    return Workers(parallelism if parallelism > 0 else UNKNOWN_WORKERS, threads)


def n_local_processes(options: PipelineOptions) -> int:
    """Worker processes that share this machine's cores: 1 unless Beam's multi_processing mode asks for more."""
    direct = options.view_as(DirectOptions)
    if not is_local(options) or direct.direct_running_mode != "multi_processing":
        return 1
    return int(direct.direct_num_workers) or cores()


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy, 1 or more."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = (text.split() for text in _limits("cpu.max", root))
    return max(1, min([here, *(math.ceil(int(quota) / int(period)) for quota, period in limits if quota != "max")]))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process and what it starts may use together; None where no cgroup says it."""
    return min((int(text) for text in _limits("memory.max", root) if text != "max"), default=None)


def _limits(name: str, root: Path) -> Iterator[str]:
    """What ``name`` says in the cgroup of this process and in each above it."""
    mount, own = root / "sys/fs/cgroup", "/"
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text("ascii").splitlines()
        own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = mount / own.strip("/")
    for cgroup in (folder, *folder.parents):
        if cgroup.is_relative_to(mount):  # within a container ours is the topmost
            with suppress(OSError):
                yield (cgroup / name).read_text("ascii").strip()
