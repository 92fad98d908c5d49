"""What an engine calls a job, and who is told its id."""

import re
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

from pipeline.cli.exit_codes import Exit
from pipeline.runners import preflight
from pipeline.runners.beam_options import name_job, pipeline_options
from pipeline.runners.submission import SubmittedJob
from tests.pipeline.conftest import Command

RUN = "0123456789abcdef0123456789abcdef"


def named(output: str, *beam_args: str) -> str:
    options = pipeline_options(beam_args)
    name_job(options, "embed", output, RUN)
    return str(options.view_as(GoogleCloudOptions).job_name)


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("gs://bucket/news/States_v2", "elmo-store-embed-gs-bucket-news-states-v2-01234567"),
        ("/東京/東京", "elmo-store-embed-01234567"),
        ("out/a-longer-name-of-a-corpus-than-fits/store", "elmo-store-embed-name-of-a-corpus-than-fits-store-01234567"),
        (f"/home/{'a' * 40}", f"elmo-store-embed-{'a' * 32}-01234567"),
    ],
)
def test_a_job_is_called_by_its_output_as_dataflow_allows(output: str, name: str) -> None:
    assert named(output) == name
    assert re.fullmatch(PipelineOptionsValidator.JOB_PATTERN, name)


def test_a_name_that_was_given_stays() -> None:
    assert named("gs://bucket/store", "--job_name=mine") == "mine"


@pytest.mark.parametrize("left", [True, False])
def test_quiet_still_prints_the_jobs_id(
    embed: Command, left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SubmittedJob, "id", "job-7")
    monkeypatch.setattr(preflight, "check_leaving", lambda name, options: None)  # the local runner runs it to its end
    assert embed(tmp_path / "store", "--quiet", *(["--no-wait"] if left else [])) == Exit.COMPLETE
    said = capsys.readouterr()
    assert (said.out if left else said.err) == "job job-7\n"
