"""Ids → sorted tables of their hashes, once all parts are numbered: what number tasks left, merged run by run.

A run of tables is one task: it reads its file of every stretch and writes its tables and their marker, so that a sort of any
size is done by many workers, and no id travels between stages. Then it removes what it read: 256 files a stretch would be too
many for the one worker that removes the scratch area.
"""

from collections.abc import Iterable
from contextlib import suppress

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection

from elmo_store.format import layout
from elmo_store.format.manifest import read_manifest
from elmo_store.format.markers import STAMPS, IdsMarker, joined_stamps, put_marked, write_marker
from elmo_store.reading.writer import encode_id_tables
from elmo_store.storage.root import Root
from transforms.runtime.job_root import RETRIES
from transforms.runtime.results import NumberResult
from transforms.runtime.work import PLAN, id_hashes
from transforms.stages.number import id_runs, is_merged


class IndexIds(beam.PTransform[PCollection[NumberResult], PCollection[NumberResult]]):
    """Numbered stretches, all of those that were to do → results of the runs of id tables."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root

    def expand(self, numbered: PCollection[NumberResult]) -> PCollection[NumberResult]:
        """Wire `runs_to_do` and `merge_ids`."""
        return (
            numbered
            | "All numbered" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
            | "Runs" >> beam.FlatMap(lambda _, root: runs_to_do(root), self._root)
            | "Spread runs" >> beam.Reshuffle()
            | "Merge" >> beam.Map(lambda run, root: merge_ids(root, run), self._root)
        )


def runs_to_do(root: Root) -> Iterable[int]:
    """The runs of id tables that this plan has not written yet; none of a complete store."""
    manifest = read_manifest(root)
    if manifest.complete:
        return []
    plan = root.get_json(PLAN)
    return [run for run in range(plan["n_id_runs"]) if not is_merged(root, run, plan["id"])]


def merge_ids(root: Root, run: int) -> NumberResult:
    """Write the id tables of one run, then their marker; remove what they were made of.

    FileNotFoundError if some of that is missing, unless a second copy of this task has just removed it.
    """
    plan = root.get_json(PLAN)
    n_sentences = read_manifest(root).sizes.sentences
    bits = layout.id_bits(n_sentences)
    of_run = (1 << bits) // id_runs(n_sentences)
    made_of = [id_hashes(run, stretch) for stretch in range(plan["n_stretches"])]
    try:
        data = b"".join(root.get_many(made_of))
    except FileNotFoundError:
        if not is_merged(root, run, plan["id"]):
            raise
        return NumberResult(run, 0, RETRIES.taken())
    rows = np.frombuffer(data, "<u8").reshape(-1, 3).astype(np.uint64)  # [n, (high, low, sentence)]
    tables = range(run * of_run, (run + 1) * of_run)
    records, stamps = put_marked(root, encode_id_tables(rows[:, :2], rows[:, 2].astype(np.int64), bits, tables))
    write_marker(
        root, IdsMarker(run, tables.start, len(tables), tuple(records), str(plan["id"]), {STAMPS: joined_stamps(stamps)})
    )
    with suppress(FileNotFoundError):  # a second copy of this task was faster; what it left goes with the scratch area
        root.remove_many(made_of)
    return NumberResult(run, 0, RETRIES.taken())
