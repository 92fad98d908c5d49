"""The command ``elmo-store``: a table of subcommands, whose modules are imported when they are asked for."""

import argparse
import importlib
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence, Set

import elmo_store
from elmo_store.errors import StoreError
from pipeline.cli import locations, logs, signals
from pipeline.cli.arguments import add_option
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit, code_of
from pipeline.cli.terminal import escaped

# group of the help: name: (module of pipeline.commands, one line of help)
GROUPS = {
    "make stores": {
        "embed": ("embed", "compute every state of every token of a corpus into a store"),
        "mix": ("derive", "mix a store's layers with learned weights into another store"),
        "convert": ("derive", "write a store in another form, as int8, or with fewer states"),
        "export": ("export", "write a store's vectors as files that other programs read"),
    },
    "let stores grow": {
        "collect": ("collections", "add stores to a collection, which reads as one store"),
        "remove": ("collections", "remove sentences from a collection, as a new version of it"),
        "compact": ("collections", "rewrite a collection without the bytes of removed sentences"),
    },
    "look at stores": {
        "info": ("info", "print what a store holds, and how to open it"),
        "watch": ("info", "follow a running job"),
        "verify": ("verify", "read every object of a store and report what is wrong with it"),
        "report": ("report", "write a static HTML report of a store"),
        "explore": ("explore", "serve an interactive local page: sentences, neighbours, mixes"),
    },
    "models": {
        "models": ("models", "list models by name, or convert one"),
        "train": ("train", "train a biLM on text"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

EXIT_CODES = """\
exit codes:
  0  complete
  2  bad usage
  3  an input, output or store location that can't be used
  4  incomplete: rerun the command that writes the output to resume
  5  refused: another job or run has that output
  6  damaged: verify found faults"""
ENVIRONMENT = """\
environment:
  ELMO_STORE_CACHE  folder for downloaded models
                    (default: elmo-store in XDG_CACHE_HOME or ~/.cache)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (argparse ends the process itself, with 2, on bad usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    asked = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    name = f"elmo-store {asked}".rstrip()
    options: set[str] = set()  # of the command, known once its module is imported
    with escaped(options):
        try:
            with signals.as_interrupts():
                code = _command(asked, arguments, options)
                sys.stdout.flush()  # whoever reads it may be gone, or its disk full
                return code
        except (CommandError, StoreError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return int(code_of(error))
        except KeyboardInterrupt as end:
            goes_on = "; rerun the same command to resume" if asked in GROUPS["make stores"] else ""
            signals.say(f"\nstopped by {signals.name_of(end)}{goes_on}")
            return int(Exit.INCOMPLETE)
        except BrokenPipeError:  # `elmo-store info … | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return int(Exit.COMPLETE)
        except OSError as error:  # storage that failed where it was not expected to; what was written before stays good
            logging.getLogger(__name__).debug("where it failed", exc_info=True)
            print(
                f"{name}: {type(error).__name__}: {error}; fix this, then rerun the same command",
                file=sys.stderr,
            )
            return int(Exit.BAD_LOCATION)


def _command(asked: str, arguments: list[str], options: set[str]) -> int:
    """Run the command ``asked``, whose options are added to ``options``; returns the exit code."""
    parser, commands = build_parser({asked})
    if not asked:
        parser.parse_args(arguments)  # help, version, or no such command: each ends the process
    subparser, command = commands[asked]
    arguments = arguments[1:]
    beam_args: list[str] = []
    options.update(name for action in subparser._actions for name in action.option_strings)
    if (
        command.takes_beam_options
        and not {name.partition("=")[0] for name in arguments if name.startswith("--")} <= options
    ):
        logs.configure()  # before the import: Beam talks while it is imported
        from pipeline.runners.beam_options import split_arguments

        arguments, beam_args = split_arguments(arguments)
    args = subparser.parse_args(arguments, argparse.Namespace(command=asked, beam_args=beam_args))
    _check_no_option_is_empty(subparser, args)
    command.check(args)
    locations.check(command.touches(args))
    logs.configure(args.log_level)
    return int(command.run(args))


def _check_no_option_is_empty(leaf: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """CommandError (bad usage) for ``--model "$NOT_SET"``, which would be the default model."""
    for action in leaf._actions:
        if (
            action.option_strings
            and action.nargs is None
            and action.default != ""
            and getattr(args, action.dest, None) == ""
        ):
            raise CommandError(
                Exit.BAD_USAGE,
                f"{action.option_strings[-1]} is empty: give a value, or leave it out",
            )


def build_parser(
    asked: Set[str],
) -> tuple[argparse.ArgumentParser, dict[str, tuple[argparse.ArgumentParser, Command]]]:
    """The parser, and those of the commands in ``asked``, whose modules are imported: `elmo-store --help` needs none."""
    parser = argparse.ArgumentParser(
        prog="elmo-store",
        usage="elmo-store COMMAND … (elmo-store COMMAND --help shows its options)",
        description="Every layer of a frozen ELMo biLM, computed once over a whole corpus and kept in Zarr and Parquet.\n\n"
        + "\n".join(
            line
            for group, commands in GROUPS.items()
            for line in (
                f"{group}:",
                *(f"  {name:<8} {line}" for name, (_, line) in commands.items()),
            )
        ),
        epilog=f"{ENVIRONMENT}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"elmo-store {elmo_store.__version__}"
    )
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog=parser.prog
    )
    commands: dict[str, tuple[argparse.ArgumentParser, Command]] = {}
    for name, (module, line) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, usage=f"elmo-store {name} ARGUMENT … [OPTION …] (elmo-store {name} --help shows them)",
            help=line, description=line[0].upper() + line[1:] + ".", epilog=f"{ENVIRONMENT}\n\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        if name in asked:
            command = importlib.import_module(f"pipeline.commands.{module}").COMMANDS[name]
            command.add_arguments(subparser)
            subparser.epilog = f"{_wrapped(command.epilog)}\n\n{subparser.epilog}".lstrip("\n")
            common = subparser.add_argument_group("options of every command")
            add_option(
                common, "--log-level", "what is logged on the terminal, Beam's own log too", choices=logs.LEVELS,
                unset="warning without Beam's",
            )  # fmt: skip
            commands[name] = subparser, command
    return parser, commands


def _wrapped(text: str) -> str:
    """Paragraphs as wide as the terminal, as argparse has its own; those with an indented line stay as they are."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    paragraphs = [
        part if "\n  " in f"\n{part}" else textwrap.fill(part, width)
        for part in text.strip("\n").split("\n\n")
    ]
    return "\n\n".join(paragraphs)
