"""Progress on a screen: a bar a stage on a terminal, lines elsewhere. What it shows is a `pipeline.progress.snapshot`."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from elmo_store.storage.retrying import is_transient
from elmo_store.storage.root import Root
from pipeline.cli.terminal import LINE_SECONDS, SpacedLines, drawable, quantity, visible
from pipeline.progress.metrics import Meter
from pipeline.progress.repeated import repeated
from pipeline.progress.snapshot import ENDED, ProgressReader, Snapshot


class Screen:
    """Shows snapshots: a bar a stage on a terminal, otherwise a line now and then. NO_COLOR leaves the bar uncoloured."""

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self._stream = drawable(stream or sys.stderr)
        self._bar: tqdm[Any] | None = None
        self._stage = ""
        self._terminal = self._stream.isatty()
        self._lines = SpacedLines(self._stream, line_seconds)

    def show(self, snapshot: Snapshot) -> None:
        """Bring the screen up to date."""
        if not self._terminal:
            if snapshot.stage not in ENDED:  # the end is the summary's
                self._lines.show(snapshot.line())
            return
        if snapshot.stage != self._stage:
            self.close()
            self._stage = snapshot.stage
        done, total = snapshot.extent
        if total is None:
            if snapshot.stage not in ENDED:
                print(f"\r\x1b[K{visible(snapshot.line())}", end="", file=self._stream, flush=True)
            return
        if self._bar is None:
            self._bar = self._new_bar(snapshot.stage, total)
        self._bar.n = done
        shards = f"{snapshot.shards_done:,}/{quantity(snapshot.n_shards or 0, 'shard')}"
        counts = shards if snapshot.stage == "computing" else ""
        self._bar.set_postfix_str(", ".join(filter(None, (counts, snapshot.pace))), refresh=False)
        self._bar.refresh()

    def _new_bar(self, stage: str, total: int) -> "tqdm[Any]":
        print("\r\x1b[K", end="", file=self._stream)
        size = shutil.get_terminal_size()  # 80 × 24 where a terminal says 0 × 0, of which tqdm would show nothing
        unit = " pieces" if stage == "reading" else " tokens"
        return tqdm(
            total=total, unit=unit, unit_scale=stage != "reading", desc=stage, leave=False,
            colour=None if os.environ.get("NO_COLOR") else "green", file=self._stream, ncols=size.columns, nrows=size.lines,
            mininterval=0, miniters=0, bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}",
        )  # fmt: skip

    def say(self, text: str) -> None:
        """A line that stays."""
        self.close()
        print(visible(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Take the bar or line off the terminal: what follows begins on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


class _Looks:
    """Looks at the job on ``root`` that go to a screen and a meter. That none can be had is said once, as is their return."""

    def __init__(self, root: Root, screen: Screen | None, meter: Meter | None, waits_for: Callable[[Exception], bool]) -> None:
        """``waits_for``: errors after which the next look may succeed; others are raised."""
        self._reader, self._screen, self._meter, self._waits_for = ProgressReader(root), screen, meter, waits_for
        self._in_the_dark = self._ended = False

    def end(self) -> None:
        """Take the bar off the terminal; a look under way, on slow storage, shows nothing any more."""
        self._ended = True
        if self._screen is not None:
            self._screen.close()

    def _say(self, text: str) -> None:
        if self._screen is not None and not self._ended:
            self._screen.say(text)

    def look(self) -> Snapshot | None:
        """What is shown now; None if there is nothing to see."""
        try:
            snapshot = self._reader.look()
        except Exception as error:
            if not self._waits_for(error):
                raise
            if not self._in_the_dark:
                self._say(f"the job's progress can't be seen: {error}; trying again")
            self._in_the_dark = True
            return None
        if self._ended:
            return None
        if self._in_the_dark:
            self._say("the job's progress can be seen again")
        self._in_the_dark = False
        if self._screen is not None:
            self._screen.show(snapshot)
        if self._meter is not None:
            self._meter.see(snapshot)
        return snapshot


@contextmanager
def shown(root: Root, screen: Screen | None, meter: Meter | None = None, *, seconds: float) -> Iterator[None]:
    """Show the progress of the job on ``root`` every ``seconds``, as long as the block runs, to who is there to see it."""
    if screen is None and meter is None:
        yield
        return
    looks = _Looks(root, screen, meter, waits_for=lambda _: True)  # no failed look is a reason to end a job
    try:
        with repeated(looks.look, seconds, "progress"):
            yield
    finally:
        looks.end()


def follow(
    root: Root, screen: Screen, meter: Meter | None = None, *, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Snapshot:
    """Show progress until the job has ended, well or not, also of one that has not begun; returns the last snapshot.

    Storage that can't be reached for now is waited for. Ends with the caller's KeyboardInterrupt, and with an OSError that no
    waiting mends.
    """
    looks = _Looks(root, screen, meter, waits_for=is_transient)
    try:
        while True:
            snapshot = looks.look()
            if snapshot is not None and snapshot.stage in ENDED:
                return snapshot
            sleep(seconds)
    finally:
        looks.end()
