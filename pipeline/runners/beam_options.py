"""Beam's options on our command line: set apart from ours, completed with our defaults. What they may be is Beam's to check.

Beam's options are those that the installed SDK's option classes declare, and for an engine with a job service also
``--name=value`` that nobody here knows: the service may.
"""

import argparse
import difflib
import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SparkRunnerOptions,
    StandardOptions,
)
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES

from pipeline.cli.exit_codes import CommandError, Exit
from transforms.runtime.versions import own_versions

LOCAL_RUNNER = "FnApiRunner"  # by name: DirectRunner first tries to download Prism
LOCAL_RUNNERS = frozenset({"FnApiRunner", "BundleBasedDirectRunner", "DirectRunner", "SwitchingDirectRunner"})
ENGINES = frozenset({"FlinkRunner", "SparkRunner", "PrismRunner", "PortableRunner"})  # they are given a job service
# A worker is kept so long for the next stage, which would import everything anew. So is one that died: an engine must wait longer
# before it tries again (Flink 3 s by deploy/flink/config.yaml, Spark not at all), or each attempt gets the dead one; on Spark
# what watches our own program of a worker ends the executor with it (`deploy.cluster.watched`).
ENVIRONMENT_CACHE_MILLIS = {"FlinkRunner": 1500, "SparkRunner": 1, "PortableRunner": 1}
SPARK_PROGRAM_CACHE_MILLIS = 60_000
WORKER_PROGRAM = json.dumps({"command": "elmo-store-worker"})  # of a PROCESS environment
SPARK_FAILURES = "-Dspark.task.maxFailures"  # how often a task may be lost before the job ends
# Stage after stage: pipelined stages need all their slots at once, and wait for ever for those of a TaskManager that is lost.
FLINK_MODE = "--execution_mode_for_batch"
ONE_WORKER = "no_use_multiple_sdk_containers"  # Dataflow: one process a machine, not one a vCPU
MANY_WORKERS = "use_multiple_sdk_containers"
NEARLY = 0.9  # a name that is as much like one of Beam's is that one, misspelled
NAME_LENGTH = 32  # of an output in its job's name


class _BeamParser(argparse.ArgumentParser):
    """Collects what Beam's option classes declare; value providers are plain options here."""

    def error(self, message: str) -> NoReturn:
        """CommandError (bad usage) instead of Beam's usage, which is a page, and the end of the process."""
        raise CommandError(Exit.BAD_USAGE, message)

    def add_value_provider_argument(self, *names: str, **settings: object) -> None:
        self.add_argument(*names, **settings)  # type: ignore[arg-type]


class LauncherOptions(PipelineOptions):
    """What a job's options say of the command that submitted it.

    ``launcher_versions``: for workers, see `transforms.runtime.versions`. ``launcher_drives``: the job ends with the command.
    """

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--launcher_versions", help=argparse.SUPPRESS)
        parser.add_argument("--launcher_drives", action="store_true", help=argparse.SUPPRESS)


@cache
def _beams_parser() -> _BeamParser:
    parser = _BeamParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for options in {str(c): c for c in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)  # type: ignore[arg-type]  # duck-typed: add_argument is all they call
    return parser


def beam_flags() -> Mapping[str, bool]:
    """Every option string that Beam's option classes declare → whether a value follows it."""
    return {name: action.nargs != 0 for action in _beams_parser()._actions for name in action.option_strings}


def split_arguments(arguments: Sequence[str], ours: Collection[str] | None = None) -> tuple[list[str], list[str]]:
    """Our arguments and Beam's, each in order. After ``--`` everything is ours.

    ``ours``: every option string of our command. If the runner has a job service, ``--name=value`` in Beam's spelling
    (no dash inside) that is in neither list goes to the service, unless it is nearly one of Beam's: then it stays among ours, of
    which none has such a name.
    """
    flags = beam_flags()
    own: list[str] = []
    beams: list[str] = []
    engine = ours is not None and _runner_of(arguments) in ENGINES
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            own += [argument, *rest]
            break
        name, equals, _ = argument.partition("=")
        if name in flags:
            beams.append(argument)
            if flags[name] and not equals and (value := next(rest, None)) is not None:
                beams.append(value)
        elif engine and equals and name not in (ours or ()) and _may_be_the_services(name, flags):
            beams.append(argument)
        else:
            own.append(argument)
    return own, beams


def _may_be_the_services(name: str, flags: Collection[str]) -> bool:
    """Whether ``name`` has Beam's spelling and is not nearly one of ``flags``."""
    is_spelled_so = name.startswith("--") and "-" not in name[2:]
    return is_spelled_so and not difflib.get_close_matches(name, flags, 1, NEARLY)


def _runner_of(arguments: Sequence[str]) -> str:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--runner":
            return _short(value if equals else "".join(arguments[index + 1 : index + 2]))
    return LOCAL_RUNNER


def _short(name: str) -> str:
    """Beam takes runners by their full path, in any case and without the word Runner; one spelling for all of them."""
    last = name.rpartition(".")[2]
    known = {known.lower(): known for known in LOCAL_RUNNERS | ENGINES | {"DataflowRunner"}}
    return known.get(last.lower()) or known.get(f"{last.lower()}runner") or last


def runner_name(options: PipelineOptions) -> str:
    """The class name of the runner, such as FlinkRunner."""
    return _short(str(options.view_as(StandardOptions).runner))


def pipeline_options(beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options with our defaults, each only where nothing was asked for.

    No types inferred, half the time of a small job's start; the local runner by name; on engines elsewhere our worker program; on
    Flink stage after stage, a worker process kept from one to the next; on Spark more attempts of a task; on Dataflow one process
    a machine, so that a machine holds one model whose engine uses every core, and one thread in it, so that no machine holds
    tasks that wait for its engine; Prism's program from PATH. CommandError (bad usage) for a value that Beam does not take.
    """
    _beams_parser().parse_known_args(list(beam_args))
    flink = _runner_of(beam_args) == "FlinkRunner" and not any(each.startswith(f"{FLINK_MODE}=") for each in beam_args)
    options = PipelineOptions([*beam_args, "--no_pipeline_type_check", *([f"{FLINK_MODE}=BATCH_FORCED"] if flink else [])])
    options.view_as(LauncherOptions).launcher_versions = own_versions()
    standard, portable = options.view_as(StandardOptions), options.view_as(PortableOptions)
    if standard.runner is None:
        standard.runner = LOCAL_RUNNER
    name = runner_name(options)
    if name in ("FlinkRunner", "SparkRunner") and portable.environment_type is None and not is_local(options):
        portable.environment_type, portable.environment_config = "PROCESS", WORKER_PROGRAM
    server = options.view_as(JobServerOptions)
    if name == "SparkRunner" and not any(each.startswith(SPARK_FAILURES) for each in server.job_server_jvm_properties):
        server.job_server_jvm_properties = [*server.job_server_jvm_properties, f"{SPARK_FAILURES}=8"]
    is_watched = (name, portable.environment_type) == ("SparkRunner", "PROCESS")
    millis = SPARK_PROGRAM_CACHE_MILLIS if is_watched else ENVIRONMENT_CACHE_MILLIS.get(name, 0)
    portable.environment_cache_millis = portable.environment_cache_millis or millis
    if name == "DataflowRunner":
        debug = options.view_as(DebugOptions)
        if not {ONE_WORKER, MANY_WORKERS} & set(debug.experiments or []):
            debug.add_experiment(ONE_WORKER)
        debug.number_of_worker_harness_threads = debug.number_of_worker_harness_threads or 1  # Dataflow's own: 12 a process
    if name == "PrismRunner":
        prism = options.view_as(PrismRunnerOptions)
        prism.prism_location = prism.prism_location or shutil.which("prism")
    return options


def name_job(options: PipelineOptions, command: str, output: str, run: str) -> None:
    """Call a job without a name by its output, for an engine's console: letters, digits and dashes, Dataflow's rule.

    ``run``: the output's lease names it too.
    """
    google = options.view_as(GoogleCloudOptions)  # whose name every runner takes
    if google.job_name is None:
        place = "-".join(re.findall("[a-z0-9]+", "/".join(output.lower().split("/")[-2:])))[-NAME_LENGTH:].strip("-")
        google.job_name = "-".join(filter(None, ("elmo-store", command, place, run[:8])))


def with_local_workers(beam_args: Sequence[str], workers: int) -> list[str]:
    """Beam's arguments for so many worker processes of this machine. CommandError (bad usage) for a runner elsewhere."""
    options = pipeline_options(beam_args)
    if not is_local(options):
        raise CommandError(Exit.BAD_USAGE, f"--workers is of this machine; {runner_name(options)} has its own option for it")
    completed = [*beam_args, f"--direct_num_workers={workers}"]
    return [*completed, "--direct_running_mode=multi_processing"] if workers > 1 else completed


def ends_with_command(options: PipelineOptions) -> bool:
    """Whether nothing of the job goes on without this command, whatever ends it: it drives the job, or has the workers."""
    return is_local(options) or bool(options.view_as(LauncherOptions).launcher_drives)


def is_local(options: PipelineOptions) -> bool:
    """True if the job's workers run on this machine, in processes that this one starts or in this one itself."""
    name, environment = runner_name(options), options.view_as(PortableOptions).environment_type
    if name in LOCAL_RUNNERS or environment == "LOOPBACK":
        return True
    if environment is not None:
        return False
    embedded = {  # these runners choose LOOPBACK by themselves
        "PrismRunner": True,
        "FlinkRunner": options.view_as(FlinkRunnerOptions).flink_master in MAGIC_HOST_NAMES,
        "SparkRunner": str(options.view_as(SparkRunnerOptions).spark_master_url).startswith("local"),
    }
    return embedded.get(name, False)
