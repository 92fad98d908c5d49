"""Stage B: from the markers of all reading tasks to sizes, empty arrays, and the tasks that are still to do.

The arithmetic is `transforms.stages.plan`; here it meets the store. Tasks are pointers; which of them an earlier run has done
is found by many workers (`transforms.stages.done`, `transforms.stages.number`).
"""

import hashlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import DoOutputsTuple, PCollection, TaggedOutput

from elmo_store.format.layout import FORMS, STATES, ZARR
from elmo_store.format.manifest import Counts, Manifest, read_manifest, write_manifest
from elmo_store.forms import zarr_form
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings, ReadTask, TaskResult
from transforms.runtime.job_root import RETRIES, run_of
from transforms.runtime.work import PLAN
from transforms.stages.number import NumberTask, id_runs
from transforms.stages.plan import CorpusPlan, grouped, make_plan, part_counts, shards_per_task, stretches
from transforms.stages.problems import stop_for_bad_files, stop_for_rejects
from transforms.stages.scratch import first_sentences, marked_result
from transforms.stages.unpack import all_tasks

NUMBER, SHARDS = "number", "shards"
IO_THREADS = 16


class PlanShards(beam.PTransform[PCollection[int], DoOutputsTuple]):
    """How often storage was asked again, once all is tokenised → `NUMBER`: tasks that number parts, `SHARDS`: shard tasks' lists.

    ``max_reject_rate``: of the records that are not blank, more than which end the job.
    """

    def __init__(
        self,
        root: Root,
        read: ReadSettings,
        *,
        most_shards_per_task: int,
        workers: int,
        resumed: bool,
        max_reject_rate: float = 1.0,
    ) -> None:
        super().__init__()
        self._arguments = (root, read, most_shards_per_task, workers, resumed, max_reject_rate)

    def expand(self, n_retries: PCollection[int]) -> Any:  # DoOutputsTuple: Beam warns of that as a hint
        """Wire `plan_job`."""
        return n_retries | "Plan" >> beam.FlatMap(_plan_job, self._arguments).with_outputs(NUMBER, SHARDS)


def _plan_job(n_retries: int, arguments: tuple[Root, ReadSettings, int, int, bool, float]) -> Iterable[Any]:
    return plan_job(*arguments, n_retries)


def corpus_plan(root: Root, manifest: Manifest, read: ReadSettings) -> CorpusPlan:
    """The plan that the markers of all reading tasks give: a GET a task. RuntimeError for a task without one."""

    def result(task: ReadTask) -> TaskResult:
        found = marked_result(root, task, read)  # the task itself has just looked whether its parts are there
        if found is None:
            raise RuntimeError(f"task {task.name} ({task.splits[0].url}) is not tokenised: run the same command again")
        return found

    with ThreadPoolExecutor(IO_THREADS) as pool:
        results = list(pool.map(result, all_tasks(root)))
    if read.max_sentences:
        results = list(first_sentences(root, results, read.max_sentences))
    return make_plan(part_counts(results), shard_rows=manifest.shard_rows, boundaries=manifest.boundaries)


def id_of_plan(manifest: Manifest, plan: CorpusPlan) -> str:
    """A short hash of what all shards' bytes follow from: the parts in order, the model, and every setting of the job."""
    digest = hashlib.sha256()
    for value in (
        manifest.model.fingerprint,
        manifest.start_state.sha256,
        json.dumps(
            [
                manifest.states,
                manifest.dtype,
                manifest.precision,
                manifest.job.get("cell"),
                manifest.boundaries,
                manifest.shard_rows,
                manifest.chunk_rows,
            ]
        ),
        json.dumps([[form for form in FORMS if form in manifest.forms], manifest.compression, manifest.checksum]),
        *(part.counts.sha256 for part in plan.parts),
    ):
        digest.update(value.encode() + b"\0")
    return digest.hexdigest()[:32]


def plan_job(
    root: Root,
    read: ReadSettings,
    most_shards_per_task: int,
    workers: int,
    resumed: bool,
    max_reject_rate: float = 1.0,
    n_retries: int = 0,
) -> Iterable[Any]:
    """Sizes into the manifest, empty arrays into the store, and the tasks; of a job that is resumed some may be done.

    IncompleteJobError if input files can't be read, or too many records were refused.
    """
    manifest = read_manifest(root)
    if manifest.complete:
        return
    stop_for_bad_files(root)
    plan = corpus_plan(root, manifest, read)
    stop_for_rejects(root, plan, max_reject_rate)
    counts = Counts(
        plan.n_sentences, plan.n_tokens, plan.n_rows, plan.n_rejected, plan.n_words_cut, len(plan.parts), plan.n_shards
    )
    manifest = replace(manifest, counts=counts)
    identity = id_of_plan(manifest, plan)
    runs = stretches(plan.parts, plan.n_sentences, manifest.sentence_chunk)
    check_room(root, manifest)
    if not is_planned(root, identity):
        write_manifest(root, manifest)
        zarr_form.create(root, manifest)
        root.put_json(
            PLAN,
            {"id": identity, "run": run_of(root)}
            | {"n_tokens": plan.n_tokens, "n_rows": plan.n_rows, "n_shards": plan.n_shards}
            | {"n_parts": len(plan.parts), "n_stretches": len(runs), "n_id_runs": id_runs(plan.n_sentences)}
            | {"planned": time.time(), "retries": n_retries + RETRIES.taken(), "resumed": resumed},
        )
    for run in runs:
        yield TaggedOutput(NUMBER, NumberTask(run, manifest.boundaries, plan.n_sentences, plan.n_rows, resumed))
    size = shards_per_task(plan.n_shards, most=most_shards_per_task, workers=workers)
    for batch in grouped(plan.shard_tasks(), size):
        yield TaggedOutput(SHARDS, batch)


def check_room(root: Root, manifest: Manifest) -> None:
    """RuntimeError before the first shard if the states of ``manifest`` can't have room at ``root``, as far as that can be known.

    Compressed vectors are counted half: how far they shrink is known when they are there.
    """
    row_bytes = manifest.row_bytes * len(manifest.forms)
    least = manifest.sizes.rows * row_bytes // (1 if manifest.compression == "none" else 2)
    free = root.free_bytes()
    if free is None or free >= least:
        return
    least -= sum(sum(root.sizes(folder).values()) for folder in (STATES, f"{ZARR}/states"))  # by an earlier run
    if free < least:
        raise RuntimeError(
            f"the output {root} has {free:,} bytes free and its states take {least:,} more: make room "
            "and run the same command again, or give another --output, or fewer --states"
        )


def is_planned(root: Root, identity: str) -> bool:
    """Whether this run has written this plan already: a runner may run the step twice, the second time late.

    What follows from the plan may be written or finished by then, and nothing of it is touched.
    """
    if not run_of(root):
        return False
    try:
        plan = root.get_json(PLAN)
    except (FileNotFoundError, ValueError):
        return False
    return bool(plan.get("run") == run_of(root) and plan.get("id") == identity)
