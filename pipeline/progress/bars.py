"""Progress on a screen: a bar a stage on a terminal, lines elsewhere. What it shows is a `pipeline.progress.snapshot`."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from tqdm import tqdm

from elmo_store.storage.retrying import is_transient
from elmo_store.storage.root import Root
from pipeline.cli.terminal import LINE_SECONDS, drawable, quantity, visible
from pipeline.progress.metrics import Meter
from pipeline.progress.repeated import repeated
from pipeline.progress.snapshot import ENDED, ProgressReader, Snapshot


class Screen:
    """Shows snapshots: a bar a stage on a terminal, otherwise a new line now and then. NO_COLOR leaves the bar uncoloured."""

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self._stream = drawable(stream or sys.stderr)
        self._terminal = self._stream.isatty()
        self._bar: tqdm[Any] | None = None
        self._stage = ""
        self._line_seconds, self._line, self._when = line_seconds, "", time.monotonic()
        self._in_the_dark = self._ended = False

    def show(self, snapshot: Snapshot) -> None:
        """Bring the screen up to date; the end of a job is the summary's to say."""
        if self._ended:
            return
        if self._in_the_dark:
            self._in_the_dark = False
            self._say("the job's progress can be seen again")
        if snapshot.stage in ENDED:
            self._close()
        elif self._terminal:
            self._draw(snapshot)
        elif snapshot.line() != self._line and time.monotonic() - self._when >= self._line_seconds:
            self._line, self._when = snapshot.line(), time.monotonic()
            self._say(self._line)

    def lose_sight(self, error: Exception) -> None:
        """Say once that the job's progress can't be seen for now."""
        if not self._in_the_dark:
            self._say(f"the job's progress can't be seen: {error}; trying again")
        self._in_the_dark = True

    def end(self) -> None:
        """Take the bar off the terminal; a look under way, on slow storage, shows nothing any more."""
        self._ended = True
        self._close()

    def _draw(self, snapshot: Snapshot) -> None:
        done, total = snapshot.extent
        if self._bar is None or snapshot.stage != self._stage or self._bar.total != total:
            self._close()
            self._bar, self._stage = self._new_bar(snapshot.stage, total), snapshot.stage
        self._bar.n = done
        if total is None:
            self._bar.set_description_str(visible(snapshot.line()), refresh=False)
        shards = f"{snapshot.shards_done:,}/{quantity(snapshot.n_shards or 0, 'shard')}"
        counts = shards if snapshot.stage == "computing" else ""
        self._bar.set_postfix_str(", ".join(filter(None, (counts, snapshot.pace))), refresh=False)
        self._bar.refresh()

    def _new_bar(self, stage: str, total: int | None) -> "tqdm[Any]":
        size = shutil.get_terminal_size()  # 80 × 24 where a terminal says 0 × 0, of which tqdm would show nothing
        measured = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}"
        return tqdm(
            total=total, unit=" pieces" if stage == "reading" else " tokens", unit_scale=stage != "reading", desc=stage,
            leave=False, colour=None if os.environ.get("NO_COLOR") else "green", file=self._stream, ncols=size.columns,
            nrows=size.lines, mininterval=0, miniters=0, bar_format="{desc}" if total is None else measured,
        )  # fmt: skip

    def _say(self, text: str) -> None:
        """A line that stays."""
        if not self._ended:
            self._close()
            print(visible(text), file=self._stream, flush=True)

    def _close(self) -> None:
        """Take the bar off the terminal: what follows begins on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _look(
    reader: ProgressReader, screen: Screen | None, meter: Meter | None, waits_for: Callable[[Exception], bool]
) -> Snapshot | None:
    """Show how far the job is now; None if that can't be seen. Raises errors but those that it ``waits_for``."""
    try:
        snapshot = reader.look()
    except Exception as error:
        if not waits_for(error):
            raise
        if screen is not None:
            screen.lose_sight(error)
        return None
    if screen is not None:
        screen.show(snapshot)
    if meter is not None:
        meter.see(snapshot)
    return snapshot


@contextmanager
def shown(root: Root, screen: Screen | None, meter: Meter | None = None, *, seconds: float) -> Iterator[None]:
    """Show the progress of the job on ``root`` every ``seconds``, as long as the block runs, to who is there to see it."""
    if screen is None and meter is None:
        yield
        return
    look = partial(_look, ProgressReader(root), screen, meter, lambda _: True)  # no failed look is a reason to end a job
    try:
        with repeated(look, seconds, "progress"):
            yield
    finally:
        if screen is not None:
            screen.end()


def follow(
    root: Root, screen: Screen, meter: Meter | None = None, *, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Snapshot:
    """Show progress until the job has ended, well or not, also of one that has not begun; returns the last snapshot.

    Storage that can't be reached for now is waited for. Ends with the caller's KeyboardInterrupt, and with an OSError that no
    waiting mends.
    """
    reader = ProgressReader(root)
    try:
        while (snapshot := _look(reader, screen, meter, is_transient)) is None or snapshot.stage not in ENDED:
            sleep(seconds)
        return snapshot
    finally:
        screen.end()
