"""A job as its runner has it: submitted, named by its id and console address, waited for, cancelled."""

import re
import shlex
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.runners import flink
from pipeline.runners.beam_options import LOCAL_RUNNER, is_local, runner_name

# Of worker processes on this machine. A terminal sends Ctrl-C to them too, and to the shell that Beam starts them by: the command
# ends them.
WORKER = f"trap '' INT; exec {shlex.quote(sys.executable)} -c 'from elmo_store.__main__ import local_worker; local_worker()'"


@dataclass(frozen=True)
class SubmittedJob:
    """A job of the runner that ``options`` name; ``result`` is Beam's PipelineResult."""

    result: Any
    options: PipelineOptions

    @property
    def id(self) -> str | None:
        """The name by which the engine knows it; None for a job of this process or a template."""
        with suppress(AttributeError):  # Dataflow's result of a template has no job
            if runner_name(self.options) == "DataflowRunner":
                return str(self.result.job_id())
            return str(self.result._job_id)  # Beam has no public name for it (2.77)
        return None

    @cached_property
    def console(self) -> str | None:
        """The address of the page that shows this job, None if the engine has none that we know."""
        if runner_name(self.options) == "DataflowRunner" and self.id is not None:
            google = self.options.view_as(GoogleCloudOptions)
            return f"https://console.cloud.google.com/dataflow/jobs/{google.region}/{self.id}?project={google.project}"
        address = flink.address_of(self.options)
        return None if address is None else flink.page_of(address, self.id or "", self._goes_on)

    def _goes_on(self) -> bool:
        return not PipelineState.is_terminal(getattr(self.result, "state", PipelineState.RUNNING))

    def wait(self) -> None:
        """Return when it is done; raises what the runner raises if it fails.

        The error names a worker's program that can't be run, and the JobManager of a Flink that is lost.
        """
        try:
            self.result.wait_until_finish()
        except Exception as error:
            if program := missing_program(self.result):
                raise RuntimeError(program) from error
            if (address := flink.address_of(self.options)) is not None:
                try:
                    flink.answer(address, "overview", "its JobManager is lost, and with it the job unless another one goes on")
                except CommandError as lost:
                    raise RuntimeError(str(lost)) from error
            raise

    def members(self) -> dict[str, str]:
        """The engine's machines as it tells them, id → host; {} of an engine that is not asked."""
        address = flink.address_of(self.options)
        return {} if address is None else flink.members(address)

    def cancel(self) -> None:
        """Ask the engine to end it: Flink itself, for Beam's own call may end only the submission."""
        if (address := flink.address_of(self.options)) is None:
            self.result.cancel()
        else:
            flink.cancel(address, self.id or "")


class LocalRunner(FnApiRunner):
    """FnApiRunner, whose worker processes begin as ours do."""

    def run_via_runner_api(self, pipeline_proto: Any, options: PipelineOptions) -> Any:
        """As Beam's, with another command for the environment of subprocesses."""
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = WORKER.encode()
        return super().run_via_runner_api(pipeline_proto, options)


def pipeline_of(transform: "beam.PTransform[Any, Any]", options: PipelineOptions) -> beam.Pipeline:
    """The pipeline of ``transform`` alone."""
    pipeline = beam.Pipeline(runner=LocalRunner() if runner_name(options) == LOCAL_RUNNER else None, options=options)
    _ = pipeline | transform
    return pipeline


def submit(pipeline: beam.Pipeline, options: PipelineOptions) -> SubmittedJob:
    """Hand ``pipeline`` to its runner; a local runner runs it to its end here.

    CommandError (bad location) if an engine does not take it: then no work has begun.
    """
    try:
        return SubmittedJob(pipeline.run(), options)
    except Exception as error:
        if is_local(options):
            raise
        raise CommandError(
            Exit.BAD_LOCATION,
            f"{runner_name(options)} did not take the job: {worker_error(str(error)) or repr(error)}\n"
            "Nothing was computed; the output holds only the job's plan.",
        ) from error


def template_of(options: PipelineOptions) -> str | None:
    """Where Dataflow's client puts the job as a template instead of running it, as it does for a Flex Template."""
    template = options.view_as(GoogleCloudOptions).template_location
    return str(template) if template and runner_name(options) == "DataflowRunner" else None


def remove_shared_files(run: str) -> None:
    """Remove the files by which processes of this machine found the model of ``run``, which has ended; Beam leaves them."""
    for path in Path(tempfile.gettempdir()).glob(f"elmo-store-{run}*"):
        path.unlink(missing_ok=True)


def missing_program(result: Any) -> str | None:
    """What a job service's messages say of a program that can't be run; its last one names only the error's number."""
    messages = getattr(result, "_messages", ())  # Beam has no public name for them (2.77)
    said = (re.search(r'Cannot run program ".*', message.message_response.message_text) for message in messages)
    return next((match[0] for match in said if match), None)


def worker_error(text: str) -> str:
    """What happened, out of a runner's message: a worker's exception, otherwise its first line and its last cause."""
    _, begins, trace = text.rpartition("Traceback (most recent call last):")
    if begins and (own := re.search(r"^[\w.]+(: .*|)$(\n(?!\s+at |$).*)*", trace, re.MULTILINE)):
        return own[0]
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"\s+(at |\.\.\. )", line)]
    return "\n".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
