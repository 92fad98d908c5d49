"""Shards of one store into the shards of another that follows from it: mixed, or converted to other numbers and forms.

Shards of the target are those of its source, row for row, so each is a function of one source shard.
"""

import time
from collections.abc import Iterator
from functools import partial

import apache_beam as beam
from apache_beam.pvalue import PCollection

import elmo_store
from elmo_store.errors import LeaseLostError
from elmo_store.format.int8 import Array, Int8Rows
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.reading.writer import rows_as
from elmo_store.storage.root import Root
from transforms.runtime.health import Health
from transforms.runtime.job_root import RETRIES, again
from transforms.runtime.progress_files import ShardProgress
from transforms.runtime.results import ShardResult, count
from transforms.stages.mix import mixed_rows
from transforms.stages.plan import ShardTask
from transforms.stages.plan_derived import plan_id
from transforms.stages.shard_text import PartReader, read_shard
from transforms.stages.write import write_shard


class DeriveShards(beam.PTransform[PCollection[list[ShardTask]], PCollection[ShardResult]]):
    """Lists of shard tasks → shards in the target, spread over the workers. The target's manifest says what they hold."""

    def __init__(self, source: Root, target: Root) -> None:
        super().__init__()
        self._roots = (source, target)

    def expand(self, tasks: PCollection[list[ShardTask]]) -> PCollection[ShardResult]:
        """Wire the worker."""
        return tasks | "Spread shards" >> beam.Reshuffle() | "Derive" >> beam.ParDo(_DeriveShards(*self._roots))


class _DeriveShards(beam.DoFn):
    """One list of shards after the other: read their rows, make the target's, write them. A failure is a result, not an end."""

    def __init__(self, source: Root, target: Root) -> None:
        self._source, self._target = source, target

    def setup(self) -> None:
        """Open the source once a worker; what to make stands in the target's manifest."""
        self._store = elmo_store.open(str(self._source), storage_options=self._source.storage_options)
        self._source.confirm(now=True)  # after it was opened: it is the launcher's
        self._reader = PartReader(self._source)
        self._progress = ShardProgress(self._target)
        self._health = Health()
        self._manifest: Manifest | None = None

    def process(self, element: list[ShardTask]) -> Iterator[ShardResult]:
        """Results of the shards of one list."""
        if self._manifest is None:
            self._manifest = read_manifest(self._target)
        for task in element:
            try:
                result = self._derive(task, self._manifest)
            except LeaseLostError:
                raise
            except Exception as error:  # whatever it is, it must not take the other shards down
                self._health.failed("deriving", error)
                said = f"deriving: {type(error).__name__}: {error}"
                result = ShardResult(task.shard, task.n_rows, said, {"storage_retries": RETRIES.taken()})
                self._health.check()
            if result.error is None:
                self._health.well()
                self._progress.done(task.shard, result.stats)
            count(result)
            yield result
        self._progress.last()

    def _derive(self, task: ShardTask, manifest: Manifest) -> ShardResult:
        began = time.perf_counter()
        text = read_shard(self._reader, task, manifest.boundaries)
        mixes = manifest.kind == "mix" and self._store.manifest.kind == "states"
        rows = again(partial(self._read, task, manifest, mixes), local=self._source.is_local)
        was_read = time.perf_counter()
        made = rows if isinstance(rows, Int8Rows) or not mixes else mixed_rows(rows, manifest)
        computed = time.perf_counter()
        stats = {"tokens": text.n_tokens, "seconds_reading": was_read - began, "seconds_computing": computed - was_read}
        write_shard(self._target, manifest, text, made, plan_id(manifest), stats)
        stats |= {"seconds_writing": time.perf_counter() - computed, "storage_retries": RETRIES.taken()}
        return ShardResult(task.shard, task.n_rows, None, stats)

    def _read(self, task: ShardTask, manifest: Manifest, mixes: bool) -> Array | Int8Rows:
        """The source's rows: all states as numbers for a mix, otherwise those of the target as it stores them."""
        rows = slice(task.first_row, task.first_row + task.n_rows)
        return self._store.read(rows=rows) if mixes else rows_as(self._store, manifest.dtype, rows, manifest.states)
