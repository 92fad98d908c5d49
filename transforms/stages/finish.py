"""Stage D: is everything there? Then the last small objects, the complete manifest, and the scratch area goes.

Doing it again is harmless: every step overwrites what it wrote before.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.format.layout import IDS, REJECTS, SENTENCE_IDS, SENTENCES, STRETCHES, ZARR, is_ours
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import IdsMarker, StretchMarker, read_ids_marker, read_stretch_marker
from elmo_store.reading.writer import complete_store
from elmo_store.storage.root import Root
from transforms.runtime.job_root import RETRIES, JobRoot, writable
from transforms.runtime.results import CombineOutcomes, NumberResult, ShardResult, outcome_of
from transforms.runtime.work import PLAN, START, SUMMARY, WORK
from transforms.stages.done import IO_THREADS, CheckAll, Checked, remove_half_written
from transforms.stages.problems import stop

M = TypeVar("M", StretchMarker, IdsMarker)


class FinishStore(beam.PTransform[PCollection[ShardResult | NumberResult], PCollection[bool]]):
    """Results of all tasks → True, once the store is complete. IncompleteJobError if work is left."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root

    def expand(self, results: PCollection[ShardResult | NumberResult]) -> PCollection[bool]:
        """Wire `finish_job`, which runs once."""
        return (
            results
            | "Outcomes" >> beam.Map(outcome_of)
            | "All outcomes" >> beam.CombineGlobally(CombineOutcomes())
            | "All shards" >> CheckAll(self._root)
            | "Complete" >> beam.Map(lambda found, root: finish_job(root, found).complete, self._root).with_output_types(bool)
        )


def finish_job(root: Root, found: Checked) -> Manifest:
    """Complete the store at ``root``. IncompleteJobError, also left in the scratch area for the launcher, if work is left."""
    manifest = read_manifest(root)
    if manifest.complete:  # a runner that runs the last step twice; the first time may not have come to its end
        if writable(root):
            _end_run(root)
        return manifest
    counts, plan = manifest.sizes, root.get_json(PLAN)
    if found.n_missing:  # what failed in one attempt may have succeeded in another
        stop(root, _problem(found, counts.shards))
    if found.faulty:
        stop(root, [f"{', '.join(found.faulty)} are not in the store as their markers say: run the same command again"])
    stretches = _markers(root, plan["n_stretches"], read_stretch_marker)
    tables = _markers(root, plan["n_id_runs"], read_ids_marker)
    _remove_half_written(root)
    if plan["resumed"]:
        _remove_strays(root, [*stretches, *tables])
    waits = root.get_json(START).get("waits", False)
    complete = complete_store(root, with_device(manifest, found.devices), found.checksum, stretches, tables)
    n_retries = found.outcome.n_retries + int(plan.get("retries", 0)) + RETRIES.taken()
    this_run = found.this_run + Counter(retries=n_retries)
    if waits:  # the launcher, who removes it
        root.put_json(SUMMARY, {"bytes": found.n_bytes, "everything": found.everything, "this_run": this_run})
    _end_run(root, keep=SUMMARY if waits else "")
    return complete


def with_device(manifest: Manifest, devices: Collection[str]) -> Manifest:
    """``manifest`` with what its shards were computed on, as their markers say: cards and lanes show in the last bits.

    ``device`` is told where workers found out for themselves what they have, ``gpu`` wherever it was one; more than one of
    either is told.
    """
    computed_on = {name.partition(" ") for device in devices for name in device.split("; ") if name}
    job = dict(manifest.job)
    if job.get("device") == "auto" and computed_on:
        job["device"] = ",".join(sorted({kind for kind, _, _ in computed_on}))
    if gpus := sorted({gpu for _, _, gpu in computed_on if gpu}):
        job["gpu"] = "; ".join(gpus)
    return replace(manifest, job=job)


def _end_run(root: Root, keep: str = "") -> None:
    """Remove the scratch area but ``keep``, then the run's right to write: a late copy of any stage finds none."""
    if keep:
        root.remove_many([rel for rel in root.list(WORK) if rel != keep])
    else:
        root.remove_tree(WORK)
    if isinstance(root, JobRoot):
        root.release()


def _remove_half_written(root: Root) -> None:
    """Remove the temporary files of writers that were killed; object stores have none.

    Not in the folders that hold one shard each: there are as many as shards, and workers look there (`transforms.stages.done`).
    """
    if root.is_local:
        remove_half_written(root.path(), but=root.path(f"{ZARR}/states/c"))


def _remove_strays(root: Root, markers: Sequence[StretchMarker | IdsMarker]) -> None:
    """Remove what an earlier plan of this job left beside its parts and id tables: the input may have changed since."""
    known = {marker.path for marker in markers} | {record.path for marker in markers for record in marker.objects}
    rooms = (SENTENCES, SENTENCE_IDS, REJECTS, f"{ZARR}/sentence_start/c", STRETCHES, IDS)
    root.remove_many([rel for room in rooms for rel in root.list(room) if is_ours(rel) and rel not in known])


def _markers(root: Root, n: int, read: Callable[[Root, int], M | None]) -> list[M]:
    """The markers 0 … ``n``, which workers have just seen."""
    with ThreadPoolExecutor(IO_THREADS) as pool:
        markers = list(pool.map(lambda number: read(root, number), range(n)))
    there = [marker for marker in markers if marker is not None]
    if len(there) < n:
        stop(root, ["markers of parts or ids have gone while they were counted: run the same command again"])
    return there


def _problem(found: Checked, n_shards: int) -> list[str]:
    """Which shards are missing, and what went wrong with some of them."""
    shown = ", ".join(map(str, found.missing)) + (" …" if found.n_missing > len(found.missing) else "")
    lines = [f"{found.n_missing} of {n_shards} shards are not in the store as their markers say ({shown})", *found.outcome.errors]
    return lines
