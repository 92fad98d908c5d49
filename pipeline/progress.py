"""How far a job is, from its output's markers alone: the same on every runner and from another terminal.

May import elmo_store, transforms (paths of the scratch area), pipeline.quantities and tqdm. Reading is incremental: a poll
lists names and reads only markers that it has not seen.
"""

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from elmo_store.errors import StoreError
from elmo_store.layout import MANIFEST
from elmo_store.storage import Root
from pipeline.quantities import duration, human_bytes
from transforms.work import PLAN, READ, SHARDS, START

LINE_SECONDS = 30.0  # between two lines where there is no terminal
PIECES_A_LOOK = 64  # markers of pieces that one look reads


@dataclass(frozen=True)
class Snapshot:
    """One look at a store. Counts are None until they are known; rates are a second's, of the present run."""

    stage: str  # "starting" | "reading" | "computing" | "finishing" | "complete"
    pieces_done: int = 0
    n_pieces: int | None = None
    bytes_done: int = 0
    n_bytes: int | None = None
    bytes_per_second: float | None = None
    tokens_done: int = 0
    n_tokens: int | None = None
    shards_done: int = 0
    n_shards: int | None = None
    tokens_per_second: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """Of this stage at the present rate; None if that is not known yet."""
        if self.stage == "reading":
            return _left(self.n_bytes, self.bytes_done, self.bytes_per_second)
        return _left(self.n_tokens, self.tokens_done, self.tokens_per_second)

    @property
    def pace(self) -> str:
        """Rate and time left of the stage, "" while neither is known."""
        rate = self.bytes_per_second if self.stage == "reading" else self.tokens_per_second
        if not rate:
            return ""
        shown = f"{human_bytes(rate)}/s" if self.stage == "reading" else f"{rate:,.0f} tokens/s"
        return shown + (f", {duration(self.seconds_left)} left" if self.seconds_left is not None else "")

    def line(self) -> str:
        """One line for a log or a screen without a bar."""
        if self.stage == "reading" and self.n_pieces:
            of = f" ({human_bytes(self.bytes_done)} of {human_bytes(self.n_bytes)})" if self.n_bytes else ""
            pace = f", {self.pace}" if self.pace else ""
            return f"reading and tokenising: {self.pieces_done:,} of {self.n_pieces:,} pieces of the input{of}{pace}"
        if self.stage in ("starting", "reading"):
            return "starting"
        if self.stage == "complete":
            return f"complete: {self.n_tokens or 0:,} tokens in {self.n_shards or 0:,} shards"
        if self.stage == "finishing":
            return f"finishing: all {self.n_shards or 0:,} shards are written"
        total = self.n_tokens or 0
        share = 100 * self.tokens_done / total if total else 100.0
        return (
            f"computing: {self.tokens_done:,} of {total:,} tokens ({share:.1f}%), {self.shards_done:,} of "
            f"{self.n_shards or 0:,} shards, {self.pace or 'no rate yet'}"
        )


def _left(total: int | None, done: int, rate: float | None) -> float | None:
    return None if total is None or not rate else max(0, total - done) / rate


@dataclass(frozen=True)
class _Shard:
    """What progress needs of one marker. Times are Unix seconds; a call is what the engine computed at once."""

    tokens: int
    finished: float
    worker: str
    call_began: float
    call_tokens: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> "_Shard":
        tokens, finished = int(stats.get("tokens", 0)), float(stats.get("finished", 0))
        spent = sum(float(stats.get(f"seconds_{phase}", 0)) for phase in ("reading", "computing", "writing"))
        began = float(stats.get("call_began", finished - spent))
        return cls(tokens, finished, str(stats.get("worker", "")), began, int(stats.get("call_tokens", tokens)))


class ProgressReader:
    """Looks at one store again and again, and remembers which markers it has read."""

    def __init__(self, root: Root, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock
        self._shards: dict[str, _Shard] = {}  # by marker
        self._pieces: dict[str, int] = {}  # marker → bytes read
        self._first: tuple[float, int] | None = None  # when this reader first saw the reading stage, and bytes done then
        self._plan: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None

    def look(self) -> Snapshot:
        """The present state. A marker that is being replaced or removed counts as not there."""
        if not self._root.exists(MANIFEST):
            return Snapshot("starting")
        manifest = self._root.get_json(MANIFEST)
        if manifest.get("complete"):
            counts = manifest["counts"]
            return Snapshot(
                "complete", n_tokens=counts["tokens"], tokens_done=counts["tokens"],
                n_shards=counts["shards"], shards_done=counts["shards"],
            )  # fmt: skip
        self._start = self._read(START) or self._start or {}
        self._plan = self._read(PLAN) if self._plan is None else self._plan
        if self._plan is None:
            return self._reading(self._start)
        for name in self._list(SHARDS):
            if name not in self._shards and (marker := self._read(name)) is not None:
                self._shards[name] = _Shard.of(marker.get("stats", {}))
        done = min(sum(shard.tokens for shard in self._shards.values()), self._plan["n_tokens"])
        n_shards = self._plan["n_shards"]
        return Snapshot(
            "finishing" if n_shards and len(self._shards) >= n_shards else "computing",
            tokens_done=done,
            n_tokens=self._plan["n_tokens"],
            shards_done=len(self._shards),
            n_shards=n_shards,
            tokens_per_second=self._rate(float(self._plan.get("planned", 0))),
        )

    def _reading(self, start: Mapping[str, Any]) -> Snapshot:
        """Stage A. Of many new markers a few are read, the others taken for as large as those: a look stays cheap."""
        markers = self._list(READ)
        for name in [name for name in markers if name not in self._pieces][:PIECES_A_LOOK]:
            if (marker := self._read(name)) is not None:
                self._pieces[name] = int(marker.get("bytes_read", 0))
        n_bytes = start.get("n_bytes")
        known = sum(self._pieces.values())
        done = round(known * len(markers) / len(self._pieces)) if self._pieces else 0
        if n_bytes is not None:
            done = min(done, n_bytes)
        now = self._clock()
        self._first = self._first or (now, done)
        seconds, since = now - self._first[0], done - self._first[1]
        return Snapshot(
            "reading", pieces_done=len(markers), n_pieces=start.get("n_pieces"), bytes_done=done, n_bytes=n_bytes,
            bytes_per_second=since / seconds if since > 0 and seconds > 0 else None,
        )  # fmt: skip

    def _rate(self, since: float) -> float | None:
        """Tokens a second of the run that was planned at ``since``, over all workers.

        Counted by calls of the engine, each from its begin to its first shard's marker: a call's shards are computed together
        and written one by one, so that markers alone would tell a fraction of the true rate at first, and start-up is no work.
        """
        calls: dict[tuple[str, float], tuple[int, float]] = {}  # worker, begin → tokens, first marker
        for shard in self._shards.values():
            if shard.finished > since:
                key = (shard.worker, shard.call_began)
                calls[key] = (shard.call_tokens, min(shard.finished, calls.get(key, (0, math.inf))[1]))
        if not calls:
            return None
        seconds = max(ended for _, ended in calls.values()) - min(began for _, began in calls)
        return sum(tokens for tokens, _ in calls.values()) / seconds if seconds > 0 else None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            value = self._root.get_json(name)
        except (StoreError, OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _list(self, prefix: str) -> list[str]:
        try:
            return [name for name in self._root.list(prefix) if name.endswith(".json")]
        except (StoreError, OSError):
            return []


class Screen:
    """Shows snapshots: a bar a stage on a terminal, otherwise a line now and then. NO_COLOR leaves the bar uncoloured."""

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._stage = ""
        self._terminal = self._stream.isatty()
        self._line_seconds = line_seconds
        self._last_line = ("", "", 0.0)  # stage, line, when

    def show(self, snapshot: Snapshot) -> None:
        """Bring the screen up to date."""
        if not self._terminal:
            self._log(snapshot)
            return
        if snapshot.stage != self._stage:
            self.close()
            self._stage = snapshot.stage
        total, done = _extent(snapshot)
        if total is None:
            if snapshot.stage != "complete":
                print(f"\r\x1b[K{snapshot.line()}", end="", file=self._stream, flush=True)
            return
        if self._bar is None:
            self._bar = self._new_bar(snapshot.stage, total)
        self._bar.n = done
        counts = f"{snapshot.pieces_done:,}/{snapshot.n_pieces or 0:,} pieces" if snapshot.stage == "reading" else (
            f"{snapshot.shards_done:,}/{snapshot.n_shards or 0:,} shards"
        )  # fmt: skip
        self._bar.set_postfix_str(", ".join(filter(None, (counts, snapshot.pace))), refresh=False)
        self._bar.refresh()

    def _new_bar(self, stage: str, total: int) -> "tqdm[Any]":
        print("\r\x1b[K", end="", file=self._stream)
        size = shutil.get_terminal_size()  # 80 × 24 where a terminal says 0 × 0, of which tqdm would show nothing
        return tqdm(
            total=total, unit="B" if stage == "reading" else " tokens", unit_scale=True, desc=stage, leave=False,
            colour=None if os.environ.get("NO_COLOR") else "green", file=self._stream, ncols=size.columns, nrows=size.lines,
            mininterval=0, miniters=0, bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
        )  # fmt: skip

    def _log(self, snapshot: Snapshot) -> None:
        """A line, if it says something new and the last one is not too fresh; a new stage is told at once."""
        stage, line, when = self._last_line
        now = time.monotonic()
        if snapshot.line() != line and (snapshot.stage != stage or now - when >= self._line_seconds):
            self._last_line = (snapshot.stage, snapshot.line(), now)
            print(snapshot.line(), file=self._stream, flush=True)

    def close(self) -> None:
        """Take the bar or line off the terminal: what follows begins on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _extent(snapshot: Snapshot) -> tuple[int | None, int]:
    """What a stage's bar counts, and how much of it is done; None for a stage without a measure."""
    if snapshot.stage == "reading":
        return snapshot.n_bytes if snapshot.n_pieces else None, snapshot.bytes_done
    return (snapshot.n_tokens, snapshot.tokens_done) if snapshot.stage == "computing" else (None, 0)


@contextmanager
def shown(root: Root, *, seconds: float, screen: Screen | None = None) -> Iterator[None]:
    """Show the progress of the job on ``root`` every ``seconds``, from a thread, as long as the block runs."""
    screen = screen or Screen()
    stop = threading.Event()
    reader = ProgressReader(root)

    def look() -> None:
        # A look that failed is no reason to end a job; the next one may succeed.
        with suppress(StoreError, OSError, ValueError, KeyError):
            screen.show(reader.look())

    def watch() -> None:
        while not stop.wait(seconds):
            look()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()  # the bar's end
        screen.close()


def follow(root: Root, *, seconds: float, screen: Screen, sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Show progress until the job is complete, also of one that has not begun; returns the last snapshot.

    Ends with the caller's KeyboardInterrupt.
    """
    reader = ProgressReader(root)
    try:
        while True:
            snapshot = reader.look()
            screen.show(snapshot)
            if snapshot.stage == "complete":
                return snapshot
            sleep(seconds)
    finally:
        screen.close()
