"""The plan of a job that makes a store from another one (mix, convert): sizes come from the source, so do the shards."""

import hashlib
import json
import time
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import DoOutputsTuple, PBegin, TaggedOutput

from elmo_store.format.layout import IDS, STRETCHES, sentences_part
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import marked
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import read_index
from elmo_store.storage.root import Root
from transforms.runtime.job_root import RETRIES, run_of
from transforms.runtime.work import PLAN
from transforms.stages.plan import PartSlice, grouped, shard_tasks, shards_per_task
from transforms.stages.plan_shards import is_planned

PARTS, SHARDS = "parts", "shards"
SHARDS_PER_TASK = 8


class PlanDerived(beam.PTransform[PBegin, DoOutputsTuple]):
    """`PARTS`: markers whose objects are to copy; `SHARDS`: lists of shard tasks that are still to do."""

    def __init__(self, source: Root, target: Root, *, resumed: bool) -> None:
        super().__init__()
        self._job = (source, target, resumed)

    def expand(self, begin: PBegin) -> Any:  # DoOutputsTuple: Beam warns of that as a hint
        """Wire `plan_derived`."""
        return begin | "Job" >> beam.Create([self._job]) | "Plan" >> beam.FlatMapTuple(plan_derived).with_outputs(PARTS, SHARDS)


def source_slices(source: Root, manifest: Manifest) -> list[PartSlice]:
    """The final parts of a store as the plan's slices."""
    return [
        PartSlice(part.part, sentences_part(part.part), part.first_sentence, part.first_row, part.n_rows)
        for part in read_index(source, manifest)
    ]


def plan_id(manifest: Manifest) -> str:
    """What all shards of such a store follow from: its job."""
    return hashlib.sha256(json.dumps(dict(manifest.job), sort_keys=True).encode()).hexdigest()[:32]


def plan_derived(source: Root, target: Root, resumed: bool) -> Iterable[Any]:
    """Empty arrays into the target, and the copies and shards that are still to do."""
    manifest = read_manifest(target)
    if manifest.complete:
        return
    counts = manifest.sizes
    identity = plan_id(manifest)
    stretches, tables = marked(source, STRETCHES), marked(source, IDS)
    if not is_planned(target, identity):
        zarr_form.create(target, manifest)
        target.put_json(
            PLAN,
            {"id": identity, "run": run_of(target)}
            | {"n_tokens": counts.tokens, "n_rows": counts.rows, "n_shards": counts.shards}
            | {"n_parts": counts.parts, "n_stretches": len(stretches), "n_id_runs": len(tables)}
            | {"planned": time.time(), "retries": RETRIES.taken(), "resumed": resumed},
        )
    yield from (TaggedOutput(PARTS, (STRETCHES, number)) for number in stretches)
    yield from (TaggedOutput(PARTS, (IDS, number)) for number in tables)
    slices = source_slices(source, read_manifest(source))
    tasks = shard_tasks(slices, counts.rows, manifest.shard_rows)
    for batch in grouped(tasks, shards_per_task(counts.shards, most=SHARDS_PER_TASK)):
        yield TaggedOutput(SHARDS, batch)
