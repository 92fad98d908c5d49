"""The program that a Dataflow Flex Template starts: its parameters as an ``elmo-store embed`` command that submits and ends.

A template's parameters are all ``--name=value`` with underscores: ``input`` (several with commas between) becomes the
positional INPUT, ``shard_rows=64`` becomes ``--shard-rows 64``, ``overwrite=true`` becomes ``--overwrite``. Everything else is
Beam's and passes through, also what the service itself adds.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

INPUT = "input"


def embed_options() -> Mapping[str, argparse.Action]:
    """The options of ``embed`` by the name of their template parameter."""
    from pipeline.jobs import spec

    parser = argparse.ArgumentParser(add_help=False)
    spec.add_arguments(parser)
    named = [action for action in parser._actions if action.option_strings]
    return {action.option_strings[-1].lstrip("-").replace("-", "_"): action for action in named}


def command_of(arguments: Sequence[str]) -> list[str]:
    """The ``elmo-store`` command that the parameters ``--name=value`` stand for.

    ValueError for a parameter without a value, a switch that is neither true nor false, or no input.
    """
    ours = embed_options()
    inputs: list[str] = []
    command = ["--no-wait"]  # the launcher's machine is not there to wait
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if name == INPUT:
            inputs += [url for url in value.split(",") if url]
        elif name not in ours:
            command.append(argument)
        elif not equals:
            raise ValueError(f"{argument}: a parameter of the template is --name=value")
        elif ours[name].nargs == 0:
            if value.lower() not in ("true", "false"):
                raise ValueError(f"{argument}: say true or false")
            command += [ours[name].option_strings[-1]] if value.lower() == "true" else []
        elif value:  # an optional parameter that was left empty in the console
            command.append(f"{ours[name].option_strings[-1]}={value}")
    if not inputs:
        raise ValueError(
            "the parameter input is missing: files, folders or globs, with commas between them"
        )
    return ["embed", *inputs, *dict.fromkeys(command)]


def main() -> int:
    """Submit; returns the command's exit code."""
    from elmo_store.__main__ import main as elmo_store

    sys.argv[1:] = command_of(sys.argv[1:])
    return elmo_store()


if __name__ == "__main__":
    sys.exit(main())
