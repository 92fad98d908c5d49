"""Stage D: is everything there? Then the last small objects, the complete manifest, and the scratch area goes.

May import apache_beam, elmo_store, NumPy, pyarrow. Doing it again is harmless: every step overwrites
what it wrote before.
"""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from apache_beam.pvalue import PCollection

from elmo_store import zarr_form
from elmo_store.layout import sentences_part
from elmo_store.manifest import Manifest, read_manifest, write_manifest
from elmo_store.storage import TEMPORARY_PREFIX, Root
from transforms.done import done_shards
from transforms.results import CombineOutcomes, NumberResult, Outcome, ShardResult, outcome_of
from transforms.work import NUMBERED, PLAN, PROBLEM, WORK, numbered_marker


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
