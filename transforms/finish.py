"""Stage D: is everything there? Then the last small objects, the complete manifest, and the scratch area goes.

May import apache_beam and elmo_store. Doing it again is harmless: every step overwrites
what it wrote before.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.manifest import Manifest, read_manifest
from elmo_store.markers import IdsMarker, StretchMarker, object_fault, read_ids_marker, read_stretch_marker
from elmo_store.storage import TEMPORARY_PREFIX, Root
from elmo_store.writer import complete_store
from transforms.done import IO_THREADS, done_shards
from transforms.results import CombineOutcomes, NumberResult, Outcome, ShardResult, outcome_of
from transforms.work import PLAN, PROBLEM, WORK

M = TypeVar("M", StretchMarker, IdsMarker)


class IncompleteJobError(RuntimeError):
    """Work is left; the same command again continues with it."""


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
            | "Complete" >> beam.Map(lambda outcome, root: finish_job(root, outcome).complete, self._root).with_output_types(bool)
        )


def finish_job(root: Root, outcome: Outcome) -> Manifest:
    """Complete the store at ``root``. IncompleteJobError, also left in the scratch area for the launcher, if work is left."""
    manifest = read_manifest(root)
    if manifest.complete:  # a runner that runs the last step twice
        root.remove_tree(WORK)
        return manifest
    counts, plan = manifest.sizes, root.get_json(PLAN)
    sizes = root.sizes()
    done = done_shards(root, plan["id"], counts.shards, sizes)
    missing = [shard for shard in range(counts.shards) if shard not in done]
    if outcome.n_failed or missing:
        raise IncompleteJobError(_leave_problem(root, outcome, missing, counts.shards))
    stretches = _all_there(root, "stretches of parts", plan["n_stretches"], read_stretch_marker, sizes)
    tables = _all_there(root, "runs of id tables", plan["n_id_runs"], read_ids_marker, sizes)
    _remove_half_written(root)
    complete = complete_store(root, manifest, [done[shard] for shard in range(counts.shards)], stretches, tables)
    root.remove_tree(WORK)
    return complete


def _remove_half_written(root: Root) -> None:
    """Remove the temporary files of writers that were killed; object stores have none."""
    if root.is_local:
        for path in Path(root.path()).rglob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)


def _all_there(root: Root, what: str, n: int, read: Callable[[Root, int], M | None], sizes: Mapping[str, int]) -> list[M]:
    """The markers 0 … ``n``, whose objects are in the store. IncompleteJobError naming those that are not."""
    with ThreadPoolExecutor(IO_THREADS) as pool:
        markers = list(pool.map(lambda number: read(root, number), range(n)))
    there = [m for m in markers if m and not any(object_fault(root, o, "size", sizes.get(o.path)) for o in m.objects)]
    if len(there) < n:
        missing = [number for number, marker in enumerate(markers) if marker not in there]
        raise IncompleteJobError(f"{what} {missing[:10]} are not in the store: run the same command again")
    return there


def _leave_problem(root: Root, outcome: Outcome, missing: list[int], n_shards: int) -> str:
    """What is wrong, as a text that also stands in the scratch area: on a cluster the launcher sees no worker's exception."""
    shown = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
    lines = [f"{len(missing)} of {n_shards} shards are not in the store ({shown})", *outcome.errors]
    root.put_json(PROBLEM, {"message": "\n".join(lines)})
    return "\n".join(lines)
