"""What a runner needs, checked before anything is written: it can be imported, it can have our workers, it answers."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
from pipeline.runners.beam_options import ENGINES, is_local, pipeline_options, runner_name
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
    if name == "DataflowRunner":
        check_dataflow(options)
    if name not in ENGINES:
        yield options
        return
    fit_to_cluster(options, beam_args)
    with job_service(options):
        yield options


def check_leaving(name: str, options: PipelineOptions) -> None:
    """CommandError for ``--no-wait`` where the job would end with this command, or before it has begun."""
    if name != "DataflowRunner" and options.view_as(PortableOptions).job_endpoint in (None, "embed"):
        raise CommandError(
            Exit.BAD_USAGE,
            f"--no-wait: a job of {name} ends with this command: leave it out, or start a job service of your own and give "
            "--job_endpoint=HOST:PORT",
        )


def check_dataflow(options: PipelineOptions) -> None:
    """CommandError for what Dataflow would refuse, or try for minutes, once the store's start is written."""
    try:
        import apache_beam.io.gcp.gcsfilesystem
        import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
    except ImportError as error:
        remedy = "pip install '.[dataflow]' in elmo-store's checkout"
        raise CommandError(Exit.BAD_USAGE, f"--runner=DataflowRunner can't be used ({error}): {remedy}") from error
    google = options.view_as(GoogleCloudOptions)
    problems = _image_problems(options)
    if not google.temp_location:  # Beam would look for a bucket of the project, and make one
        problems.append("--temp_location is missing: a folder gs://BUCKET/… that Dataflow may write")
    if options.view_as(TestOptions).dry_run:
        problems.append(
            "--dry_run=True would leave a started store; --dry-run (with a dash) of this command says what a job costs"
        )
    if not problems:  # in this order: Beam asks the storage too, for minutes if it does not answer
        check_answers([Location("--temp_location", google.temp_location)])
        problems = PipelineOptionsValidator(options, create_runner("DataflowRunner")).validate()
    if problems:
        raise CommandError(Exit.BAD_USAGE, "--runner=DataflowRunner: " + "; ".join(dict.fromkeys(problems)))


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
    """CommandError for a location that the runner's workers can't reach.

    ``shared_disk``: the user says that every worker sees local paths as this machine does.
    """
    if shared_disk or is_local(options):
        return
    for location in locations:
        scheme, separator, _ = location.url.partition("://")
        if not separator or scheme in ("file", "local", "memory"):
            raise CommandError(
                Exit.BAD_LOCATION,
                f"the {location} is a path of this machine, and {runner_name(options)}'s workers run on others: give a URL "
                "that they reach too (gs://…, s3://…), or --shared-disk if every worker has this path mounted",
            )
