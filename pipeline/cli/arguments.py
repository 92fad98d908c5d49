"""Kinds of arguments that several commands take. What a kind refuses is bad usage, told by argparse with the option's name."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any


def json_object(text: str) -> dict[str, Any]:
    """``text`` as a JSON object. ArgumentTypeError, which is bad usage, that does not repeat it: it may hold secrets."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = (
            f" at character {error.pos}: {error.msg}"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        raise argparse.ArgumentTypeError(
            f"not JSON{where} (not shown, it may hold secrets)"
        ) from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object (not shown, it may hold secrets)")
    return value


def bounded(
    kind: type[int] | type[float], wanted: str, holds: Callable[[float], bool]
) -> Callable[[str], float]:
    """A type for argparse: numbers of this kind for which ``holds``, which ``wanted`` says in words."""

    def parse(text: str) -> float:
        number = kind(text)
        if not holds(number):
            raise argparse.ArgumentTypeError(f"{text} is out of range: give {wanted}")
        return number

    parse.__name__ = kind.__name__  # argparse says it of what is not a number
    return parse


count = bounded(int, "1 or more", lambda number: number >= 1)
natural = bounded(int, "0 or more", lambda number: number >= 0)
threads = bounded(int, "1 to 1024", lambda number: 1 <= number <= 1024)
port = bounded(int, "1 to 65535", lambda number: 0 < number < 65536)
above_zero = bounded(float, "a number above 0", lambda number: 0 < number < math.inf)
part = bounded(float, "a number from 0 to 1", lambda number: 0 <= number <= 1)


def add_option(
    parser: argparse._ActionsContainer,
    name: str,
    help: str,
    default: Any = None,
    unset: str | None = "",
    **settings: Any,
) -> None:
    """The option ``name``; off by default it is a flag. ``settings``: argparse's, such as ``required``.

    The help ends with the default: ``unset`` where the value does not say it; with ``unset`` None it says that itself.
    """
    settings |= {"action": "store_true"} if default is False else {"default": default}
    kind = getattr(settings.get("type"), "__name__", "")
    if kind in ("int", "float") and "choices" not in settings:
        settings.setdefault("metavar", "N" if kind == "int" else "X")
    named = "none" if default is None else "off" if default is False else None
    value = unset or named or (f"{default:g}" if isinstance(default, float) else default)
    end = "required" if settings.get("required") else f"default: {value}"
    parser.add_argument(name, help=help if unset is None else f"{help} ({end})", **settings)


def add_storage_options(parser: argparse._ActionsContainer, of: str) -> None:
    """``--storage-options``, ``of`` what is opened with them."""
    add_option(
        parser, "--storage-options", f"what fsspec needs for {of}", type=json_object, metavar="JSON"
    )


def add_quiet(parser: argparse._ActionsContainer, help: str = "no progress and no summary") -> None:
    add_option(parser, "--quiet", help, False)


def add_store_model(parser: argparse._ActionsContainer, of: str) -> None:
    """``--model``, ``of`` what asks a store's model."""
    add_option(
        parser, "--model", f"name, folder or URL of the store's model, for {of}",
        unset="the packaged one, or one in this folder, of its name", metavar="NAME|FOLDER|URL",
    )  # fmt: skip
