"""Stage D: is everything there? Then the last small objects, the complete manifest, and the scratch area goes.

May import apache_beam (a CombineFn), elmo_store, NumPy, pyarrow. Doing it again is harmless: every step overwrites
what it wrote before.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from elmo_store import zarr_form
from elmo_store.errors import ShardCorruptError
from elmo_store.layout import sentences_part
from elmo_store.manifest import Manifest, read_manifest, write_manifest
from elmo_store.markers import ShardMarker, Verify, marked_shards, object_fault, read_marker
from elmo_store.storage import TEMPORARY_PREFIX, Root
from transforms.embed import ShardResult
from transforms.number import NumberResult
from transforms.work import NUMBERED, PLAN, PROBLEM, WORK, numbered_marker

ERRORS_SHOWN = 5
IO_THREADS = 16


class IncompleteJobError(RuntimeError):
    """Work is left; the same command again continues with it."""


@dataclass(frozen=True)
class Outcome:
    """What the tasks of one run came to."""

    n_done: int = 0
    n_failed: int = 0
    errors: tuple[str, ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        errors = tuple(sorted({*self.errors, *other.errors}))[:ERRORS_SHOWN]
        return Outcome(self.n_done + other.n_done, self.n_failed + other.n_failed, errors)


def outcome_of(result: ShardResult | NumberResult) -> Outcome:
    """One result as an outcome."""
    if isinstance(result, ShardResult) and result.error is not None:
        return Outcome(0, 1, (f"shard {result.shard}, {result.error}",))
    return Outcome(1)


class CombineOutcomes(beam.CombineFn):
    """Sums outcomes; of the errors a few are kept."""

    def create_accumulator(self) -> Outcome:
        """Nothing yet."""
        return Outcome()

    def add_input(self, mutable_accumulator: Outcome, element: Outcome) -> Outcome:
        """One more."""
        return mutable_accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Outcome]) -> Outcome:
        """Sum of sums."""
        return sum(accumulators, Outcome())

    def extract_output(self, accumulator: Outcome) -> Outcome:
        """The sum."""
        return accumulator


def done_shards(root: Root, plan: str, n_shards: int, verify: Verify = "size") -> dict[int, ShardMarker]:
    """Markers of the shards that this very plan wrote and that are as their markers say.

    ``plan``: the id of the plan; a shard of another plan counts as not done. A marker or an object that is missing,
    cut or changed means "do it again", never an error. ``verify``: as in ``elmo_store.markers``.
    """
    sizes = root.sizes() if verify != "none" else {}

    def check(shard: int) -> ShardMarker | None:
        try:
            marker = read_marker(root, shard)
        except ShardCorruptError:
            return None
        if marker is None or marker.stats.get("plan") != plan:
            return None
        if any(object_fault(root, record, verify, sizes.get(record.path)) for record in marker.objects):
            return None
        return marker

    shards = [shard for shard in marked_shards(root) if shard < n_shards]
    with ThreadPoolExecutor(IO_THREADS) as pool:
        return {shard: marker for shard, marker in zip(shards, pool.map(check, shards), strict=True) if marker}


def finish_job(root: Root, outcome: Outcome) -> Manifest:
    """Complete the store at ``root``. IncompleteJobError, also left in the scratch area for the launcher, if work is left."""
    manifest = read_manifest(root)
    if manifest.complete:  # a runner that runs the last step twice
        root.remove_tree(WORK)
        return manifest
    counts = manifest.sizes
    done = done_shards(root, root.get_json(PLAN)["id"], counts.shards)
    missing = [shard for shard in range(counts.shards) if shard not in done]
    if outcome.n_failed or missing:
        raise IncompleteJobError(_leave_problem(root, outcome, missing, counts.shards))
    _check_numbered(root, counts.parts)
    if "zarr" in manifest.forms:
        zarr_form.write_sentence_start(root, manifest, sentence_starts(root, counts.parts, counts.rows))
        zarr_form.consolidate(root)
    _remove_half_written(root)
    complete = replace(manifest, complete=True)
    write_manifest(root, complete)
    root.remove_tree(WORK)
    return complete


def _remove_half_written(root: Root) -> None:
    """Remove the temporary files of writers that were killed; object stores have none."""
    if root.is_local:
        for path in Path(root.path()).rglob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)


def sentence_starts(root: Root, n_parts: int, n_rows: int) -> Iterator[npt.NDArray[np.int64]]:
    """First row of every sentence, part by part, and at last the number of rows: [sentences + 1] in chunks."""
    for part in range(n_parts):
        table = pq.read_table(BytesIO(root.get(sentences_part(part))), columns=["first_row"])
        yield table["first_row"].to_numpy()
    yield np.array([n_rows], np.int64)


def _check_numbered(root: Root, n_parts: int) -> None:
    there = set(root.list(NUMBERED))
    missing = [part for part in range(n_parts) if numbered_marker(part) not in there]
    if missing:
        raise IncompleteJobError(f"parts {missing[:10]} have no final numbers yet: run the same command again")


def _leave_problem(root: Root, outcome: Outcome, missing: list[int], n_shards: int) -> str:
    """What is wrong, as a text that also stands in the scratch area: on a cluster the launcher sees no worker's exception."""
    shown = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
    lines = [f"{len(missing)} of {n_shards} shards are not in the store ({shown})", *outcome.errors]
    root.put_json(PROBLEM, {"message": "\n".join(lines)})
    return "\n".join(lines)
