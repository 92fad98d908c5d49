"""The plan of a mix job: sizes come from the source, so do the shards; what has a valid marker is not mixed again.

May import apache_beam, elmo_store and transforms.
"""

import hashlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
from apache_beam.pvalue import DoOutputsTuple, PBegin, TaggedOutput

from elmo_store import zarr_form
from elmo_store.layout import sentences_part
from elmo_store.manifest import Manifest, read_manifest
from elmo_store.storage import Root
from transforms.done import IO_THREADS, done_shards
from transforms.plan import PartSlice, grouped, shard_tasks, shards_per_task
from transforms.work import PLAN

PARTS, SHARDS = "parts", "shards"
SHARDS_PER_TASK = 8


class PlanMix(beam.PTransform[PBegin, DoOutputsTuple]):
    """`PARTS`: parts to copy; `SHARDS`: lists of shard tasks that are still to do."""

    def __init__(self, source: Root, target: Root) -> None:
        super().__init__()
        self._roots = (source, target)

    def expand(self, begin: PBegin) -> DoOutputsTuple:
        """Wire `plan_mix`."""
        return begin | "Job" >> beam.Create([self._roots]) | "Plan" >> beam.FlatMapTuple(plan_mix).with_outputs(PARTS, SHARDS)


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


def plan_mix(source: Root, target: Root) -> Iterable[Any]:
    """Empty arrays into the target, and the copies and shards that are still to do."""
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
