"""What reaches a terminal: numbers for people, and text whose steering characters stand there as escapes.

Tokens, ids, names of files and texts of errors come from anybody (docs/limits.md): a command's own output passes through
`escaped`, so that none of them moves the cursor, sets a title or answers for the user.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any, TextIO, cast

from pipeline.cli.wording import as_options

# C0 but tab and line feed, DEL, C1, the controls of direction that make a line read otherwise, halves of surrogate pairs.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINE_SECONDS = 60.0  # between two lines of progress where there is no terminal
_LINE = re.compile("[\t\n\u2028\u2029]")


def visible(text: str) -> str:
    """``text`` with what steers a terminal as escapes that JSON has too; lines and tabs stay."""
    return _STEERING.sub(_escape, text)


def in_line(text: str) -> str:
    """``text`` as `visible`, and without an end of line or a tab: it can't be taken for a line of the command's own."""
    return _LINE.sub(_escape, visible(text))


def _escape(match: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\u{ord(match[0]):04x}")


class Escaping:
    """A text stream whose text is `visible`; everything else is the stream's own.

    Attributes:
        stream: the stream that is written to.
        options: of the running command, in whose words messages are shown (`wording.as_options`).
    """

    def __init__(self, stream: TextIO, options: Set[str] = frozenset()) -> None:
        self.stream, self.options = stream, options

    def write(self, text: str) -> int:
        """Write what may be shown; as many characters as were given."""
        self.stream.write(as_options(visible(text), self.options))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def drawable(stream: TextIO) -> TextIO:
    """The stream itself, for who draws on a terminal and shows no text but its own."""
    return stream.stream if isinstance(stream, Escaping) else stream


@contextmanager
def escaped(options: Set[str]) -> Iterator[None]:
    """Within the block what is printed is `visible`, and messages speak of ``options``, which may be added to.

    Standard output holds data, whose text is not a message: it is only `visible`. After an error the streams stay as they are:
    Python prints its traceback to the same ones.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, Escaping(drawable(before[0])))
    sys.stderr = cast(TextIO, Escaping(drawable(before[1]), options))
    yield
    sys.stdout, sys.stderr = before


def quantity(n: int, noun: str) -> str:
    """A number of things in English: 1 shard, 2,000 shards."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def human_bytes(n: float) -> str:
    """Bytes in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:,.0f} {unit}" if unit == "bytes" else f"{n:,.1f} {unit}"
        n /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = int(seconds + 0.5)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@contextmanager
def progress_bar(unit: str, *, quiet: bool, total: int | None = None) -> Iterator[Any]:
    """A bar of tqdm on the error output; where that is not a terminal, it is drawn once a minute."""
    from tqdm import tqdm

    stream = drawable(sys.stderr)
    wait = 0.0 if stream.isatty() else LINE_SECONDS
    with tqdm(
        total=total,
        unit=unit,
        unit_scale=True,
        disable=quiet,
        file=stream,
        mininterval=wait or 0.1,
        delay=wait,
    ) as bar:
        yield bar
