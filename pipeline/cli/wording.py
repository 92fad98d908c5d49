"""Messages of the library in the words of the command line.

The library's messages are written for Python. An argument stands in backticks, as in "add
`overwrite=True`" or "leave `layers` out", and is an option of the same name here.
"""

import re
from collections.abc import Set

_ARGUMENT = re.compile(r"`([a-z][a-z_]*)(?:=([^`\n]*))?`")


def as_options(text: str, options: Set[str] | None = None) -> str:
    """Return ``text`` with arguments in backticks as options: `overwrite=True` becomes --overwrite.

    Args:
        text: a message; what else it has in backticks, such as a command, stays as it is.
        options: the options of the running command, such as "--overwrite"; other names stay. None: every name is an option,
            for a message of a job, which another command has started.
    """

    def option(match: re.Match[str]) -> str:
        name = "--" + match[1].replace("_", "-")
        if options is not None and name not in options:
            return match[0]
        if match[2] in (None, "True"):
            return name
        return f"{name} {match[2].strip(chr(39))}"

    return _ARGUMENT.sub(option, text)
