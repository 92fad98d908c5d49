"""Tasks whose shards may still be written: a bundle begins the next one meanwhile, and returns none of them before.

`Begun` travels from the stage that computes to `DurableOutcomes` within one bundle. Where a runner puts anything between the two,
it is encoded, which waits for its shards: then a task is durable before the next one begins.
"""

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import apache_beam as beam
from apache_beam.coders import Coder, registry
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from transforms.runtime.results import Outcome, ShardResult, counted
from transforms.runtime.worker import log_pace


class Writer(Protocol):
    """What writes the shards of tasks, each known by a number; it may be another process's."""

    def is_durable(self, number: int) -> bool:
        """Whether every shard of the task is in the store, or failed."""

    def results(self, number: int) -> list[ShardResult]:
        """What became of the task's shards, once that is so; asked once."""


class Begun:
    """A task that ``writer`` has begun, or, without a writer, its results."""

    def __init__(self, writer: Writer | None, number: int = 0, results: Sequence[ShardResult] = ()) -> None:
        self._writer, self._number, self._results = writer, number, results

    def is_durable(self) -> bool:
        """As of `Writer`."""
        return self._writer is None or self._writer.is_durable(self._number)

    def results(self) -> Sequence[ShardResult]:
        """As of `Writer`."""
        if self._writer is not None:
            self._results = self._writer.results(self._number)
            self._writer = None
        return self._results

    def __reduce__(self) -> tuple[Any, ...]:
        return Begun, (None, self._number, self.results())


class BegunCoder(Coder):
    """Of `Begun`. Beam encodes some elements only to learn their size, which must not wait."""

    def encode(self, value: Begun) -> bytes:
        return pickle.dumps(value)

    def decode(self, encoded: bytes) -> Begun:
        begun: Begun = pickle.loads(encoded)
        return begun

    def estimate_size(self, value: Begun) -> int:
        return 1

    def is_deterministic(self) -> bool:
        return False


registry.register_coder(Begun, BegunCoder)


class DurableOutcomes(beam.DoFn):
    """What became of each shard, as soon as it is in the store, at the latest when the bundle ends."""

    def start_bundle(self) -> None:
        self._begun: deque[Begun] = deque()

    def process(self, element: Begun) -> Iterator[Outcome]:
        self._begun.append(element)
        while self._begun and self._begun[0].is_durable():
            yield from map(counted, self._results())

    def finish_bundle(self) -> Iterator[Any]:
        while self._begun:
            for result in self._results():
                yield WindowedValue(counted(result), GlobalWindow().max_timestamp(), (GlobalWindow(),))

    def _results(self) -> Sequence[ShardResult]:
        results = self._begun.popleft().results()
        log_pace(results)
        return results
