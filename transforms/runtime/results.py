"""What tasks come to, on the way from the stages that work to the one that finishes; and the counters they add to.

Small and picklable: numbers and a few errors, however large the corpus.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import apache_beam as beam

NAMESPACE = "elmo_store"  # of every Beam counter of this package
ERRORS_SHOWN = 5


@dataclass(frozen=True)
class ShardResult:
    """What became of one shard: numbers for the counters, and the error if it is not in the store."""

    shard: int
    n_rows: int
    error: str | None = None
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NumberResult:
    """A stretch of final parts, or a run of id tables, that is in the store."""

    number: int
    n_sentences: int
    n_retries: int = 0  # of storage, that no result before told


@dataclass(frozen=True)
class Outcome:
    """What the tasks of one run came to."""

    n_done: int = 0
    n_failed: int = 0
    errors: tuple[str, ...] = ()
    n_retries: int = 0  # of storage

    def __add__(self, other: "Outcome") -> "Outcome":
        errors = tuple(sorted({*self.errors, *other.errors}))[:ERRORS_SHOWN]
        n_retries = self.n_retries + other.n_retries
        return Outcome(self.n_done + other.n_done, self.n_failed + other.n_failed, errors, n_retries)


def outcome_of(result: ShardResult | NumberResult) -> Outcome:
    """One result as an outcome."""
    if isinstance(result, NumberResult):
        return Outcome(1, n_retries=result.n_retries)
    n_retries = int(result.stats.get("storage_retries", 0))
    if result.error is not None:
        return Outcome(0, 1, (f"shard {result.shard}, {result.error}",), n_retries)
    return Outcome(1, n_retries=n_retries)


class CombineOutcomes(beam.CombineFn):
    """Sums outcomes; of the errors a few are kept."""

    def create_accumulator(self) -> Outcome:
        """Nothing yet."""
        return Outcome()

    def add_input(self, mutable_accumulator: Outcome, element: Outcome) -> Outcome:
        """One more."""
        return mutable_accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Outcome]) -> Outcome:
        """Sum of sums."""
        return sum(accumulators, Outcome())

    def extract_output(self, accumulator: Outcome) -> Outcome:
        """The sum."""
        return accumulator


def count(result: ShardResult) -> None:
    """Add one shard's numbers to the Beam counters; seconds as whole milliseconds."""
    add("shards_failed" if result.error else "shards_written", 1)
    for name, value in result.stats.items():
        if "seconds" in name:
            add(name.replace("seconds", "milliseconds"), 1000 * value)
        elif isinstance(value, int | float):
            add(name, value)


def add(counter: str, value: float) -> None:
    """Add ``value``, as a whole number, to a Beam counter of this package."""
    beam.metrics.Metrics.counter(NAMESPACE, counter).inc(int(value))
