"""Beam's options on our command line: set apart from ours, completed with our defaults. What they may be is Beam's to check."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    WorkerOptions,
    _BeamArgumentParser,
)
from apache_beam.runners.runner import create_runner

from pipeline.cli.exit_codes import CommandError, Exit
from transforms.runtime.versions import own_versions

LOCAL_RUNNER = "FnApiRunner"  # by name: DirectRunner first tries to download Prism
LOCAL_RUNNERS = frozenset(
    {"FnApiRunner", "BundleBasedDirectRunner", "DirectRunner", "SwitchingDirectRunner"}
)
ENGINES = frozenset(
    {"FlinkRunner", "SparkRunner", "PrismRunner", "PortableRunner"}
)  # they are given a job service
DEFAULTS: Mapping[str, Sequence[str]] = {  # what is given later counts
    # Stage after stage: pipelined stages need all their slots at once, and wait for ever for those of a TaskManager that is lost.
    # A worker is kept for the next stage, which would import everything anew. So is one that died: what comes after 7 s, as
    # deploy/flink/config.yaml has it, gets another one.
    "FlinkRunner": ["--execution_mode_for_batch=BATCH_FORCED", "--environment_cache_millis=5000"],
    # One process a machine (not one a vCPU) and one thread in it (not 12): it holds one model, whose engine uses every core.
    "DataflowRunner": [
        "--experiments=no_use_multiple_sdk_containers",
        "--number_of_worker_harness_threads=1",
    ],
}
# Of Spark, where what watches our own program of a worker ends the executor with it (`deploy.cluster.watched`): none is kept that
# died.
SPARK_CACHE_MILLIS = 60_000
WORKER_PROGRAM = json.dumps({"command": "elmo-store-worker"})  # of a PROCESS environment
UNKNOWN_WORKERS = 32  # how many a cluster has where nobody says


class LauncherOptions(PipelineOptions):
    """What a job's options say of the command that submitted it.

    ``launcher_versions``: for workers, see `transforms.runtime.versions`. ``launcher_drives``: the job ends with the command.
    """

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--launcher_versions", help=argparse.SUPPRESS)
        parser.add_argument("--launcher_drives", action="store_true", help=argparse.SUPPRESS)


def _beams_parser() -> argparse.ArgumentParser:
    parser = _BeamArgumentParser(
        prog="elmo-store",
        usage=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    for options in {str(c): c for c in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)
    return parser


def beam_flags() -> Mapping[str, bool]:
    """Every option string that Beam's option classes declare → whether a value follows it."""
    return {
        name: action.nargs != 0
        for action in _beams_parser()._actions
        for name in action.option_strings
    }


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments and Beam's, each in order."""
    flags = beam_flags()
    own: list[str] = []
    beams: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in flags:
            own.append(argument)
            continue
        beams.append(argument)
        if flags[name] and not equals and (value := next(rest, None)) is not None:
            beams.append(value)
    return own, beams


def runner_name(options: PipelineOptions) -> str:
    """The class name of the runner, such as FlinkRunner: Beam takes it in any case, without the word Runner, by its full path.

    CommandError (bad usage) for one that can't be imported.
    """
    runner = options.view_as(StandardOptions).runner
    try:
        return type(create_runner(runner)).__name__
    except (ImportError, ValueError, AttributeError) as error:
        raise CommandError(Exit.BAD_USAGE, f"--runner={runner} can't be used: {error}") from error


def pipeline_options(beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options with our `DEFAULTS`, each only where nothing was asked for.

    No types inferred, half the time of a small job's start; the local runner by name; on clusters our worker program.
    SystemExit (bad usage) for a value that Beam does not take.
    """
    _beams_parser().parse_known_args(
        beam_args
    )  # whose message is a line; that of PipelineOptions has its whole usage
    given = [f"--runner={LOCAL_RUNNER}", *beam_args]
    name = runner_name(PipelineOptions(given))
    options = PipelineOptions(["--no_pipeline_type_check", *DEFAULTS.get(name, ()), *given])
    options.view_as(LauncherOptions).launcher_versions = own_versions()
    portable = options.view_as(PortableOptions)
    if name not in ENGINES:
        return options
    if portable.environment_type is None and portable.job_endpoint is None:
        with suppress(Exception):  # which the preflight meets again, and tells
            create_runner(name).default_environment(
                options
            )  # sets LOOPBACK where the engine is this machine's
    portable.environment_type = portable.environment_type or "PROCESS"
    if (
        portable.environment_type == "PROCESS"
        and not portable.environment_config
        and not portable.environment_options
    ):
        portable.environment_config = WORKER_PROGRAM
        if name == "SparkRunner":
            portable.environment_cache_millis = (
                portable.environment_cache_millis or SPARK_CACHE_MILLIS
            )
    return options


def name_job(options: PipelineOptions, command: str, run: str) -> None:
    """Call a job by its ``run``, as the lease of its output does; a name that was given stays, but for Flink.

    Flink lists jobs of before too, and has no other name by which a job is found there.
    """
    google = options.view_as(GoogleCloudOptions)  # whose name every runner takes
    if google.job_name is None or runner_name(options) == "FlinkRunner":
        google.job_name = f"{google.job_name or f'elmo-store-{command}'}-{run[:8]}"


def ends_with_command(options: PipelineOptions) -> bool:
    """Whether nothing of the job goes on without this command, whatever ends it: it drives the job, or has the workers."""
    return is_local(options) or bool(options.view_as(LauncherOptions).launcher_drives)


def is_local(options: PipelineOptions) -> bool:
    """True if the job's workers run on this machine, in processes that this one starts or in this one itself."""
    return (
        runner_name(options) in LOCAL_RUNNERS
        or options.view_as(PortableOptions).environment_type == "LOOPBACK"
    )


def n_workers(options: PipelineOptions) -> int:
    """Worker processes that embed at once, as far as ``options`` say."""
    direct, worker = options.view_as(DirectOptions), options.view_as(WorkerOptions)
    if is_local(options):
        return (
            int(direct.direct_num_workers) or cores()
            if direct.direct_running_mode == "multi_processing"
            else 1
        )
    if runner_name(options) == "DataflowRunner":
        return int(worker.max_num_workers or worker.num_workers or UNKNOWN_WORKERS)
    parallelism = int(options.view_as(FlinkRunnerOptions).parallelism)  # Spark's too
    return parallelism if parallelism > 0 else UNKNOWN_WORKERS


def cores() -> int:
    """Cores that this process may use, 1 or more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
