"""What a runner needs, checked before anything is written: it can be imported, it can have our workers, it answers."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from elmo_store.storage.location import Location
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import check_answers
from pipeline.runners.beam_options import ENGINES, pipeline_options, runner_name
from pipeline.runners.flink import fit_to_cluster
from pipeline.runners.job_service import job_service
from transforms.runtime.versions import own_versions


@contextmanager
def opened(beam_args: Sequence[str], *, wait: bool = True) -> Iterator[PipelineOptions]:
    """Beam's options of a runner that is there, its job service running as long as the block does.

    ``wait``: whether the command stays until the job ends. If not, the job must not depend on what ends with the command.
    CommandError: bad usage for options that can't be or are missing, bad location for what does not answer.
    """
    options = pipeline_options(beam_args)
    name = runner_name(options)
    if not wait:
        check_leaving(name, options)
    problems = dataflow_problems(options) if name == "DataflowRunner" else []
    # Beam would ask these two once the store's start is written.
    problems = problems or PipelineOptionsValidator(options, create_runner(name)).validate()
    if problems := problems or (engine_problems(options) if name in ENGINES else []):
        raise CommandError(
            Exit.BAD_USAGE, f"--runner={name}: " + "; ".join(dict.fromkeys(problems))
        )
    fit_to_cluster(options, beam_args)
    with job_service(options) if name in ENGINES else nullcontext():
        yield options


def check_leaving(name: str, options: PipelineOptions) -> None:
    """CommandError for ``--no-wait`` where the job would end with this command, or before it has begun."""
    if name != "DataflowRunner" and options.view_as(PortableOptions).job_endpoint is None:
        raise CommandError(
            Exit.BAD_USAGE,
            f"--no-wait: a job of {name} ends with this command: leave it out, or start a job service of your own and give "
            "--job_endpoint=HOST:PORT",
        )


def engine_problems(options: PipelineOptions) -> list[str]:
    """Why an engine could not start workers that have our package."""
    portable = options.view_as(PortableOptions)
    image = portable.environment_config or portable.lookup_environment_option(
        "docker_container_image"
    )
    try:
        if portable.environment_type == "DOCKER" and not image:
            raise ValueError("Beam's own image has no elmo-store")
        create_runner(runner_name(options)).default_environment(options)
    except Exception as error:  # Beam raises what it likes
        return [
            f"--environment_type={portable.environment_type} can't be used ({error}): leave it out, for a process of "
            "elmo-store-worker, in PATH on every machine of the engine, or give --environment_type=EXTERNAL "
            "--environment_config=HOST:PORT, a pool of workers on each"
        ]
    return []


def dataflow_problems(options: PipelineOptions) -> list[str]:
    """What Dataflow would refuse, or try for minutes, once the store's start is written. CommandError if its storage is away."""
    try:
        import apache_beam.io.gcp.gcsfilesystem
        import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
    except ImportError as error:
        return [f"it can't be used ({error}): pip install '.[dataflow]' in elmo-store's checkout"]
    google, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    problems = []
    if not image and not setup.setup_file and not setup.extra_packages:
        problems.append(
            "workers would start in Google's own image, which has no elmo-store: give --sdk_container_image=IMAGE "
            "--sdk_location=container (target `dataflow` of deploy/docker/Dockerfile), or from a checkout "
            "--setup_file=./setup.py --requirements_file=deploy/dataflow/requirements.txt"
        )
    stock = re.search(
        r"beam_python(\d+\.\d+)_sdk:(\d+\.\d+\.\d+)", image or ""
    )  # another one's name does not tell
    if stock and (theirs := f"Python {stock[1]} with Apache Beam {stock[2]}") != own_versions():
        problems.append(
            f"--sdk_container_image={image} has {theirs}, this command {own_versions()}: both must be the same"
        )
    if not google.temp_location:  # Beam would look for a bucket of the project, and make one
        problems.append(
            "--temp_location is missing: a folder gs://BUCKET/… that Dataflow may write"
        )
    if options.view_as(TestOptions).dry_run:
        problems.append(
            "--dry_run=True would leave a started store; --dry-run (with a dash) of this command says what a job costs"
        )
    if not problems:  # before Beam asks it, for minutes if it does not answer
        check_answers([Location("--temp_location", google.temp_location)])
    return problems
