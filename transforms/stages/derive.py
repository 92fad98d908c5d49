"""A store from another one: mixed, or converted to other numbers and forms.

Sizes, sentences and ids come from the source, marker by marker. Shards of the target are those of its source, row for row, so
each is a function of one source shard; what to make of it stands in the target's manifest.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import TaggedOutput

import elmo_store
from elmo_store.errors import LeaseLostError, ShardMissingError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, WeightSet, read_manifest
from elmo_store.format.markers import (
    ObjectRecord,
    marked,
    put_objects,
    read_ids_marker,
    read_part_group_marker,
    write_marker,
)
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.forms import zarr_form
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.reading.collection import VersionRoot, rejects_in
from elmo_store.reading.rows import text_of_rows
from elmo_store.reading.sentences import read_index
from elmo_store.reading.writer import more_columns, n_part_groups, rows_as, write_kept_ids, write_part_group
from elmo_store.storage.retrying import retry
from elmo_store.storage.root import Root
from transforms.runtime.owner import retries_of
from transforms.runtime.results import Outcome, ShardResult, counted
from transforms.runtime.work import PLAN
from transforms.runtime.worker import Health, log_pace
from transforms.stages.plan import SHARDS, ShardTask, grouped, id_runs, is_planned, shard_tasks, shards_per_task, write_plan
from transforms.stages.shards import ShardText, part_reader, read_shard, write_shard

PARTS = "parts"
SHARDS_PER_TASK = 8
ROWS_AT_ONCE = 2048  # rows mixed in float32 at a time: bounds the memory of the intermediate layers

CopyTask = tuple[str, int]  # the markers' folder, and the marker's number


def plan_id(manifest: Manifest) -> str:
    """What all shards of such a store follow from: its job."""
    return hashlib.sha256(json.dumps(dict(manifest.job), sort_keys=True).encode()).hexdigest()[:32]


def plan_derived(source: Root, target: Root, resumed: bool) -> Iterable[Any]:
    """Empty arrays into the target; yields `PARTS`: markers whose objects are to copy, and `SHARDS`: lists of shard tasks."""
    manifest = read_manifest(target)
    if manifest.complete:
        return
    counts = manifest.sizes
    of_collection = isinstance(source, VersionRoot)
    groups = list(range(n_part_groups(manifest))) if of_collection else marked(source, layout.PART_GROUPS)
    tables = list(range(id_runs(counts.sentences))) if of_collection else marked(source, layout.IDS)
    if not is_planned(target, plan_id(manifest)):
        zarr_form.create(target, manifest)
        write_plan(target, plan_id(manifest), counts, n_groups=len(groups), n_id_runs=len(tables), resumed=resumed)
    yield from (TaggedOutput(PARTS, (layout.PART_GROUPS, number)) for number in groups)
    yield from (TaggedOutput(PARTS, (layout.IDS, number)) for number in tables)
    for batch in grouped(_shard_tasks(source, manifest), shards_per_task(counts.shards, most=SHARDS_PER_TASK)):
        yield TaggedOutput(SHARDS, batch)


def _shard_tasks(source: Root, manifest: Manifest) -> Iterator[ShardTask]:
    counts, size = manifest.sizes, manifest.shard_rows
    if isinstance(source, VersionRoot):  # whose members' parts are numbered otherwise
        edges = map(manifest.shard_range, range(counts.shards))
        return (ShardTask(shard, first, stop - first, ()) for shard, (first, stop) in enumerate(edges))
    parts = [(layout.sentences_part(part.part), part) for part in read_index(source, read_manifest(source))]
    return shard_tasks(parts, counts.rows, size)


def opened_source(source: Root) -> elmo_store.Store:
    """The store, or the version of a collection, that is derived from."""
    number = source.number if isinstance(source, VersionRoot) else None
    return elmo_store.open(str(source), storage_options=source.storage_options, version=number)


def put_texts(task: CopyTask, source: Root, target: Root) -> Outcome:
    """`copy_marked`, or of a collection the part group, or the run of id tables, numbered over all its members."""
    if not isinstance(source, VersionRoot):
        return copy_marked(task, source, target)
    (folder, number), store = task, opened_source(source)
    manifest, plan = read_manifest(target), str(target.get_json(PLAN)["id"])
    if folder == layout.PART_GROUPS:
        rejects = partial(rejects_in, cast(elmo_store.Collection, store))
        write_part_group(target, manifest, store, number, more_columns(store), rejects, plan)
    else:
        bits = layout.id_bits(manifest.sizes.sentences)
        size = (1 << bits) // id_runs(manifest.sizes.sentences)
        write_kept_ids(target, store, number, range(number * size, (number + 1) * size), bits, plan)
    return Outcome(n_retries=retries_of(target).take())


@dataclass(frozen=True)
class ViewText:
    """What the target says about each row of a shard of a collection's rows."""

    task: ShardTask
    tokens: list[str]
    sentence: npt.NDArray[np.int64]
    index: npt.NDArray[np.int32]
    boundaries: bool

    @property
    def n_tokens(self) -> int:
        """Rows that are tokens, if the boundaries of each sentence are counted where it begins."""
        return len(self.index) - 2 * self.boundaries * int((self.index == 0).sum())


def copy_marked(task: CopyTask, source: Root, target: Root) -> Outcome:
    """Copy every object that a marker names, then the marker. Doing it again overwrites the same with the same.

    ShardMissingError if the source has no such marker; ValueError if an object is not what the marker says.
    """
    folder, number = task
    read: Any = read_part_group_marker if folder == layout.PART_GROUPS else read_ids_marker
    marker = read(source, number)
    if marker is None:
        raise ShardMissingError(f"{source.url(f'{folder}/{number:05d}.json')} is missing: the source is damaged, verify it")

    def objects() -> Iterator[tuple[str, bytes]]:
        for record in marker.objects:
            data = retry(partial(source.get, record.path), local=source.is_local, count=retries_of(target))
            if ObjectRecord.of(record.path, data) != record:
                raise ValueError(f"{source.url(record.path)} is not what its marker says: the source is damaged, verify it")
            yield record.path, data

    _, stamps = put_objects(target, objects())
    write_marker(target, replace(marker, plan=str(target.get_json(PLAN)["id"]), stats=stamps))
    return Outcome(n_retries=retries_of(target).take())


class DeriveShards(beam.DoFn):
    """Lists of shard tasks → shards in the target, and what became of each: a failure is a result, not an end."""

    def __init__(self, source: Root, target: Root) -> None:
        self._source, self._target = source, target

    def setup(self) -> None:
        self._store = opened_source(self._source)
        self._source.confirm(now=True)  # after it was opened: it is the launcher's
        self._read_part = part_reader(self._source)
        self._health = Health()
        self._manifest: Manifest | None = None

    def process(self, element: list[ShardTask]) -> Iterator[Outcome]:
        if self._manifest is None:
            self._manifest = read_manifest(self._target)
        results = []
        for task in element:
            try:
                result = self._derive(task, self._manifest)
            except LeaseLostError:
                raise
            except Exception as error:  # whatever it is, it must not take the other shards down
                self._health.failed("deriving", error)
                result = ShardResult.failed(task.shard, "deriving", error, retries_of(self._target).take())
                self._health.check()
            else:
                self._health.succeeded()
            results.append(result)
            yield counted(result)
        log_pace(results)

    def _derive(self, task: ShardTask, manifest: Manifest) -> ShardResult:
        began = time.perf_counter()
        text = self._text(task, manifest)
        mix = manifest.mix if self._store.manifest.kind == "states" else None
        retries = retries_of(self._target)
        rows = retry(partial(self._read, task, manifest, mixes=mix is not None), local=self._source.is_local, count=retries)
        was_read = time.perf_counter()
        if mix is not None and not isinstance(rows, Int8Rows):
            dtype = "float32" if manifest.is_int8 else manifest.dtype  # what is quantised is mixed in float32
            rows = mix_rows(rows, mix.weight_sets, layer_norm=mix.layer_norm, dtype=dtype)
        computed = time.perf_counter()
        stats = {"tokens": text.n_tokens, "seconds_reading": was_read - began, "seconds_computing": computed - was_read}
        write_shard(self._target, manifest, text, rows, plan_id(manifest), stats)
        stats |= {"seconds_writing": time.perf_counter() - computed, "storage_retries": retries.take()}
        return ShardResult(task.shard, None, stats)

    def _text(self, task: ShardTask, manifest: Manifest) -> ShardText | ViewText:
        if not isinstance(self._source, VersionRoot):
            return read_shard(self._read_part, task, manifest.boundaries)
        text = text_of_rows(self._store, task.first_row, task.first_row + task.n_rows)
        return ViewText(task, *text, manifest.boundaries)

    def _read(self, task: ShardTask, manifest: Manifest, *, mixes: bool) -> Array | Int8Rows:
        """The source's rows: all states as numbers for a mix, otherwise those of the target as it stores them."""
        rows = slice(task.first_row, task.first_row + task.n_rows)
        return self._store.read(rows=rows) if mixes else rows_as(self._store, manifest.dtype, rows, manifest.states)


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
    mixed = np.empty((len(mixes), len(states), 2 * states.shape[2]), dtype).transpose(1, 0, 2)  # in memory as it is stored
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
