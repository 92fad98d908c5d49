"""Options from a TOML file: ``--config FILE`` becomes arguments that stand before the user's own, so that the command line wins.

A key is an option's name without its dashes, or a positional argument's name; storage options are tables, Beam's options are
in the table ``[beam]``.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.exit_codes import CommandError, Exit

BEAM = "beam"
# What a file has for options of these argparse types; for all others strings.
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "json_object": ((dict,), "a table"),
}
NOT_SETTINGS = frozenset({"help", "version", "config"})


def leaf_of(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, int]:
    """The parser of the (sub)command that ``arguments`` name, and the index of the first argument after that name."""
    first = 0
    while (commands := _subcommands(parser)) is not None:
        named = next((i for i in range(first, len(arguments)) if arguments[i] in commands), None)
        if named is None:
            break
        parser, first = commands[arguments[named]], named + 1
    return parser, first


def _subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser] | None:
    return next((action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


def option_names(parser: argparse.ArgumentParser) -> set[str]:
    """Every spelling of every option of ``parser``."""
    return {name for action in parser._actions for name in action.option_strings}


def with_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the options of the ``--config`` files in them before the rest; unchanged without one.

    Positional arguments of a file become defaults of the parser: a file's words must not be added to the command line's.
    CommandError names the file and the key that is unknown or has a value of the wrong kind.
    """
    leaf, first = leaf_of(parser, arguments)
    asking = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    asking.add_argument("--config", action="append", default=[])
    try:
        files = asking.parse_known_args(list(arguments[first:]))[0].config
    except argparse.ArgumentError:
        return list(arguments)  # --config without a value: the real parser says it
    options: list[str] = []
    for file in files:
        for key, value in _read(file).items():
            if key == BEAM:
                options += beam_arguments(value, file)
                continue
            action = _action(leaf, key, file)
            if action.option_strings:
                options += _option(action, value, f"{file}: {key}")
            elif action.nargs in ("*", "+"):
                items = value if isinstance(value, list) else [value]
                action.default = [_text(item, f"{file}: {key}", action) for item in items]
                action.required = not action.default
                action.nargs = "*" if action.default else action.nargs
            else:
                action.default, action.required, action.nargs = _text(value, f"{file}: {key}", action), False, "?"
    return [*arguments[:first], *options, *arguments[first:]]


def _read(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--config {file} can't be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(Exit.BAD_USAGE, f"--config {file} is not TOML: {error}") from error


def _settings(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Key → action of everything that a file may set."""
    for action in parser._actions:
        if action.dest not in NOT_SETTINGS and not isinstance(action, argparse._SubParsersAction):
            yield _key(action), action


def _key(action: argparse.Action) -> str:
    return max(action.option_strings, key=len).lstrip("-") if action.option_strings else action.dest


def _action(parser: argparse.ArgumentParser, key: str, file: str) -> argparse.Action:
    known = dict(_settings(parser))
    if key not in known:
        raise CommandError(Exit.BAD_USAGE, f"{file}: {parser.prog} has no option {key!r}; it has {', '.join(sorted(known))}")
    return known[key]


def _option(action: argparse.Action, value: Any, where: str) -> list[str]:
    name = max(action.option_strings, key=len)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise CommandError(Exit.BAD_USAGE, f"{where} is {value!r}: it is on or off, write true or false")
        return [name] if value else []
    if isinstance(value, list) and action.nargs in ("*", "+"):
        return [name, *(_text(item, where, action) for item in value)]
    return [f"{name}={_text(value, where, action)}"]


def _text(value: Any, where: str, action: argparse.Action) -> str:
    """A value of the kind that the option takes, as its argument."""
    kinds, wanted = _KINDS.get(getattr(action.type, "__name__", ""), ((str,), "a string"))
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise CommandError(Exit.BAD_USAGE, f"{where} is {value!r}: write {wanted}")
    return json.dumps(value) if isinstance(value, dict) else str(value)


def beam_arguments(table: Any, file: str) -> list[str]:
    """``[beam]`` as arguments: true is a flag, a list repeats its option."""
    if not isinstance(table, dict):
        raise CommandError(Exit.BAD_USAGE, f"{file}: beam is {table!r}: write a table, [beam] and NAME = VALUE below it")
    arguments: list[str] = []
    for name, value in table.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool):
                arguments += [f"--{name}"] if item else []
            else:
                if not isinstance(item, str | int | float):
                    raise CommandError(Exit.BAD_USAGE, f"{file}: beam.{name} is {item!r}: give a string or a number")
                arguments.append(f"--{name}={item}")
    return arguments
