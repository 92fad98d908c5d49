"""What a runner needs, checked before anything is written: it can be imported, its options are known and complete, it answers."""

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    SparkRunnerOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import check_answers
from pipeline.runners.beam_options import ENGINES, WORKER_PROGRAM, is_local, pipeline_options, runner_name, undeclared
from pipeline.runners.flink import fit_to_cluster
from pipeline.runners.job_service import declared_options, job_service
from transforms.runtime.versions import own_versions

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
CREDENTIALS = {  # scheme → variables in which this machine may have what its workers need too
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "hf": ("HF_TOKEN",),
    "abfs": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
}
POOL = "--environment_type=EXTERNAL --environment_config=HOST:PORT"
_LOG = logging.getLogger(__name__)
DATAFLOW_EXTRA = "pip install '.[dataflow]' in elmo-store's checkout"


@contextmanager
def opened(beam_args: Sequence[str], *, wait: bool = True) -> Iterator[PipelineOptions]:
    """Beam's options of a runner that is there, its job service running as long as the block does.

    ``wait``: whether the command stays until the job ends. If not, the job must not depend on what ends with the command.
    CommandError: bad usage for options that nobody knows or that are missing, bad location for what does not answer.
    """
    options = pipeline_options(beam_args)
    name = runner_name(options)
    _check_import(name, options)
    if not wait:
        check_leaving(name, options)
    if name == "DataflowRunner":
        check_dataflow(options)
    if name not in ENGINES:
        yield options
        return
    if name == "PortableRunner" and options.view_as(PortableOptions).job_endpoint is None:
        raise CommandError(Exit.BAD_USAGE, "--runner=PortableRunner needs --job_endpoint=HOST:PORT of a running job service")
    check_workers(options, beam_args)
    fit_to_cluster(options, beam_args)
    with job_service(options):
        names = undeclared(beam_args)
        if names and (declared := declared_options(options)) is not None:
            check_declared(names, declared, name)
        yield options


def check_workers(options: PipelineOptions, beam_args: Sequence[str]) -> None:
    """Say what starts the workers where nobody chose it. CommandError (bad usage) for Beam's own image: it lacks our package."""
    portable = options.view_as(PortableOptions)
    if portable.environment_config == WORKER_PROGRAM and not any(each.startswith("--environment_type") for each in beam_args):
        print(f"workers: the program elmo-store-worker in each machine's PATH; for worker pools give {POOL}", file=sys.stderr)
    image = portable.environment_config or portable.lookup_environment_option("docker_container_image")
    stock = portable.environment_type in (None, "DOCKER") and not image
    if stock and not is_local(options) and portable.job_endpoint != "embed":
        raise CommandError(
            Exit.BAD_USAGE,
            f"{runner_name(options)} would start workers in Beam's own image, which has no elmo-store. Give an image with "
            "--environment_type=DOCKER --environment_config=IMAGE, or one of these:\n"
            f"  --environment_type=PROCESS --environment_config='{WORKER_PROGRAM}'   # installed on each machine\n"
            f"  {POOL}   # a worker pool beside each machine of the engine",
        )


def check_leaving(name: str, options: PipelineOptions) -> None:
    """CommandError for ``--no-wait`` where the job would end with this command, or before it has begun."""
    if name == "DataflowRunner" or options.view_as(PortableOptions).job_endpoint not in (None, "embed"):
        return
    raise CommandError(
        Exit.BAD_USAGE,
        f"--no-wait: {name} "
        + ("runs the job in this process" if name not in ENGINES else "is driven by a job service that ends with this command")
        + ": leave it out, or start a job service of its own and give --job_endpoint=HOST:PORT",
    )


def check_declared(names: Iterable[str], declared: set[str], runner: str) -> None:
    """CommandError for options that neither the SDK nor the job service declares."""
    if unknown := sorted(set(names) - declared):
        listed = ", ".join(f"--{name}" for name in unknown)
        raise CommandError(
            Exit.BAD_USAGE,
            f"{listed}: no option of this command, of Beam's Python SDK or of {runner}'s job service: look at its spelling",
        )


def check_dataflow(options: PipelineOptions) -> None:
    """CommandError for what Dataflow would refuse, or try for minutes, once the store's start is written."""
    google = options.view_as(GoogleCloudOptions)
    needed = {"project": "", "region": "", "temp_location": ": a folder gs://BUCKET/… that Dataflow may write"}
    problems = [f"--{name} is missing{remedy}" for name, remedy in needed.items() if not getattr(google, name)]
    if any(option.startswith("worker_accelerator") for option in google.dataflow_service_options or ()):
        problems.append("worker_accelerator can't be had beside resource hints, which every job has: leave it to --accelerator")
    if options.view_as(TestOptions).dry_run:
        problems.append(
            "--dry_run=True would leave a started store; --dry-run (with a dash) of this command tells what a job costs"
        )
    problems += _image_problems(options)
    problems = problems or PipelineOptionsValidator(options, create_runner("DataflowRunner")).validate()
    if problems:
        raise CommandError(Exit.BAD_USAGE, "--runner=DataflowRunner: " + "; ".join(dict.fromkeys(problems)))
    check_answers([Location("--temp_location", google.temp_location)])


def _image_problems(options: PipelineOptions) -> list[str]:
    """Why workers could not run the job: without our package, or with other versions than this command's."""
    setup, image = options.view_as(SetupOptions), options.view_as(WorkerOptions).sdk_container_image
    if not image and not setup.setup_file and not setup.extra_packages:
        return [
            "workers would start in Google's own image, which has no elmo-store: give --sdk_container_image=IMAGE "
            "--sdk_location=container (target `dataflow` of deploy/docker/Dockerfile), or from a checkout "
            "--setup_file=./setup.py --requirements_file=deploy/dataflow/requirements.txt"
        ]
    stock = re.search(r"beam_python(\d+\.\d+)_sdk:(\d+\.\d+\.\d+)", image or "")  # another one's name does not tell
    if stock and (theirs := f"Python {stock[1]} with Apache Beam {stock[2]}") != own_versions():
        return [f"--sdk_container_image={image} has {theirs}, this command {own_versions()}: both must be the same"]
    return []


def check_reach(options: PipelineOptions, locations: Sequence[Location], *, shared_disk: bool) -> None:
    """CommandError for a location that the runner's workers can't reach; warns of credentials that only this machine has.

    ``shared_disk``: the user says that every worker sees local paths as this machine does.
    """
    if is_local(options) or workers_are_here(options):
        return
    for location in locations:
        if not shared_disk and is_local_path(location.url):
            raise CommandError(
                Exit.BAD_LOCATION,
                f"the {location} is a path of this machine, and {runner_name(options)}'s workers run on others: give a URL "
                "that they reach too (gs://…, s3://…), or --shared-disk if every worker has this path mounted",
            )
    # Storage options travel to the workers, what stands in an environment does not.
    schemes = {each.url.partition("://")[0] for each in locations if "://" in each.url and not each.storage_options}
    if names := [name for scheme in sorted(schemes) for name in CREDENTIALS.get(scheme, ()) if os.environ.get(name)]:
        _LOG.warning(
            "%s is set here and does not travel: give the workers a role or the variable, or --storage-options", ", ".join(names)
        )


def is_local_path(url: str) -> bool:
    """Whether ``url`` names something that other machines don't see: a path, file:// or memory://."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme in ("file", "local", "memory")


def workers_are_here(options: PipelineOptions) -> bool:
    """Whether the engine is addressed on this machine's loopback interface; then its workers share this disk."""
    name = runner_name(options)
    addresses = {
        "FlinkRunner": options.view_as(FlinkRunnerOptions).flink_master,
        "SparkRunner": options.view_as(SparkRunnerOptions).spark_master_url,
        "PortableRunner": options.view_as(PortableOptions).job_endpoint,
    }
    address = str(addresses.get(name) or "")
    return urlsplit(address if "://" in address else f"//{address}").hostname in LOOPBACK_HOSTS


def _check_import(name: str, options: PipelineOptions) -> None:
    try:
        create_runner(options.get_all_options()["runner"])
        if name == "DataflowRunner":
            import apache_beam.io.gcp.gcsfilesystem
            import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
    except ImportError as error:
        remedy = f": {DATAFLOW_EXTRA}" if name == "DataflowRunner" else ""
        raise CommandError(Exit.BAD_USAGE, f"--runner={name} can't be imported ({error}){remedy}") from error
    except (ValueError, AttributeError) as error:
        raise CommandError(Exit.BAD_USAGE, f"--runner={name}: {error}") from error
