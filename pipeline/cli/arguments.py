"""Kinds of arguments that several commands take."""

import argparse
import json
from typing import Any


def json_object(text: str) -> dict[str, Any]:
    """``text`` as a JSON object. ArgumentTypeError, which is bad usage, that does not repeat it: it may hold secrets."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise argparse.ArgumentTypeError(f"not JSON{where} (not shown, it may hold secrets)") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object (not shown, it may hold secrets)")
    return value


def add_storage_options(parser: argparse._ActionsContainer, of: str) -> None:
    """``--storage-options``, ``of`` what is opened with them."""
    parser.add_argument("--storage-options", type=json_object, metavar="JSON", help=f"what fsspec needs for {of} (default: {{}})")


def add_quiet(parser: argparse._ActionsContainer, help: str = "no progress, only the summary (default: off)") -> None:
    """``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help=help)
