"""What an engine calls a job, and who is told its id."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

from pipeline.cli.exit_codes import Exit
from pipeline.jobs import run, runner
from pipeline.runners.beam_options import name_job, pipeline_options
from pipeline.runners.submission import submit
from tests.pipeline.conftest import Command

RUN = "0123456789abcdef0123456789abcdef"


def named(*beam_args: str) -> str:
    options = pipeline_options(beam_args)
    name_job(options, "embed", RUN)
    return str(options.view_as(GoogleCloudOptions).job_name)


def test_a_job_is_called_by_its_run_as_dataflow_allows() -> None:
    assert named() == "elmo-store-embed-01234567"
    assert re.fullmatch(PipelineOptionsValidator.JOB_PATTERN, named())


def test_a_name_that_was_given_stays() -> None:
    assert named("--job_name=mine") == "mine"
    assert named("--job_name=mine", "--runner=FlinkRunner") == "mine-01234567"


@pytest.mark.parametrize("left", [True, False])
def test_quiet_still_prints_the_jobs_id(
    embed: Command,
    left: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "submit", lambda *given: replace(submit(*given), id="job-7"))
    monkeypatch.setattr(
        runner, "check_leaving", lambda name, options: None
    )  # the local runner runs it to its end
    assert embed(tmp_path / "store", "--quiet", *(["--no-wait"] if left else [])) == Exit.COMPLETE
    said = capsys.readouterr()
    assert (said.out if left else said.err) == "job job-7\n"
