"""A mix job as Beam sees it: the layers of one store, weighed by one or more sets of learned weights, into another store.

May import apache_beam, elmo_store and transforms; the mixing itself is ``elmo_store.mix``. Shards of the mixed store are
those of its source, row for row, so each is a function of one source shard; sentences and rejects are copied.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput

import elmo_store
from elmo_store import zarr_form
from elmo_store.layout import rejects_part, sentences_part
from elmo_store.manifest import Manifest, WeightSet, read_manifest
from elmo_store.mix import ScalarMix
from elmo_store.storage import Root
from transforms.embed import ShardResult, count
from transforms.finish import IO_THREADS, CombineOutcomes, Outcome, done_shards, finish_job, outcome_of
from transforms.number import NumberResult
from transforms.plan import PartSlice, ShardTask, grouped, shard_tasks, shards_per_task
from transforms.shard_text import PartReader, read_shard
from transforms.work import PLAN, numbered_marker
from transforms.write import write_shard

PARTS, SHARDS = "parts", "shards"
ROWS_AT_ONCE = 2048  # rows mixed in float32 at a time: bounds the memory of the intermediate layers
SHARDS_PER_TASK = 8


@dataclass(frozen=True)
class MixSettings:
    """What the stages of a mix job share; small and picklable. The target's manifest says how to mix."""

    source: Root
    target: Root


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
    mixes = [ScalarMix.of(weights, layer_norm) for weights in weight_sets]
    mixed = np.empty((len(states), len(mixes), 2 * states.shape[2]), dtype)
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = states[first : first + ROWS_AT_ONCE]  # [rows, 2L+1, p]
        for column, mix in enumerate(mixes):
            with np.errstate(over="ignore"):  # reported below, with its place
                mixed[first : first + len(rows), column] = mix(rows)
    finite = np.isfinite(mixed)
    if not finite.all():
        row, column, _ = (int(axis) for axis in np.argwhere(~finite)[0])
        raise ValueError(
            f"weight set {weight_sets[column].name!r} gives a value that {dtype} can't hold (row {row} of its shard): "
            "mix to --dtype float32, or look at gamma"
        )
    return mixed


def source_slices(source: Root, manifest: Manifest) -> list[PartSlice]:
    """The final parts of a store as the plan's slices, from each part's token counts."""

    def rows_of(part: int) -> tuple[int, int]:
        with source.filesystem.open(source.path(sentences_part(part)), "rb") as file:
            lengths = pq.read_table(file, columns=["n_tokens"])["n_tokens"].to_numpy()
        extra = 2 * int((lengths > 0).sum()) if manifest.boundaries else 0
        return len(lengths), int(lengths.sum()) + extra

    with ThreadPoolExecutor(IO_THREADS) as pool:
        sizes = list(pool.map(rows_of, range(manifest.sizes.parts)))
    slices = []
    sentence = row = 0
    for part, (n_sentences, n_rows) in enumerate(sizes):
        slices.append(PartSlice(part, sentences_part(part), sentence, row, n_rows))
        sentence, row = sentence + n_sentences, row + n_rows
    if (sentence, row) != (manifest.sizes.sentences, manifest.sizes.rows):
        raise ValueError(
            f"{source}: its sentence parts hold {sentence} sentences and {row} rows, its manifest says "
            f"{manifest.sizes.sentences} and {manifest.sizes.rows}: the store is damaged, write it again"
        )
    return slices


def plan_id(manifest: Manifest) -> str:
    """What all shards of a mixed store follow from: its job."""
    return hashlib.sha256(json.dumps(dict(manifest.job), sort_keys=True).encode()).hexdigest()[:32]


def plan_mix(settings: MixSettings) -> Iterable[Any]:
    """Empty arrays into the target, and the copies and shards that are still to do."""
    source, target = settings.source, settings.target
    manifest = read_manifest(target)
    if manifest.complete:
        return
    counts = manifest.sizes
    if "zarr" in manifest.forms:
        zarr_form.create(target, manifest)
    identity = plan_id(manifest)
    done = done_shards(target, identity, counts.shards, "sha256" if target.is_local else "size")
    target.put_json(
        PLAN,
        {"id": identity, "n_tokens": counts.tokens, "n_rows": counts.rows, "n_shards": counts.shards}
        | {"n_parts": counts.parts, "planned": time.time(), "shards_done": len(done)},
    )
    yield from (TaggedOutput(PARTS, part) for part in range(counts.parts))
    slices = source_slices(source, read_manifest(source))
    tasks = shard_tasks(slices, counts.rows, manifest.shard_rows, done.keys())
    for batch in grouped(tasks, shards_per_task(counts.shards, most=SHARDS_PER_TASK)):
        yield TaggedOutput(SHARDS, batch)


def copy_part(part: int, settings: MixSettings) -> NumberResult:
    """Copy the sentences of a part, and its rejects if it has any. Doing it again overwrites the same with the same."""
    source, target = settings.source, settings.target
    names = [sentences_part(part)]
    if source.size(rejects_part(part)) is not None:
        names.append(rejects_part(part))
    copied = []
    for name in names:
        data = source.get(name)
        target.put(name, data)
        copied.append({"path": name, "bytes": len(data)})
    target.put_json(numbered_marker(part), {"objects": copied})
    return NumberResult(part, 0)


class MixShards(beam.DoFn):
    """One list of shards after the other: read the states, mix them, write the shards. A failure is a result, not an end."""

    def __init__(self, settings: MixSettings) -> None:
        self._settings = settings

    def setup(self) -> None:
        """Open the source once a worker; how to mix stands in the target's manifest."""
        self._store = elmo_store.open(str(self._settings.source), storage_options=self._settings.source.storage_options)
        self._reader = PartReader(self._settings.source)
        self._manifest: Manifest | None = None

    def process(self, element: list[ShardTask]) -> Iterator[ShardResult]:
        """Results of the shards of one list."""
        if self._manifest is None:
            self._manifest = read_manifest(self._settings.target)
        for task in element:
            try:
                result = self._mix(task, self._manifest)
            except Exception as error:  # whatever it is, it must not take the other shards down
                result = ShardResult(task.shard, task.n_rows, f"mixing: {type(error).__name__}: {error}")
            count(result)
            yield result

    def _mix(self, task: ShardTask, manifest: Manifest) -> ShardResult:
        if manifest.mix is None:
            raise ValueError(f"{self._settings.target} is not a mixed store")
        began = time.perf_counter()
        text = read_shard(self._reader, task, manifest.boundaries)
        states = self._store.read(rows=slice(task.first_row, task.first_row + task.n_rows))  # [n, 2L+1, p]
        was_read = time.perf_counter()
        mixed = mix_rows(states, manifest.mix.weight_sets, layer_norm=manifest.mix.layer_norm, dtype=manifest.dtype)  # [n, k, 2p]
        computed = time.perf_counter()
        stats = {"tokens": text.n_tokens, "seconds_reading": was_read - began, "seconds_computing": computed - was_read}
        marked = stats | {"plan": plan_id(manifest), "finished": time.time()}
        write_shard(self._settings.target, manifest, text, mixed, marked)
        return ShardResult(task.shard, task.n_rows, None, stats | {"seconds_writing": time.perf_counter() - computed})


def finish(outcome: Outcome, settings: MixSettings) -> bool:
    """Complete the mixed store. IncompleteJobError if work is left."""
    finish_job(settings.target, outcome)
    return True


class MixStore(beam.PTransform[PBegin, PCollection[bool]]):
    """The whole job: plan → (copies ‖ mixed shards) → complete store."""

    def __init__(self, settings: MixSettings) -> None:
        super().__init__()
        self._settings = settings

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages."""
        settings = self._settings
        tasks = begin | "Job" >> beam.Create([settings]) | "Plan" >> beam.FlatMap(plan_mix).with_outputs(PARTS, SHARDS)
        copied = (
            tasks[PARTS]
            | "Spread parts" >> beam.Reshuffle()
            | "Copy" >> beam.Map(lambda part, job: outcome_of(copy_part(part, job)), settings)
        )
        mixed = (
            tasks[SHARDS]
            | "Spread shards" >> beam.Reshuffle()
            | "Mix" >> beam.ParDo(MixShards(settings))
            | "Outcomes" >> beam.Map(outcome_of)
        )
        return (
            (copied, mixed)
            | "Outcomes together" >> beam.Flatten()
            | "All outcomes" >> beam.CombineGlobally(CombineOutcomes())
            | "Finish" >> beam.Map(finish, settings).with_output_types(bool)
        )
