"""What tasks come to, on the way from the stages that work to the one that finishes; and the counters they add to.

Small and picklable: numbers and a few errors, however large the corpus.
"""

import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import apache_beam as beam

from elmo_store.format.markers import checksum_of_runs

NAMESPACE = "elmo_store"  # of every Beam counter of this package
ERRORS_SHOWN = 5
SHARDS_SHOWN = 10


@dataclass(frozen=True)
class ShardResult:
    """What became of one shard: numbers for the counters, and the error if it is not in the store."""

    shard: int
    error: str | None = None
    stats: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def failed(cls, shard: int, doing: str, error: Exception, n_retries: int) -> "ShardResult":
        """A shard that is not in the store because of ``error``."""
        last = traceback.extract_tb(error.__traceback__)[-1:]
        line = f" ({last[0].filename}:{last[0].lineno})" if last else ""
        return cls(shard, f"{doing}: {type(error).__name__}: {error}{line}", {"storage_retries": n_retries})


@dataclass(frozen=True)
class Outcome:
    """What tasks of a run came to, and what a look at the store found: digests of runs of shards, sums over shards' markers."""

    errors: tuple[str, ...] = ()  # a few of them
    n_retries: int = 0  # of storage
    digests: tuple[tuple[int, str], ...] = ()  # first shard of a run, digest of its markers
    n_missing: int = 0
    missing: tuple[int, ...] = ()  # a few of these shards
    faulty: tuple[str, ...] = ()  # part groups and runs of id tables whose objects are not what their markers say: a few
    n_bytes: int = 0
    everything: Counter[str] = field(default_factory=Counter)  # sums of the markers' numbers
    this_run: Counter[str] = field(default_factory=Counter)  # of those that this run wrote
    devices: frozenset[str] = frozenset()  # what computed the shards, as far as their markers say

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            tuple(sorted({*self.errors, *other.errors}))[:ERRORS_SHOWN],
            self.n_retries + other.n_retries,
            self.digests + other.digests,
            self.n_missing + other.n_missing,
            tuple(sorted(self.missing + other.missing)[:SHARDS_SHOWN]),
            tuple(sorted(self.faulty + other.faulty)[:SHARDS_SHOWN]),
            self.n_bytes + other.n_bytes,
            self.everything + other.everything,
            self.this_run + other.this_run,
            self.devices | other.devices,
        )

    @property
    def checksum(self) -> str:
        """Over all shards, as the manifest has it."""
        return checksum_of_runs(digest for _, digest in sorted(self.digests))


def total(outcomes: Iterable[Outcome]) -> Outcome:
    """The sum of ``outcomes``; Beam combines with it."""
    return sum(outcomes, Outcome())


def counted(result: ShardResult) -> Outcome:
    """Add one shard's numbers to the Beam counters (seconds as whole milliseconds); returns what it came to."""
    add("shards_failed" if result.error else "shards_written", 1)
    for name, value in result.stats.items():
        if "seconds" in name:
            add(name.replace("seconds", "milliseconds"), 1000 * value)
        elif isinstance(value, int | float):
            add(name, value)
    errors = () if result.error is None else (f"shard {result.shard}, {result.error}",)
    return Outcome(errors, int(result.stats.get("storage_retries", 0)))


def add(counter: str, value: float) -> None:
    """Add ``value``, as a whole number, to a Beam counter of this package."""
    beam.metrics.Metrics.counter(NAMESPACE, counter).inc(int(value))
