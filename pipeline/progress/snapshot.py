"""How far a job is: a look at its output, the same on every runner and from any terminal. A look lists the markers of its stage.

A marker is put when a piece of the input is read, or a shard is written: what a call of the engine computes counts when its
shards are written. Rates are of markers over time, between the first look at a stage and the last one that found more of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elmo_store.errors import ShardCorruptError
from elmo_store.format.layout import MANIFEST, SHARDS
from elmo_store.format.markers import marked
from elmo_store.storage.root import Root
from pipeline.cli.terminal import duration, quantity
from pipeline.cli.wording import as_options
from transforms.runtime.work import PLAN, PROBLEM, READ, START, STOPPED

ENDED = ("complete", "failed", "stopped")
STAGES = ("starting", "reading", "computing", "finishing", *ENDED)


@dataclass(frozen=True)
class Snapshot:
    """One look at a store. Totals are None until they are known."""

    stage: str  # one of STAGES
    pieces_done: int = (
        0  # of the input: ranges, small files together, large files that are read whole
    )
    n_pieces: int | None = None
    tokens_done: int = 0
    n_tokens: int | None = None
    shards_done: int = 0
    n_shards: int | None = None
    rate: float | None = None  # pieces/s while reading, tokens/s while computing
    problem: str = ""  # why the job failed, or was stopped

    @property
    def extent(self) -> tuple[int, int | None]:
        """How much of the stage is done, and all of it: pieces or tokens; None for a stage without a measure."""
        if self.stage == "reading":
            return self.pieces_done, self.n_pieces
        return (self.tokens_done, self.n_tokens) if self.stage == "computing" else (0, None)

    @property
    def seconds_left(self) -> float | None:
        """Of this stage at the present rate; None if that is not known yet."""
        done, total = self.extent
        return None if total is None or not self.rate else max(0, total - done) / self.rate

    @property
    def pace(self) -> str:
        """Rate and time left of the stage, "" while neither is known."""
        left = "" if self.seconds_left is None else f"{duration(self.seconds_left)} left"
        rate = f"{self.rate:,.0f} tokens/s" if self.rate and self.stage == "computing" else ""
        return ", ".join(filter(None, (rate, left)))

    def line(self) -> str:
        """One line for a log or a screen without a bar."""
        if self.stage == "reading" and self.n_pieces:
            of = f"{self.pieces_done:,} of {quantity(self.n_pieces, 'piece')} of the input"
            return f"reading and tokenising: {of}" + (f", {self.pace}" if self.pace else "")
        if self.stage in ("starting", "reading"):
            return "starting"
        if self.stage == "failed":
            return f"failed: {self.problem}"
        if self.stage == "stopped":
            return self.problem
        if self.stage == "complete":
            return f"complete: {quantity(self.n_tokens or 0, 'token')} in {quantity(self.n_shards or 0, 'shard')}"
        if self.stage == "finishing":
            return f"finishing: {quantity(self.n_shards or 0, 'shard')} written"
        total = self.n_tokens or 0
        share = 100 * self.tokens_done / total if total else 100.0
        return (
            f"computing: {self.tokens_done:,} of {quantity(total, 'token')} ({share:.1f}%), {self.shards_done:,} of "
            f"{quantity(self.n_shards or 0, 'shard')}, {self.pace or 'no rate yet'}"
        )


class ProgressReader:
    """Looks at one store again and again, and remembers when it found how much."""

    def __init__(self, root: Root, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._of: Any = None  # the run and the stage whose first and last look follow
        self._first = self._last = (0.0, 0)  # when, and how much was done; the last that found more

    def look(self) -> Snapshot:
        """The present state. What is being replaced or removed counts as absent. OSError where the storage can't be asked."""
        manifest = noted(self._root, MANIFEST)
        if manifest is None:
            return Snapshot("starting")
        if manifest.get("complete"):
            tokens, shards = (manifest["counts"][name] for name in ("tokens", "shards"))
            return Snapshot(
                "complete", tokens_done=tokens, n_tokens=tokens, shards_done=shards, n_shards=shards
            )
        problem = noted(self._root, PROBLEM)
        if problem is not None:
            stage = "stopped" if problem.get("kind") == STOPPED else "failed"
            return Snapshot(stage, problem=as_options(str(problem.get("message", ""))))
        start, plan = noted(self._root, START) or {}, noted(self._root, PLAN)
        return self._reading(start) if plan is None else self._computing(start, plan, manifest)

    def _reading(self, start: dict[str, Any]) -> Snapshot:
        total = start.get("n_pieces")
        done = min(len(self._root.list(READ)), total) if total else 0
        return Snapshot(
            "reading", pieces_done=done, n_pieces=total, rate=self._rate(start, "reading", done)
        )

    def _computing(
        self, start: dict[str, Any], plan: dict[str, Any], manifest: dict[str, Any]
    ) -> Snapshot:
        n_tokens, n_shards, n_rows = (
            int(plan[name]) for name in ("n_tokens", "n_shards", "n_rows")
        )
        shards = min(len(marked(self._root, SHARDS)), n_shards)
        rows = min(shards * int(manifest.get("shard_rows", 1)), n_rows)
        tokens = round(n_tokens * rows / n_rows) if n_rows else 0
        return Snapshot(
            "finishing" if n_shards and shards >= n_shards else "computing", tokens_done=tokens, n_tokens=n_tokens,
            shards_done=shards, n_shards=n_shards, rate=self._rate(start, "computing", tokens),
        )  # fmt: skip

    def _rate(self, start: dict[str, Any], stage: str, done: int) -> float | None:
        now = self._clock()
        if self._of != (start, stage):
            self._of, self._first, self._last = (start, stage), (now, done), (now, done)
        if done != self._last[1]:
            self._last = now, done
        seconds, more = self._last[0] - self._first[0], self._last[1] - self._first[1]
        return more / seconds if seconds > 0 and more > 0 else None


def noted(root: Root, name: str) -> dict[str, Any] | None:
    """The JSON object ``name``; None if there is none, or something else in its place."""
    try:
        value = root.get_json(name)
    except (FileNotFoundError, NotADirectoryError, ShardCorruptError, ValueError):
        return None
    return value if isinstance(value, dict) else None
