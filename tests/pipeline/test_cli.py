"""The command line by itself: help, usage errors, Beam's options set apart."""

import os
import re
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

import elmo_store
from pipeline.cli.exit_codes import Exit
from pipeline.jobs.spec import EmbedOptions, problems
from pipeline.main import COMMANDS, build_parser, main
from pipeline.runners import beam_options
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
    assert "4  incomplete" in text


def test_every_option_says_its_default_or_that_it_is_required() -> None:
    _, commands = build_parser(set(COMMANDS))
    options = [
        (parser.prog, action.option_strings[-1], action.help or "")
        for parser, _ in commands.values()
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]
    assert len(options) > 100
    assert [
        (prog, name)
        for prog, name, help in options
        if not re.search(r"\((default: |required)", help)
    ] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "embed x --output y --model",
        "embed x --output",
        "verify . --recompute 1 --model",
        "convert . --output x --states",
        "train x --output y --options",
        "mix . --output x --weights",
    ],
)
def test_an_empty_value_is_not_the_default(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, option = arguments.split()
    assert main([*arguments.split(), ""]) == Exit.BAD_USAGE
    assert f"{option} is empty: " in capsys.readouterr().err


def test_a_mistyped_option_is_bad_usage_and_not_passed_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--dtyp" in usage_error(capsys, "embed", "x.txt", "--output", "y", "--dtyp", "float16")
    assert "--direct_num_wrkers" in usage_error(
        capsys, "embed", "x", "--output", "y", "--direct_num_wrkers=2"
    )


def test_a_usage_error_is_two_lines_with_what_must_be_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = usage_error(capsys, "embed", "x.txt", "--workers", "many").splitlines()
    assert (
        said[0]
        == "usage: elmo-store embed ARGUMENT … [OPTION …] (elmo-store embed --help shows them)"
    )
    assert len(said) == 2
    assert "required: STORE, --output" in usage_error(capsys, "mix")


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice" in usage_error(capsys, "embd", "x")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--direct_num_workers=x", "invalid int value: 'x'"),
        ("--direct_running_mode=x", "invalid choice: 'x'"),
    ],
)
def test_a_value_that_beam_does_not_take_is_a_line(
    option: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = usage_error(
        capsys, "embed", __file__, "--output", str(tmp_path / "out"), option
    ).splitlines()
    assert told.startswith(f"elmo-store: error: argument {option.partition('=')[0]}: {said}")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("verify x --recompute -1", "give 0 or more"),
        ("embed x --output y --threads 100000000", "give 1 to 1024"),
        ("embed x --output y --workers 0", "give 1 or more"),
        ("compact x --keep-versions 0", "give 1 or more"),
        ("explore x --port 65536", "give 1 to 65535"),
        ("train x --rate nan", "give a number above 0"),
    ],
)
def test_a_number_out_of_range_is_bad_usage(
    arguments: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, option, value = arguments.split()
    assert f"argument {option}: {value} is out of range: {wanted}" in usage_error(
        capsys, *arguments.split()
    )


def test_train_names_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "x"]) == Exit.BAD_USAGE
    assert "give --options, --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "mix . --output out --weights FOLDER",
        "remove . --ids FOLDER",
        "train TEXT --output out --options FOLDER",
    ],
)
def test_a_folder_or_pipe_in_place_of_a_file_is_refused(
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    os.mkfifo(
        tmp_path / "PIPE"
    )  # as of a shell's <(…), which could not be read twice, nor backwards
    (tmp_path / "TEXT").write_text("a b\n", encoding="utf-8")
    for name in ("FOLDER", "PIPE"):
        assert main(arguments.replace("FOLDER", name).split()) == Exit.BAD_LOCATION
        assert capsys.readouterr().err.endswith(f" {name}: it is not a file: name a file\n")


STORE_COMMANDS = {
    "embed": ["embed", "TEXT", "--output", "s3:/bucket/store"],
    "embed's input": ["embed", "gs:/bucket/text.txt", "--output", "out"],
    "convert": ["convert", "s3:/bucket/store", "--output", "out"],
    "mix": ["mix", ".", "--weights", "w.json", "--output", "s3:/bucket/store"],
    "export": ["export", ".", "--format", "npz", "--output", "file:/tmp/x.npz"],
    "collect": ["collect", "s3:/bucket/all", "."],
    "remove": ["remove", "s3:/bucket/all", "--ids", "TEXT"],
    "compact": ["compact", "s3:/bucket/all"],
    "info": ["info", "s3:/bucket/store"],
    "verify": ["verify", "abfs:/c/store"],
    "watch": ["watch", "s3:/bucket/store"],
    "report": ["report", ".", "--output", "s3:/bucket/page.html"],
    "explore": ["explore", "gs:/bucket/store"],
    "train": ["train", "TEXT", "--options", "default", "--output", "s3:/bucket/run"],
    "models convert": ["models", "convert", "random-small", "s3:/bucket/model"],
}


@pytest.mark.parametrize("command", STORE_COMMANDS)
def test_a_url_that_lacks_a_slash_is_no_folder(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("a b\n", encoding="utf-8")
    assert main(STORE_COMMANDS[command]) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert "one slash where a URL has two: write " in said
    assert [path.name for path in tmp_path.iterdir()] == ["TEXT"]


UNKNOWN = {
    "--output": "embed TEXT --output foo://x",
    "--into": "embed TEXT --into foo://x",
    "--model": "explore . --model foo://x",
    "--weights": "mix . --weights foo://x --output out",
    "--ids": "remove . --ids foo://x",
    "STORE": "info foo://x",
}


@pytest.mark.parametrize("option", UNKNOWN)
def test_an_unknown_protocol_is_called_one(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("a b\n", encoding="utf-8")
    assert main(UNKNOWN[option].split()) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    what = {"--output": "output", "--into": "output", "STORE": "store"}.get(option, option)
    assert (
        f"the {what} foo://x can't be used: fsspec knows no protocol foo: check its spelling"
        in said
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "gs://bucket/store"],
        ["embed", __file__, "--output", "gs://bucket/store"],
        ["verify", "gcs://b/s"],
    ],
)
def test_googles_storage_that_does_not_answer_is_told_in_a_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    for protocol in ("gs", "gcs"):  # whether Google's client is installed or not
        monkeypatch.setitem(_registry, protocol, MemoryFileSystem)
    options = '{"endpoint_url": "http://127.0.0.1:1", "token": "anon"}'
    assert main([*arguments, "--storage-options", options]) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert "127.0.0.1:1 does not answer" in said
    assert said.count("\n") == 1


def test_a_blank_input_offers_no_sentence(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "blank.tok"
    text.write_text("\n")
    out = tmp_path / "out"
    assert (
        main(["embed", str(text), "--output", str(out), "--model", str(tiny_model)])
        == Exit.COMPLETE
    )
    said = capsys.readouterr().out
    assert "1 sentence, 0 tokens: nothing was there to embed" in said
    assert "sentence(0)" not in said
    assert (
        main(["convert", str(out), "--output", str(tmp_path / "small"), "--dtype", "int8"])
        == Exit.COMPLETE
    )
    assert "sentence(0)" not in capsys.readouterr().out


def test_commands_without_beam_take_no_beam_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--runner" in usage_error(capsys, "models", "--runner=FnApiRunner")


@pytest.mark.parametrize(
    ("given", "ours", "beams"),
    [
        (["a", "--runner", "X", "b"], ["a", "b"], ["--runner", "X"]),
        (
            ["--direct_num_workers=2", "a", "--streaming", "b"],
            ["a", "b"],
            ["--direct_num_workers=2", "--streaming"],
        ),
        (
            ["--experiments", "x", "--experiments", "y"],
            [],
            ["--experiments", "x", "--experiments", "y"],
        ),
        (["a", "--runner"], ["a"], ["--runner"]),
    ],
)
def test_beam_options_are_set_apart_with_their_values(
    given: list[str], ours: list[str], beams: list[str]
) -> None:
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
    options = beam_options.pipeline_options(
        ["--direct_running_mode=multi_processing", "--direct_num_workers=3"]
    )
    assert beam_options.n_workers(options) == 3
    assert beam_options.n_workers(beam_options.pipeline_options([])) == 1


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (EmbedOptions(("x",), "y", shard_rows=1000), "use 1024"),
        (EmbedOptions(("x",), "y", shard_rows=0), "use 128"),
        (EmbedOptions(("x",), "y", input_format="lines", id_field="id"), "leave it out"),
        (
            EmbedOptions(("x",), "y", input_format="text", document="sentence"),
            "--document sentence belongs to jsonl",
        ),
        (
            EmbedOptions(("x",), "y", input_format="csv", document="file"),
            "--document file belongs to text; the input is csv",
        ),
        (EmbedOptions(("x",), " "), "--output is empty"),
        (EmbedOptions(("x",), "y", keep_fields=" ,"), "names no field"),
    ],
)
def test_senseless_options_are_named_with_the_remedy(options: EmbedOptions, remedy: str) -> None:
    assert any(remedy in problem for problem in problems(options))


def test_sound_options_have_no_problems() -> None:
    assert list(problems(EmbedOptions(("x",), "y", shard_rows=64))) == []


def test_models_lists_the_random_one_under_its_name_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models"]) == 0
    assert "random-small" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("document", "ids"), [
    ("paragraph", ["t.txt:0:0", "t.txt:1:0"]), ("line", ["t.txt:0:0", "t.txt:1:0", "t.txt:2:0"]),
    ("file", ["t.txt:0", "t.txt:1", "t.txt:2"]),
])  # fmt: skip
def test_what_a_document_is(embed: Command, tmp_path: Path, document: str, ids: list[str]) -> None:
    text = tmp_path / "t.txt"
    text.write_text("One sentence\nhere.\n\nAnother one there.\n", encoding="utf-8")
    options = ["--input-format", "text", "--shard-rows", "64", "--document", document]
    assert embed(tmp_path / "store", *options, inputs=[str(text)]) == 0
    assert [sentence.id for sentence in elmo_store.open(tmp_path / "store")] == ids


def test_a_model_is_converted_into_a_local_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "convert", "random-small", "file:///nowhere/model"]) == Exit.BAD_USAGE
    assert "FOLDER file:///nowhere/model is a URL: give a local path" in capsys.readouterr().err
