"""The Flex Template: its parameters are the command's own options, and its launcher makes that command of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.dataflow.launcher import INPUT, command_of, embed_options
from pipeline.main import build_parser


def parameters(repo_dir: Path) -> dict[str, dict[str, object]]:
    metadata = json.loads((repo_dir / "deploy" / "dataflow" / "metadata.json").read_text("utf-8"))
    return {parameter["name"]: parameter for parameter in metadata["parameters"]}


def test_every_parameter_is_an_option_of_embed_with_its_choices_and_its_default(
    repo_dir: Path,
) -> None:
    ours = embed_options()
    for name, parameter in parameters(repo_dir).items():
        if name == INPUT:
            assert parameter["isOptional"] is False
            continue
        action = ours[name]
        # The command's --output may be missing with --dry-run, which no template runs.
        assert parameter["isOptional"] is not (action.required or name == "output"), name
        given_choices = [option["value"] for option in parameter.get("enumOptions", [])]  # type: ignore[attr-defined]
        assert not given_choices or given_choices == list(action.choices or ()), name
        default = re.search(r"Default: (\S+?)(,|$)", str(parameter["helpText"]))
        if (
            default
            and isinstance(action.default, str | int)
            and not isinstance(action.default, bool)
        ):
            assert default[1] == str(action.default), name


def test_the_launchers_command_is_one_that_embed_parses(repo_dir: Path) -> None:
    values = {
        "shard_rows": "512",
        "overwrite": "true",
        "dtype": "float32",
        "input": "gs://a/x.txt,gs://a/y.txt",
        "output": "gs://b/s",
    }
    ours = embed_options()
    sample = {}
    for name, parameter in parameters(repo_dir).items():
        sample[name] = values.get(name, "")
        if not sample[name]:
            choices: Any = parameter.get("enumOptions")
            sample[name] = str(choices[0]["value"] if choices else ours[name].default or "auto")
    command = command_of([f"--{name}={value}" for name, value in sample.items()])
    parser, _ = build_parser({"embed"})
    args = parser.parse_args(command)
    assert args.inputs == ["gs://a/x.txt", "gs://a/y.txt"]
    assert (args.output, args.shard_rows, args.overwrite, args.dtype, args.no_wait) == (
        "gs://b/s",
        512,
        True,
        "float32",
        True,
    )


def test_what_the_service_adds_passes_through() -> None:
    command = command_of(
        [
            "--input=gs://a/x",
            "--output=gs://b",
            "--runner=DataflowRunner",
            "--overwrite=false",
            "--model=",
        ]
    )
    assert command == [
        "embed",
        "gs://a/x",
        "--no-wait",
        "--output=gs://b",
        "--runner=DataflowRunner",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--output=x"],
        ["--input=", "--output=x"],
        ["--input=a", "--overwrite=maybe"],
        ["--input=a", "--store"],
    ],
)
def test_what_can_not_be_meant_is_refused(wrong: list[str]) -> None:
    with pytest.raises(ValueError, match=r"input is missing|true or false|--name=value"):
        command_of(wrong)


@given(
    st.lists(
        st.text(st.characters(blacklist_characters=",", blacklist_categories=["Cs"]), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_inputs_arrive_as_they_were_given(inputs: list[str]) -> None:
    command = command_of([f"--input={','.join(inputs)}", "--output=gs://b"])
    assert command[1 : 1 + len(inputs)] == inputs
