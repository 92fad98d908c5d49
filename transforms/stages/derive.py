"""A store from another one: mixed, or converted to other numbers and forms.

Sizes, sentences and ids come from the source. Shards of the target are those of its source, row for row, so each is a function
of the same rows of the source; what to make of them stands in the target's manifest. What is written of a task, and how, is
`elmo_store.writer`'s: here tasks are listed, and given to workers.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import IdsMarker, PartGroupMarker, marked, read_marker
from elmo_store.forms import zarr_form
from elmo_store.reading.rejects import rejects_in
from elmo_store.reading.view import View
from elmo_store.storage.failures import retry
from elmo_store.storage.root import Root
from elmo_store.writer import (
    copy_marked,
    more_columns,
    n_part_groups,
    row_text,
    stored_rows,
    write_kept_ids,
    write_part_group,
    write_shard,
)
from transforms.runtime.results import Outcome, counted
from transforms.runtime.work import PLAN
from transforms.runtime.worker import Health, run_stats
from transforms.stages.plan import (
    BEGUN,
    SHARDS,
    ShardTask,
    grouped,
    id_runs,
    is_planned,
    shards_per_task,
    write_plan,
)

PARTS = "parts"  # an output of the plan: the folder and the number of the marker of each
SHARDS_PER_TASK = 8


def plan_id(manifest: Manifest) -> str:
    """What all shards of such a store follow from: its job."""
    return hashlib.sha256(json.dumps(dict(manifest.job), sort_keys=True).encode()).hexdigest()[:32]


def plan_derived(_: Any, source: View, target: Root, resumed: bool) -> Iterable[Any]:
    """Empty arrays into the target; yields as `plan_job` does, but `PARTS`: part groups and runs of id tables."""
    yield TaggedOutput(BEGUN, Outcome())
    manifest = read_manifest(target)
    if manifest.complete:
        return
    counts = manifest.sizes
    whole = source.whole_store
    if whole is not None:  # its part groups and id tables are copied
        groups, tables = marked(whole.root, layout.PART_GROUPS), marked(whole.root, layout.IDS)
    else:
        groups = list(range(n_part_groups(manifest)))
        tables = list(range(id_runs(counts.sentences)))
    if not is_planned(target, plan_id(manifest)):
        zarr_form.create(target, manifest)
        write_plan(
            target,
            plan_id(manifest),
            counts,
            n_groups=len(groups),
            n_id_runs=len(tables),
            resumed=resumed,
        )
    yield from (TaggedOutput(PARTS, (layout.PART_GROUPS, number)) for number in groups)
    yield from (TaggedOutput(PARTS, (layout.IDS, number)) for number in tables)
    edges = map(manifest.shard_range, range(counts.shards))
    tasks = (ShardTask(shard, first, stop - first, ()) for shard, (first, stop) in enumerate(edges))
    for batch in grouped(tasks, shards_per_task(counts.shards, most=SHARDS_PER_TASK)):
        yield TaggedOutput(SHARDS, batch)


def put_texts(task: tuple[str, int], source: View, target: Root) -> Outcome:
    """A part group, or a run of id tables: a store's own as they are, a view's numbered anew."""
    (folder, number), manifest, plan = task, read_manifest(target), str(target.get_json(PLAN)["id"])
    if (whole := source.whole_store) is not None:
        kind: type[PartGroupMarker | IdsMarker] = (
            PartGroupMarker if folder == layout.PART_GROUPS else IdsMarker
        )
        marker = read_marker(whole.root, kind, number)
        retry(partial(copy_marked, marker, whole.root, target, plan), local=whole.root.is_local)
        return Outcome()
    if folder == layout.PART_GROUPS:
        write_part_group(
            target,
            manifest,
            source,
            number,
            more_columns(source),
            partial(rejects_in, source),
            plan,
        )
    else:
        bits = layout.id_bits(manifest.sizes.sentences)
        size = (1 << bits) // id_runs(manifest.sizes.sentences)
        write_kept_ids(
            target, source, number, range(number * size, (number + 1) * size), bits, plan
        )
    return Outcome()


class DeriveShards(beam.DoFn):
    """Lists of shard tasks → shards in the target, and what became of each: a failure is a result, not an end."""

    def __init__(self, source: View, target: Root) -> None:
        self._source, self._target = source, target

    def setup(self) -> None:
        self._health, self._manifest = Health(), read_manifest(self._target)

    def process(self, element: list[ShardTask]) -> Iterator[Outcome]:
        for task in element:
            try:
                outcome = self._derive(task.shard)
            except Exception as error:  # whatever it is, it must not take the other shards down
                outcome = self._health.failed(task.shard, "deriving", error)
                self._health.check()
            else:
                self._health.succeeded()
            yield counted(outcome)

    def _derive(self, shard: int) -> Outcome:
        source, target, manifest, began = (
            self._source,
            self._target,
            self._manifest,
            time.perf_counter(),
        )
        text = retry(lambda: row_text(source, manifest, shard), local=source.is_local)
        rows = retry(lambda: stored_rows(source, manifest, shard), local=source.is_local)
        n_tokens = text.n_tokens(manifest.boundaries)
        stats = {"tokens": n_tokens, "seconds_reading": time.perf_counter() - began}
        write_shard(target, manifest, text, rows, plan_id(manifest), run_stats(target, stats))
        return Outcome.written(n_tokens) + Outcome.retried(target)
