"""The command line by itself: help, usage errors, Beam's options set apart."""

import json
from pathlib import Path

import pytest

import elmo_store
from pipeline import beam_options
from pipeline.cli import COMMANDS, main
from pipeline.options import EmbedOptions, problems
from tests.pipeline.conftest import Command


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "4 incomplete" in text


def test_every_option_of_embed_says_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["embed", "--help"])
    text = capsys.readouterr().out
    options = text[text.index("positional arguments:") :].split("\n  --")[1:]
    assert len(options) >= 18
    silent = [o.split()[0] for o in options if "default:" not in o and not o.startswith("output")]
    assert silent == []


def test_a_mistyped_option_is_bad_usage_and_not_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--dtyp" in usage_error(capsys, "embed", "x.txt", "--output", "y", "--dtyp", "float16")
    assert "--direct_num_wrkers" in usage_error(capsys, "embed", "x", "--output", "y", "--direct_num_wrkers=2")


def test_usage_is_one_line_with_what_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    said = usage_error(capsys, "embed", "x.txt", "--max-sentences", "many").splitlines()
    assert said[0] == "usage: elmo-store embed INPUT [INPUT ...] [OPTION …]"
    assert len(said) == 2
    with pytest.raises(SystemExit):
        main(["probe", "tag", "--help"])
    assert capsys.readouterr().out.startswith("usage: elmo-store probe tag --train STORE --train-labels FILE --test STORE")


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice" in usage_error(capsys, "embd", "x")


def test_commands_without_beam_take_no_beam_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--runner" in usage_error(capsys, "models", "--runner=FnApiRunner")


@pytest.mark.parametrize(
    ("given", "ours", "beams"),
    [
        (["a", "--runner", "X", "b"], ["a", "b"], ["--runner", "X"]),
        (["--direct_num_workers=2", "a", "--streaming", "b"], ["a", "b"], ["--direct_num_workers=2", "--streaming"]),
        (["a", "--", "--runner"], ["a", "--", "--runner"], []),
        (["--experiments", "x", "--experiments", "y"], [], ["--experiments", "x", "--experiments", "y"]),
        (["a", "--runner"], ["a"], ["--runner"]),
    ],
)
def test_beam_options_are_set_apart_with_their_values(given: list[str], ours: list[str], beams: list[str]) -> None:
    assert beam_options.split_arguments(given) == (ours, beams)


def test_no_option_of_ours_hides_one_of_beams() -> None:
    own = {"--" + name.replace("_", "-") for name in EmbedOptions.__dataclass_fields__}
    assert not own & set(beam_options.beam_flags())


def test_the_local_runner_is_the_default_by_name_and_can_be_overridden() -> None:
    local = beam_options.pipeline_options([])
    assert beam_options.is_local(local)
    assert local.get_all_options()["runner"] == "FnApiRunner"
    assert not beam_options.is_local(beam_options.pipeline_options(["--runner=PortableRunner"]))


def test_processes_of_this_machine_share_its_cores() -> None:
    options = beam_options.pipeline_options(["--direct_running_mode=multi_processing", "--direct_num_workers=3"])
    assert beam_options.n_local_processes(options) == 3
    assert beam_options.n_local_processes(beam_options.pipeline_options([])) == 1


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (EmbedOptions(("x",), "y", shard_rows=1000), "take 1024"),
        (EmbedOptions(("x",), "y", shard_rows=0), "take 128"),
        (EmbedOptions(("x",), "y", lanes=0), "give 1 or more"),
        (EmbedOptions(("x",), "y", input_format="lines", id_field="id"), "leave it out"),
        (EmbedOptions(("x",), " "), "--output is empty"),
    ],
)
def test_senseless_options_are_named_with_the_remedy(options: EmbedOptions, remedy: str) -> None:
    assert any(remedy in problem for problem in problems(options))


def test_sound_options_have_no_problems() -> None:
    assert list(problems(EmbedOptions(("x",), "y", shard_rows=64))) == []


def test_models_lists_the_random_one_under_its_name_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "random-small" in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    assert "random-small" in {model["name"] for model in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(("document", "ids"), [("paragraph", ["t.txt:0:0", "t.txt:1:0"]), ("file", ["t.txt:0", "t.txt:1"])])
def test_what_a_document_is(embed: Command, tmp_path: Path, document: str, ids: list[str]) -> None:
    text = tmp_path / "t.txt"
    text.write_text("One sentence here.\n\nAnother one there.\n", encoding="utf-8")
    options = ["--input-format", "text", "--shard-rows", "64", "--document", document]
    assert embed(tmp_path / "store", *options, inputs=[str(text)]) == 0
    assert [sentence.id for sentence in elmo_store.open(tmp_path / "store")] == ids
