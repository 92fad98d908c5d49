"""How far a job is: a look at its output, the same on every runner and from any terminal, of ten requests at most.

Workers say how far they are in one small object each (`transforms.runtime.worker`); of many workers a look reads a few,
those not heard of for longest, and takes the others for as far as those heard of last are on average.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elmo_store.errors import ShardCorruptError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage.root import Root
from pipeline.cli.terminal import duration, human_bytes, quantity
from transforms.runtime.work import PLAN, PROBLEM, PROGRESS, START, STOPPED

ENDED = ("complete", "failed", "stopped")
WORKERS_A_LOOK = 5  # requests: manifest, start, plan, problem, a listing (one a thousand workers), and these
WORKERS_OF_SAMPLE = 50  # of more, those heard of before the last so many looks know too little


@dataclass(frozen=True)
class Snapshot:
    """One look at a store. Counts are None until they are known; rates are a second's, of the present run."""

    stage: str  # "starting" | "reading" | "computing" | "finishing" | one of ENDED
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
    estimated: bool = False  # from some of the workers
    problem: str = ""  # why the job failed, or was stopped
    n_workers: int = 0  # processes that read, then processes that compute
    sums: Mapping[str, float] = field(default_factory=dict)  # of the present run: seconds of work, retries, …

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
            of = f"{human_bytes(self.bytes_done)} of {human_bytes(self.n_bytes)}" if self.n_bytes else "an empty input"
            return f"reading and tokenising: {self._about}{of}" + (f", {self.pace}" if self.pace else "")
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
            f"computing: {self._about}{self.tokens_done:,} of {quantity(total, 'token')} ({share:.1f}%), {self.shards_done:,} of "
            f"{quantity(self.n_shards or 0, 'shard')}, {self.pace or 'no rate yet'}"
        )

    @property
    def _about(self) -> str:
        return "about " if self.estimated else ""


def _left(total: int | None, done: int, rate: float | None) -> float | None:
    return None if total is None or not rate else max(0, total - done) / rate


class ProgressReader:
    """Looks at one store again and again, and remembers what workers said."""

    def __init__(self, root: Root, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}  # by worker's object, the one read last at the end
        self._listed: list[str] = []  # the objects of all workers of the stage
        self._first: tuple[float, int] | None = None  # when this reader first saw the reading stage, and bytes done then
        self._plan: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None
        self._sums: dict[str, float] = {}  # of what is over, or was seen last
        self._sums_of_reading: dict[str, float] = {}

    def look(self) -> Snapshot:
        """The present state. What is being replaced or removed counts as not there. OSError where the storage can't be asked."""
        manifest = self._read(MANIFEST)
        if manifest is None:
            return Snapshot("starting")
        if manifest.get("complete"):
            counts = manifest["counts"]
            return Snapshot(
                "complete", n_tokens=counts["tokens"], tokens_done=counts["tokens"],
                n_shards=counts["shards"], shards_done=counts["shards"], sums=self._sums | self._all_read(counts),
            )  # fmt: skip
        start = self._read(START)
        if start is not None and start != self._start:  # another run of the job
            self._forget()
            self._start = start
        problem = self._read(PROBLEM)
        if problem is not None:
            stage = "stopped" if problem.get("kind") == STOPPED else "failed"
            return Snapshot(stage, problem=str(problem.get("message", "")))
        self._plan = self._read(PLAN) if self._plan is None else self._plan
        if self._plan is None:
            self._hear("read")
            return self._reading(self._start or {})
        self._hear("shards")
        return self._computing(self._plan, manifest)

    def _hear(self, kind: str) -> None:
        """Read what a few workers say: those never heard of first, then those not heard of for longest."""
        self._listed = [name for name in self._list(PROGRESS) if name.startswith(f"{PROGRESS}/{kind}-")]
        turns = {name: turn for turn, name in enumerate(self._said)}
        for name in sorted(self._listed, key=lambda name: turns.get(name, -1))[:WORKERS_A_LOOK]:
            if (said := self._read(name)) is not None:
                self._said.pop(name, None)
                self._said[name] = said

    def _of(self, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
        """What workers said: all that were heard of, and a sample; and how many workers there are for each of the sample."""
        heard = [said for name, said in self._said.items() if name.startswith(f"{PROGRESS}/{kind}-")]
        n = max(len(heard), len(self._listed))
        sample = heard if n <= WORKERS_OF_SAMPLE else heard[-WORKERS_OF_SAMPLE:]
        return heard, sample, n / max(1, len(sample))

    def _summed(self, kind: str) -> dict[str, float]:
        """What workers summed up, as an estimate of all workers'."""
        _, sample, scale = self._of(kind)
        sums: Counter[str] = Counter()
        for said in sample:
            sums.update(said.get("sums", {}))
        return {name: scale * value for name, value in sums.items()}

    def _all_read(self, counts: Mapping[str, Any]) -> dict[str, float]:
        """What reading came to, by the corpus's counts; nothing of a job that makes a store from another one."""
        if "n_bytes" not in (self._start or {}):
            return {}
        return {"tokens_read": counts.get("tokens", 0), "records_rejected": counts.get("rejected", 0)}

    def _reading(self, start: Mapping[str, Any]) -> Snapshot:
        """Stage A."""
        _, said, scale = self._of("read")
        n_bytes = start.get("n_bytes")

        def total(what: str) -> int:
            return round(scale * sum(int(worker.get(what, 0)) for worker in said))

        done = total("bytes") if n_bytes is None else min(total("bytes"), n_bytes)
        now = self._clock()
        self._first = self._first or (now, done)
        seconds, since = now - self._first[0], done - self._first[1]
        self._sums = self._sums_of_reading = self._summed("read") | {"bytes_read": done, "tokens_read": total("tokens")}
        return Snapshot(
            "reading", pieces_done=total("tasks"), n_pieces=start.get("n_pieces"),
            bytes_done=done, n_bytes=n_bytes, tokens_done=total("tokens"),
            bytes_per_second=since / seconds if since > 0 and seconds > 0 else None, estimated=scale > 1,
            n_workers=len(self._listed), sums=self._sums,
        )  # fmt: skip

    def _computing(self, plan: Mapping[str, Any], manifest: Mapping[str, Any]) -> Snapshot:
        heard, sample, scale = self._of("shards")
        n_tokens, n_shards, n_rows = (int(plan[name]) for name in ("n_tokens", "n_shards", "n_rows"))
        shard_rows = int(manifest.get("shard_rows", 1))

        def done(said: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
            """Shards that are written, and their rows."""
            ranges = union((first, stop) for worker in said for first, stop in worker.get("ranges", ()))
            rows = sum(min(stop * shard_rows, n_rows) - first * shard_rows for first, stop in ranges)
            return sum(stop - first for first, stop in ranges), rows

        shards, rows = done(heard)
        stage = "finishing" if n_shards and shards >= n_shards else "computing"
        if scale > 1:
            of_sample = done(sample)
            shards, rows = max(shards, round(scale * of_sample[0])), max(rows, round(scale * of_sample[1]))
        written = n_tokens * rows / n_rows if n_rows else 0
        unwritten = scale * sum(int(worker.get("unwritten_tokens", 0)) for worker in sample)
        rate = _rate(sample)
        computed = self._summed("shards")
        retries = int(plan.get("retries", 0)) + computed.get("storage_retries", 0)  # the plan's: of all that was read
        read = self._all_read(manifest.get("counts") or {})
        self._sums = self._sums_of_reading | read | computed | {"storage_retries": retries}
        return Snapshot(
            stage, tokens_done=min(n_tokens, round(written + unwritten)), n_tokens=n_tokens,
            shards_done=min(shards, n_shards), n_shards=n_shards,
            tokens_per_second=None if rate is None else scale * rate, estimated=scale > 1,
            n_workers=len(self._listed), sums=self._sums,
        )  # fmt: skip

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            value = self._root.get_json(name)
        except (FileNotFoundError, NotADirectoryError, ShardCorruptError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _list(self, prefix: str) -> list[str]:
        return [name for name in self._root.list(prefix) if name.endswith(".json")]


def _rate(said: Iterable[Mapping[str, Any]]) -> float | None:
    """Tokens a second of the present run, over all workers.

    Counted by calls of the engine, from the first one's begin to the last marker: a call's shards are computed together and
    written one by one, so that shards alone would tell a fraction of the true rate at first, and start-up is no work.
    """
    calls = [worker for worker in said if worker.get("began")]
    if not calls:
        return None
    seconds = max(float(worker["ended"]) for worker in calls) - min(float(worker["began"]) for worker in calls)
    return sum(int(worker["call_tokens"]) for worker in calls) / seconds if seconds > 0 else None


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges first … stop as ranges that neither touch nor overlap, in order."""
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((first, stop))
    return merged
