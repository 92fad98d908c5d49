"""Progress on a screen: a bar on a terminal, lines elsewhere. What it shows is a `pipeline.progress.snapshot`."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

from elmo_store.storage.failures import is_transient
from elmo_store.storage.root import Root
from pipeline.cli.terminal import LINE_SECONDS, drawable, quantity, visible
from pipeline.progress.metrics import Meter
from pipeline.progress.repeated import repeated
from pipeline.progress.snapshot import ENDED, ProgressReader, Snapshot

MEASURED = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}"
UNSEEN = "the job's progress can't be seen: {error}; trying again"


class Screen:
    """Shows snapshots: a bar on a terminal, otherwise a new line now and then."""

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self._stream = drawable(stream or sys.stderr)
        self._terminal = self._stream.isatty()
        self._line_seconds, self._line, self._when = line_seconds, "", time.monotonic()
        self._ended = False

    def show(self, snapshot: Snapshot) -> None:
        """Bring the screen up to date; the end of a job is the summary's to say."""
        if self._ended or snapshot.stage in ENDED:
            return
        if self._terminal:
            self._draw(_bar(snapshot))
        elif snapshot.line() != self._line and time.monotonic() - self._when >= self._line_seconds:
            self._line, self._when = snapshot.line(), time.monotonic()
            print(visible(self._line), file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays, once."""
        if text != self._line and not self._ended:
            self._draw("")
            print(visible(text), file=self._stream, flush=True)
        self._line = text

    def end(self) -> None:
        """Take the bar off the terminal; a look under way, on slow storage, shows nothing any more."""
        self._ended = True
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)


def _bar(snapshot: Snapshot) -> str:
    """One line as wide as the terminal."""
    columns = shutil.get_terminal_size().columns  # 80 where a terminal says 0
    done, total = snapshot.extent
    if total is None:
        return visible(snapshot.line())[:columns]
    shards = f"{snapshot.shards_done:,}/{quantity(snapshot.n_shards or 0, 'shard')}"
    counts = shards if snapshot.stage == "computing" else ""
    reading = snapshot.stage == "reading"
    return tqdm.format_meter(
        done, total, 0, ncols=columns, prefix=snapshot.stage, unit=" pieces" if reading else " tokens", unit_scale=not reading,
        bar_format=MEASURED, postfix=", ".join(filter(None, (counts, snapshot.pace))),
    )  # fmt: skip


@contextmanager
def shown(root: Root, screen: Screen, *, seconds: float) -> Iterator[None]:
    """Show the progress of the job on ``root`` every ``seconds``, as long as the block runs."""
    reader = ProgressReader(root)

    def look() -> None:
        try:
            screen.show(reader.look())
        except Exception as error:  # no failed look is a reason to end a job
            screen.say(UNSEEN.format(error=error))

    try:
        with repeated(look, seconds, "progress"):
            yield
    finally:
        screen.end()


def follow(
    root: Root,
    screen: Screen,
    meter: Meter | None = None,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Show progress until the job has ended, well or not, also of one that has not begun; returns the last snapshot.

    Storage that can't be reached for now is waited for. Ends with the caller's KeyboardInterrupt, and with an OSError that no
    waiting mends.
    """
    reader = ProgressReader(root)
    try:
        while True:
            try:
                snapshot = reader.look()
            except Exception as error:
                if not is_transient(error):
                    raise
                screen.say(UNSEEN.format(error=error))
            else:
                screen.show(snapshot)
                if meter is not None:
                    meter.seen = snapshot
                if snapshot.stage in ENDED:
                    return snapshot
            sleep(seconds)
    finally:
        screen.end()
