"""``--config`` and ``--log-level``: what a file says, and that the command line wins."""

import argparse
import logging
from pathlib import Path

import pytest

from pipeline.cli import config, logs
from pipeline.cli.exit_codes import Exit
from pipeline.main import build_parser, main


def parsed(tmp_path: Path, toml: str, *arguments: str) -> argparse.Namespace:
    """What ``embed`` is asked for with this file and these arguments."""
    file = tmp_path / "job.toml"
    file.write_text(toml, encoding="utf-8")
    parser, _ = build_parser({arguments[0]})
    return parser.parse_args(config.with_config(parser, [*arguments, "--config", str(file)]))


def test_a_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    toml = 'inputs = ["a.txt", "b.txt"]\noutput = "out"\nshard-rows = 1024\nboundaries = true\noverwrite = false\n'
    args = parsed(tmp_path, toml, "embed")
    assert (args.inputs, args.output, args.shard_rows, args.boundaries, args.overwrite) == (
        ["a.txt", "b.txt"], "out", 1024, True, False,
    )  # fmt: skip
    args = parsed(tmp_path, toml, "embed", "c.txt", "--shard-rows", "512", "--output=other")
    assert (args.inputs, args.output, args.shard_rows) == (["c.txt"], "other", 512)


def test_a_table_is_a_json_option_and_a_subcommand_has_its_own_keys(tmp_path: Path) -> None:
    args = parsed(tmp_path, '[storage-options]\nendpoint_url = "x"\nanon = true\n', "info", "s3://b/s")
    assert args.storage_options == {"endpoint_url": "x", "anon": True}
    args = parsed(tmp_path, 'model = "m"\noutput = "o"\ndtype = "float16"\n', "models", "convert")
    assert (args.model, args.output, args.dtype) == ("m", "o", "float16")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("shardrows = 5", "no option 'shardrows'"),
        ("boundaries = 1", "write true or false"),
        ("dtype = true", "write a string"),
        ("into = 5", "into is 5: write a string"),
        ("keep-fields = 2024-01-01", "write a string"),
        ("inputs = [5]", "write a string"),
        ('shard-rows = "64"', "shard-rows is '64': write a whole number"),
        ("shard-rows = 64.0", "write a whole number"),
        ("shard-rows = true", "write a whole number"),
        ('max-reject-rate = "0.5"', "write a number"),
        ('storage-options = "{}"', "write a table"),
        ("[output]\na = 1", "write a string"),
        ("dtype = ", "is not TOML"),
        ("beam = 3", "write a table"),
    ],
)
def test_what_a_file_can_not_say(tmp_path: Path, toml: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text(toml, encoding="utf-8")
    assert main(["embed", "x", "--output", "y", "--config", str(file)]) == Exit.BAD_USAGE
    said = capsys.readouterr().err
    assert message in said
    assert "job.toml" in said


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "x", "--output", "y", "--config", str(tmp_path / "none.toml")]) == Exit.BAD_LOCATION
    assert "none.toml" in capsys.readouterr().err


def test_a_wrong_value_in_a_file_is_argparse_s_own_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(tmp_path, 'dtype = "float17"', "embed", "x", "--output", "y")
    assert "invalid choice: 'float17'" in capsys.readouterr().err


def test_a_mistake_of_the_command_line_is_told_although_a_file_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(tmp_path, "", "embed", "x", "--output", "y", "--shard-rows", "many")
    assert "invalid int value: 'many'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["embed", "x", "--output", "y", "--config"])
    assert "expected one argument" in capsys.readouterr().err


@pytest.fixture
def own_logging() -> object:
    """Logging as it was before the test, afterwards."""
    root, beam = logging.getLogger(), logging.getLogger(logs.BEAM)
    before = list(root.handlers), root.level, list(root.filters), beam.level
    yield None
    logs.configure()
    root.handlers, root.level, root.filters = before[0], before[1], before[2]
    beam.setLevel(before[3])


@pytest.mark.usefixtures("own_logging")
def test_beams_log_is_not_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("apache_beam.runners").error("a failure")
    logging.getLogger("transforms.inputs.files").warning("ours")
    logging.getLogger().warning("apitools not found, and so on")
    assert capsys.readouterr().err == "WARNING transforms.inputs.files: ours\n"


@pytest.mark.usefixtures("own_logging")
def test_a_level_that_was_asked_for_shows_beams_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    logs.configure("info")  # a second command in the same process says nothing twice
    logging.getLogger("apache_beam").info("a detail")
    assert capsys.readouterr().err == "INFO apache_beam: a detail\n"
    logs.configure()
    logging.getLogger("apache_beam").error("a failure")
    assert capsys.readouterr().err == ""
