"""The layers of one store, weighed by one or more sets of learned weights, into the shards of another.

May import apache_beam, elmo_store and transforms; the mixing itself is ``elmo_store.mix``. Shards of the mixed store are
those of its source, row for row, so each is a function of one source shard.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import PCollection

import elmo_store
from elmo_store.errors import LeaseLostError
from elmo_store.manifest import Manifest, WeightSet, read_manifest
from elmo_store.mix import ScalarMix
from elmo_store.storage import Root
from transforms.health import Health
from transforms.job_root import RETRIES, again
from transforms.plan import ShardTask
from transforms.plan_mix import plan_id
from transforms.progress_files import ShardProgress
from transforms.results import ShardResult, count
from transforms.shard_text import PartReader, read_shard
from transforms.write import write_shard

ROWS_AT_ONCE = 2048  # rows mixed in float32 at a time: bounds the memory of the intermediate layers


class MixShards(beam.PTransform[PCollection[list[ShardTask]], PCollection[ShardResult]]):
    """Lists of shard tasks → mixed shards in the target, spread over the workers. The target's manifest says how to mix."""

    def __init__(self, source: Root, target: Root) -> None:
        super().__init__()
        self._roots = (source, target)

    def expand(self, tasks: PCollection[list[ShardTask]]) -> PCollection[ShardResult]:
        """Wire the worker."""
        return tasks | "Spread shards" >> beam.Reshuffle() | "Mix" >> beam.ParDo(_MixShards(*self._roots))


def mix_rows(states: npt.NDArray[Any], weight_sets: Sequence[WeightSet], *, layer_norm: bool, dtype: str) -> npt.NDArray[Any]:
    """Mix rows with every weight set.

    Args:
        states: [n, 2L+1, p], float16 or float32.
        weight_sets: k sets of L+1 weights each.
        layer_norm: whether each layer of each token is first shifted and scaled over its channels.
        dtype: of the result, "float16" or "float32"; the mix itself is computed in float32.

    Returns:
        [n, k, 2p].

    Raises:
        ValueError: a result does not fit the dtype (float16 ends at 65,504).
    """
    mixes = [ScalarMix.of(weights, "token" if layer_norm else "none") for weights in weight_sets]
    mixed = np.empty((len(states), len(mixes), 2 * states.shape[2]), dtype)
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = states[first : first + ROWS_AT_ONCE]  # [rows, 2L+1, p]
        for column, mix in enumerate(mixes):
            with np.errstate(over="ignore"):  # reported below, with its place
                mixed[first : first + len(rows), column] = mix(states=rows)
    finite = np.isfinite(mixed)
    if not finite.all():
        row, column, _ = (int(axis) for axis in np.argwhere(~finite)[0])
        raise ValueError(
            f"weight set {weight_sets[column].name!r} gives a value that {dtype} can't hold (row {row} of its shard): "
            "mix to --dtype float32, or look at gamma"
        )
    return mixed


class _MixShards(beam.DoFn):
    """One list of shards after the other: read the states, mix them, write the shards. A failure is a result, not an end."""

    def __init__(self, source: Root, target: Root) -> None:
        self._source, self._target = source, target

    def setup(self) -> None:
        """Open the source once a worker; how to mix stands in the target's manifest."""
        self._store = elmo_store.open(str(self._source), storage_options=self._source.storage_options)
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
                result = self._mix(task, self._manifest)
            except LeaseLostError:
                raise
            except Exception as error:  # whatever it is, it must not take the other shards down
                self._health.failed("mixing", error)
                said = f"mixing: {type(error).__name__}: {error}"
                result = ShardResult(task.shard, task.n_rows, said, {"storage_retries": RETRIES.taken()})
                self._health.check()
            if result.error is None:
                self._health.well()
                self._progress.done(task.shard, result.stats)
            count(result)
            yield result
        self._progress.last()

    def _mix(self, task: ShardTask, manifest: Manifest) -> ShardResult:
        if manifest.mix is None:
            raise ValueError(f"{self._target} is not a mixed store")
        began = time.perf_counter()
        text = read_shard(self._reader, task, manifest.boundaries)
        rows = slice(task.first_row, task.first_row + task.n_rows)
        states = again(partial(self._store.read, rows=rows), local=self._source.is_local)  # [n, 2L+1, p]
        was_read = time.perf_counter()
        mixed = mix_rows(states, manifest.mix.weight_sets, layer_norm=manifest.mix.layer_norm, dtype=manifest.dtype)  # [n, k, 2p]
        computed = time.perf_counter()
        stats = {"tokens": text.n_tokens, "seconds_reading": was_read - began, "seconds_computing": computed - was_read}
        marked = stats | {"plan": plan_id(manifest), "finished": time.time()}
        write_shard(self._target, manifest, text, mixed, marked)
        stats |= {"seconds_writing": time.perf_counter() - computed, "storage_retries": RETRIES.taken()}
        return ShardResult(task.shard, task.n_rows, None, stats)
