"""A job as its runner has it: submitted, named by its id and console address, waited for, cancelled."""

import shlex
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from pipeline.runners import flink
from pipeline.runners.beam_options import ENGINES, LOCAL_RUNNER, runner_name

LOOK_SECONDS = 0.5
# Of worker processes on this machine. A terminal sends Ctrl-C to them too, and to the shell that Beam starts them by: the command
# ends them.
WORKER = f"trap '' INT; exec {shlex.quote(sys.executable)} -c 'from elmo_store.__main__ import local_worker; local_worker()'"


@dataclass(frozen=True)
class SubmittedJob:
    """A job of the runner that ``options`` name.

    ``result``: Beam's PipelineResult; None of a job whose command is gone. ``id``: the name by which the engine knows it; None of
    a job of this process, and of a template.
    """

    result: Any
    options: PipelineOptions
    id: str | None

    @cached_property
    def console(self) -> str | None:
        """The address of the page that shows this job, None if the engine has none that we know."""
        if runner_name(self.options) == "DataflowRunner" and self.id is not None:
            google = self.options.view_as(GoogleCloudOptions)
            return f"https://console.cloud.google.com/dataflow/jobs/{google.region}/{self.id}?project={google.project}"
        address = flink.address_of(self.options)
        return None if address is None else flink.page_of(address, self.id or "")

    def wait(self) -> None:
        """Return when it is done; raises what the runner raises if it fails, RuntimeError with what Flink says."""
        address = flink.address_of(self.options)
        if address is not None and (flink.follow(address, self.id or "") or self.result is None):
            return
        # Beam's thread that reads a job's messages would end with a traceback where the job service ends before the job.
        while runner_name(self.options) in ENGINES and not PipelineState.is_terminal(
            self.result.state
        ):
            time.sleep(LOOK_SECONDS)
        try:
            self.result.wait_until_finish()
        except (
            RuntimeError
        ) as error:  # with the service's last message alone, which may lack the cause
            messages = getattr(
                self.result, "_messages", ()
            )  # Beam has no public name for them (2.77)
            said = (message.message_response.message_text for message in messages)
            raise RuntimeError("\n".join([str(error), *said])) from error

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


def submit(transform: "beam.PTransform[Any, Any]", options: PipelineOptions) -> SubmittedJob:
    """Hand the pipeline of ``transform`` to its runner; a local runner runs it to its end here. Errors are the runner's."""
    pipeline = beam.Pipeline(
        runner=LocalRunner() if runner_name(options) == LOCAL_RUNNER else None, options=options
    )
    _ = pipeline | transform
    result: Any = pipeline.run()
    job_id: str | None = None
    with suppress(
        AttributeError
    ):  # a local runner's, and Dataflow's of a template, which has no job
        job_id = (
            result.job_id() if runner_name(options) == "DataflowRunner" else result._job_id
        )  # no public name (2.77)
    return SubmittedJob(result, options, job_id)


def template_of(options: PipelineOptions) -> str | None:
    """Where Dataflow's client puts the job as a template instead of running it, as it does for a Flex Template."""
    template = options.view_as(GoogleCloudOptions).template_location
    return str(template) if template and runner_name(options) == "DataflowRunner" else None
