"""Beam's runner of several processes on this machine, which begin by a program of ours."""

import shlex
import sys
from typing import Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipeline.runners.beam_options import LOCAL_RUNNERS, runner_name

WORKER = "from elmo_store.__main__ import local_worker; local_worker()"


class LocalProcesses(FnApiRunner):
    """FnApiRunner, whose worker processes are `pipeline.runners.local_worker`."""

    def run_via_runner_api(self, pipeline_proto: Any, options: PipelineOptions) -> Any:
        """As Beam's, with another command for the environment of subprocesses."""
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                # A terminal sends Ctrl-C to the workers too, and to the shell that Beam starts them by: the command ends them.
                environment.payload = f"trap '' INT; exec {shlex.quote(sys.executable)} -c {shlex.quote(WORKER)}".encode()
        return super().run_via_runner_api(pipeline_proto, options)


def local_runner(options: PipelineOptions) -> LocalProcesses | None:
    """The runner for a job of several processes of this machine; None leaves the choice to Beam."""
    if (
        runner_name(options) in LOCAL_RUNNERS - {"BundleBasedDirectRunner"}
        and options.view_as(DirectOptions).direct_running_mode == "multi_processing"
    ):
        return LocalProcesses()
    return None
