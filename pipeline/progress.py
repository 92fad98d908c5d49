"""How far a job is, from its output's markers alone: the same on every runner and from another terminal.

May import elmo_store, transforms (paths of the scratch area) and tqdm. Reading is incremental: a poll lists names and
reads only markers that it has not seen.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from elmo_store.errors import StoreError
from elmo_store.layout import MANIFEST
from elmo_store.storage import Root
from transforms.work import PIECES, PLAN, SHARDS, START

LINE_SECONDS = 30.0  # between two lines where there is no terminal


@dataclass(frozen=True)
class Snapshot:
    """One look at a store. Counts are None until they are known; rates are tokens a second of the present run."""

    stage: str  # "starting" | "reading" | "computing" | "complete"
    pieces_done: int = 0
    n_pieces: int | None = None
    tokens_done: int = 0
    n_tokens: int | None = None
    shards_done: int = 0
    n_shards: int | None = None
    tokens_per_second: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """At the present rate; None if that is not known yet."""
        if self.n_tokens is None or not self.tokens_per_second:
            return None
        return (self.n_tokens - self.tokens_done) / self.tokens_per_second

    def line(self) -> str:
        """One line for a log or a screen without a bar."""
        if self.stage == "starting":
            return "starting"
        if self.stage == "reading":
            return f"reading and tokenising: {self.pieces_done:,} of {self.n_pieces or 0:,} pieces of the input"
        if self.stage == "complete":
            return f"complete: {self.n_tokens or 0:,} tokens in {self.n_shards or 0:,} shards"
        total = self.n_tokens or 0
        share = 100 * self.tokens_done / total if total else 100.0
        rate = f"{self.tokens_per_second:,.0f} tokens/s" if self.tokens_per_second else "no rate yet"
        left = f", {duration(self.seconds_left)} left" if self.seconds_left is not None else ""
        return (
            f"{self.tokens_done:,} of {total:,} tokens ({share:.1f}%), {self.shards_done:,} of {self.n_shards or 0:,} "
            f"shards, {rate}{left}"
        )


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = int(seconds + 0.5)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class ProgressReader:
    """Looks at one store again and again, and remembers which markers it has read."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._tokens: dict[str, tuple[int, float]] = {}  # marker → (tokens, when it was finished, Unix seconds)
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
            pieces = len(self._list(PIECES))
            return Snapshot("reading", pieces_done=pieces, n_pieces=self._start.get("n_pieces"))
        for name in self._list(SHARDS):
            if name not in self._tokens and (marker := self._read(name)) is not None:
                stats = marker.get("stats", {})
                self._tokens[name] = (int(stats.get("tokens", 0)), float(stats.get("finished", 0)))
        done = min(sum(tokens for tokens, _ in self._tokens.values()), self._plan["n_tokens"])
        return Snapshot(
            "computing",
            tokens_done=done,
            n_tokens=self._plan["n_tokens"],
            shards_done=len(self._tokens),
            n_shards=self._plan["n_shards"],
            tokens_per_second=self._rate(float(self._plan.get("planned", 0))),
        )

    def _rate(self, since: float) -> float | None:
        """Tokens a second between the plan of the present run and the last marker since."""
        recent = [(tokens, finished) for tokens, finished in self._tokens.values() if finished > since]
        if not recent:
            return None
        seconds = max(finished for _, finished in recent) - since
        return sum(tokens for tokens, _ in recent) / seconds if seconds > 0 else None

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
    """Shows snapshots: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._terminal = self._stream.isatty()
        self._line_seconds = line_seconds
        self._last_line = ("", 0.0)

    def show(self, snapshot: Snapshot) -> None:
        """Bring the screen up to date."""
        if not self._terminal:
            line, when = self._last_line
            if snapshot.line() != line and (not line or time.monotonic() - when >= self._line_seconds):
                self._last_line = (snapshot.line(), time.monotonic())
                print(snapshot.line(), file=self._stream, flush=True)
            return
        if snapshot.stage != "computing" or snapshot.n_tokens is None:
            if self._bar is None and snapshot.stage != "complete":
                print(f"\r\x1b[K{snapshot.line()}", end="", file=self._stream, flush=True)
                return
            if self._bar is None:
                return
        if self._bar is None:
            print("\r\x1b[K", end="", file=self._stream)
            size = shutil.get_terminal_size()  # 80 × 24 where a terminal says 0 × 0, of which tqdm would show nothing
            self._bar = tqdm(
                total=snapshot.n_tokens, initial=snapshot.tokens_done, unit=" tokens", unit_scale=True,
                file=self._stream, ncols=size.columns, nrows=size.lines, desc="embed", mininterval=0, miniters=0,
            )  # fmt: skip
        self._bar.n = snapshot.tokens_done
        self._bar.set_postfix_str(f"{snapshot.shards_done}/{snapshot.n_shards} shards", refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


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
    """Show progress until the job is complete; returns the last snapshot. Ends with the caller's KeyboardInterrupt."""
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
