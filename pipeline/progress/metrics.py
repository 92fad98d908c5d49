"""A job's progress as metrics: names, units and values of what `pipeline.progress.snapshot` sees."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

from elmo_store.storage.root import Root
from pipeline.progress.repeated import repeated
from pipeline.progress.snapshot import ProgressReader, Snapshot

LOCAL_LOOK_SECONDS, LOOK_SECONDS = 0.5, 5.0  # between two looks, on a disk of this machine and elsewhere
UNITS = {"s": "seconds", "By": "bytes", "1": "ratio"}  # OpenTelemetry's (UCUM) → the end of a Prometheus name
STAGES = ("starting", "reading", "computing", "finishing", "complete", "failed", "stopped")


@dataclass(frozen=True)
class Metric:
    """One metric of a job. ``value`` of a snapshot: None where it has none; ``beam``: the counter of the same on its engine."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str  # as OpenTelemetry has it; "{token}" counts tokens
    help: str
    value: Callable[[Snapshot], float | None]
    beam: str = ""

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus: what OpenTelemetry's own translation makes of the other."""
        return "_".join(filter(None, ("elmo_store", self.name, UNITS.get(self.unit), "total" if self.kind == "counter" else "")))

    @property
    def opentelemetry(self) -> str:
        """Its name in OpenTelemetry, which has the unit apart."""
        return f"elmo_store.{self.name}"


def _sum(name: str) -> Callable[[Snapshot], float | None]:
    return lambda snapshot: snapshot.sums.get(name)


def _computed(snapshot: Snapshot) -> float | None:
    return None if snapshot.stage in ("starting", "reading") else snapshot.tokens_done


def _busy(snapshot: Snapshot) -> float | None:
    busy, idle = (snapshot.sums.get(name, 0.0) for name in ("seconds_computing", "seconds_idle"))
    return busy / (busy + idle) if busy else None


METRICS = (
    Metric("tokens", "counter", "{token}", "tokens whose states are computed, or were there", _computed, "tokens"),
    Metric("shards", "counter", "{shard}", "shards in the store", lambda s: s.shards_done, "shards_written"),
    Metric("shards_failed", "counter", "{shard}", "shards that failed", _sum("shards_failed"), "shards_failed"),
    Metric("read", "counter", "By", "bytes of the input read", _sum("bytes_read"), "bytes_read"),
    Metric("tokens_read", "counter", "{token}", "tokens read", _sum("tokens_read"), "tokens_read"),
    Metric("records_rejected", "counter", "{record}", "records refused", _sum("records_rejected"), "records_rejected"),
    Metric("storage_retries", "counter", "{request}", "storage requests repeated", _sum("storage_retries"), "storage_retries"),
    Metric("tokenising", "counter", "s", "workers read and tokenised", _sum("seconds_tokenising"), "milliseconds_tokenising"),
    Metric("reading", "counter", "s", "workers read shards' text", _sum("seconds_reading"), "milliseconds_reading"),
    Metric("computing", "counter", "s", "devices were busy", _sum("seconds_computing"), "milliseconds_computing"),
    Metric("device_idle", "counter", "s", "devices waited between calls", _sum("seconds_idle"), "milliseconds_idle"),
    Metric("writing", "counter", "s", "workers encoded and put shards", _sum("seconds_writing"), "milliseconds_writing"),
    Metric("device_busy", "gauge", "1", "share of the devices' time that they computed", _busy),
    Metric("input", "gauge", "By", "size of the input", lambda s: s.n_bytes),
    Metric("expected_tokens", "gauge", "{token}", "tokens of the corpus", lambda s: s.n_tokens),
    Metric("expected_shards", "gauge", "{shard}", "shards of the store", lambda s: s.n_shards),
    Metric("remaining", "gauge", "s", "time left of this stage at the present rate", lambda s: s.seconds_left),
    Metric("workers", "gauge", "{worker}", "worker processes heard of", lambda s: s.n_workers),
)
STAGE = Metric("stage", "gauge", "{stage}", "1 for the stage that the job is in, a label", lambda s: 1.0)


class Meter:
    """A job's metrics for whoever asks: what the last look at its output saw. A thread looks, as long as it is followed."""

    def __init__(self) -> None:
        self._seen = Snapshot("starting")
        self._reader: ProgressReader | None = None
        self._counted: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self) -> tuple[str, dict[str, float]]:
        """The stage, and values by the metrics' names. Counters never fall."""
        values: dict[str, float] = {}
        with self._lock:
            for metric in METRICS:
                value = metric.value(self._seen)
                if metric.kind == "counter":
                    value = self._counted[metric.name] = max(value or 0, self._counted.get(metric.name, 0))
                if value is not None:  # a collector takes what began whole as whole
                    values[metric.name] = float(value) if metric.unit in ("s", "1") else round(value)
            return self._seen.stage, values

    @contextmanager
    def following(self, root: Root) -> Iterator[None]:
        """Look at the job on ``root`` while the block runs."""
        self._reader = ProgressReader(root)
        try:
            with repeated(self.look, LOCAL_LOOK_SECONDS if root.is_local else LOOK_SECONDS, "metrics") as thread:
                yield
        finally:
            if thread.is_alive():
                self._reader = None

    def look(self) -> None:
        """See how the job is now, unless its end is known."""
        if self._reader is not None:
            with suppress(Exception):  # whatever a look met, the next one may succeed
                self.see(self._reader.look())

    def see(self, snapshot: Snapshot) -> None:
        """``snapshot`` is the job's present state."""
        with self._lock:
            self._seen = snapshot

    def end(self, sums: Mapping[str, float]) -> None:
        """The job is complete, and came to ``sums`` as its last stage counted them: a short one was hardly looked at."""
        self.look()
        self._reader = None
        seconds = {name: value for name, value in sums.items() if name.startswith("seconds_")}
        self.see(replace(self._seen, sums={**self._seen.sums, **seconds, "storage_retries": sums.get("retries", 0)}))
