"""Stage B: from counts of scratch parts to final numbers, sizes, empty arrays, and the tasks of numbering and embedding.

A sentence never straddles two parts; it may straddle two shards, and is then computed by both and cut. Tasks are pointers; many
workers find out which of them an earlier run has done (`transforms.stages.finish`, `transforms.stages.number`).
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import TaggedOutput

from elmo_store.errors import ShardCorruptError
from elmo_store.format.layout import FORMS, id_bits
from elmo_store.format.manifest import Counts, Manifest, read_manifest, write_manifest
from elmo_store.format.markers import M, PartRange, read_marker
from elmo_store.forms import zarr_form
from elmo_store.storage.root import Root
from transforms.inputs.records import (
    InDocument,
    ReadSettings,
    ReadTask,
    ScratchPart,
    TaskResult,
    file_name,
)
from transforms.runtime.owner import run_name
from transforms.runtime.results import (
    Outcome,
    stop_for_bad_files,
    stop_for_no_sentence,
    stop_for_rejects,
)
from transforms.runtime.work import PLAN
from transforms.stages.split import listed_tasks
from transforms.stages.tokenise import marked_result

NUMBER, SHARDS, BEGUN = "number", "shards", "begun"  # outputs of the plan
IO_THREADS = 16
SHARDS_PER_LOOK = 128  # that one look at what earlier runs have done is of
ID_RUNS = 256  # most runs of id tables: so many files of hashes a part group leaves
GROUP_SENTENCES, GROUP_TOKENS, GROUP_PARTS = (
    1 << 18,
    1 << 22,
    512,
)  # a part group is closed where it reaches one of them

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartPlan:
    """A scratch part with its final numbers."""

    scratch: ScratchPart
    position_offset: (
        int  # what its local positions lack (the lines of earlier ranges of the same file)
    )
    ordinal_offset: int  # what its local ordinals lack (their paragraphs)
    document: tuple[
        str, int
    ]  # that goes on from the earlier ranges, "" for the file: its name, and its sentences so far
    range: PartRange  # its sentences and rows, counted over the corpus


@dataclass(frozen=True)
class ShardTask:
    """Rows ``first_row … first_row + n_rows`` of the token axis, and the parts that hold their sentences. Pointers only."""

    shard: int
    first_row: int
    n_rows: int
    parts: tuple[
        tuple[str, PartRange], ...
    ]  # where the tokens stand, relative to the store, and the rows that they span


@dataclass(frozen=True)
class PartGroup:
    """Consecutive parts that one worker numbers, with the chunks of ``sentence_start`` that begin among their sentences.

    ``after``: the parts behind them whose first sentences fill up the last of these chunks.
    """

    number: int
    parts: tuple[PartPlan, ...]
    after: tuple[PartPlan, ...]
    first_chunk: int
    stop_chunk: int


@dataclass(frozen=True)
class CorpusPlan:
    """All parts in input order, and the sizes of the whole corpus."""

    parts: tuple[PartPlan, ...]
    counts: Counts
    n_skipped: int  # sentences that the collection has


def make_plan(results: Iterable[TaskResult], *, shard_rows: int, boundaries: bool) -> CorpusPlan:
    """Number the parts of ``results`` (of all tasks, in any order) by prefix sums.

    Positions go on from range to range of a file.
    """
    parts: list[PartPlan] = []
    sentence = row = n_skipped = 0
    offsets: dict[str, tuple[int, int, tuple[str, int]]] = {}  # of the next range of each file
    for result in sorted(results, key=lambda result: result.task.index):
        url = result.task.splits[0].url
        position, ordinal, document = offsets.get(url, (0, 0, ("", 0)))
        after = document_of(result.ends_in, url, position, document)
        offsets[url] = position + result.n_positions, ordinal + result.n_ordinals, after
        n_skipped += result.n_skipped
        for scratch in result.parts:
            n_rows = scratch.n_tokens + (2 * scratch.n_nonempty if boundaries else 0)
            part_range = PartRange(len(parts), sentence, scratch.n_sentences, row, n_rows)
            parts.append(PartPlan(scratch, position, ordinal, document, part_range))
            sentence, row = sentence + scratch.n_sentences, row + n_rows
    counts = Counts(
        sentences=sentence,
        tokens=sum(part.scratch.n_tokens for part in parts),
        rows=row,
        rejected=sum(part.scratch.n_rejected for part in parts),
        words_cut=sum(part.scratch.n_words_cut for part in parts),
        parts=len(parts),
        shards=-(-row // shard_rows),
    )
    return CorpusPlan(tuple(parts), counts, n_skipped)


def document_of(
    stands: InDocument, source: str, position_offset: int, before: tuple[str, int]
) -> tuple[str, int]:
    """A document's name and the number of a sentence in it; ``before``: of what went on into the range ("": the file)."""
    if stands.start < 0:
        return before[0] or file_name(source), before[1] + stands.number
    return stands.name or f"{file_name(source)}:{stands.start + position_offset}", stands.number


def shard_tasks(
    parts: Sequence[tuple[str, PartRange]], n_rows: int, shard_rows: int
) -> Iterator[ShardTask]:
    """The shards of ``n_rows`` rows that lie in ``parts`` (all of them, in input order)."""
    starts = [part.first_row for _, part in parts]
    for shard in range(-(-n_rows // shard_rows)):
        first = shard * shard_rows
        stop = min(first + shard_rows, n_rows)
        # Parts without rows share their start with the part after them: bisect_right passes over them.
        among = parts[bisect_right(starts, first) - 1 : bisect_left(starts, stop)]
        yield ShardTask(
            shard, first, stop - first, tuple((path, part) for path, part in among if part.n_rows)
        )


def part_groups(parts: Sequence[PartPlan], n_sentences: int, chunk_entries: int) -> list[PartGroup]:
    """All parts of the corpus in order, cut into groups.

    There is always one, because ``sentence_start`` has ``n_sentences`` + 1 entries, ``chunk_entries`` a chunk.
    """
    runs: list[list[PartPlan]] = [[]]
    n_held = tokens_held = 0
    for part in parts:
        if n_held >= GROUP_SENTENCES or tokens_held >= GROUP_TOKENS or len(runs[-1]) >= GROUP_PARTS:
            runs.append([])
            n_held = tokens_held = 0
        runs[-1].append(part)
        n_held, tokens_held = n_held + part.scratch.n_sentences, tokens_held + part.scratch.n_tokens
    n_chunks = -(-(n_sentences + 1) // chunk_entries)
    groups = []
    first_chunk = first_after = 0
    for number, run in enumerate(runs):
        first_after += len(run)
        stop = (
            run[-1].range.first_sentence + run[-1].range.n_sentences if run else 0
        )  # the sentence after its last
        stop_chunk = n_chunks if number == len(runs) - 1 else -(-stop // chunk_entries)
        stop_after = bisect_left(
            parts,
            stop_chunk * chunk_entries,
            first_after,
            key=lambda part: part.range.first_sentence,
        )
        after = parts[first_after:stop_after] if stop_chunk > first_chunk else ()
        groups.append(PartGroup(number, tuple(run), tuple(after), first_chunk, stop_chunk))
        first_chunk = stop_chunk
    return groups


def id_runs(n_sentences: int) -> int:
    """Runs of id tables that are merged apart: as many as there are tables, at most 256."""
    return min(1 << id_bits(n_sentences), ID_RUNS)


def sentence_rows(n_tokens: Int64, boundaries: bool) -> Int64:
    """Rows of each sentence [n]: its tokens, with ``boundaries`` two more, and none at all for a sentence of zero tokens."""
    return np.where(n_tokens > 0, n_tokens + 2, 0) if boundaries else n_tokens


def row_starts(rows: Int64, first_row: int) -> Int64:
    """First row of each sentence [n] of a part whose first row is ``first_row``."""
    return first_row + np.cumsum(rows, dtype=np.int64) - rows


def cut(rows: Int64, part_first_row: int, first: int, stop: int) -> tuple[Int64, Int64, Int64]:
    """Which sentences of a part fall into rows ``first … stop``, and which of their rows.

    ``rows`` [n]: rows of each sentence of the part. Returns sentence indices within the part, and for each the first
    and the stop of its own rows (counted from 0 in the sentence) that are wanted: three arrays [m], in order, without
    empty ranges.
    """
    starts = row_starts(rows, part_first_row)
    lo = np.maximum(first, starts) - starts
    hi = np.minimum(stop, starts + rows) - starts
    index = np.flatnonzero(lo < hi)
    return index, lo[index], hi[index]


def shards_per_task(n_shards: int, *, most: int, workers: int = 32) -> int:
    """How many shards travel together, at most ``most``: equal shares for so many workers, each in as few tasks as that allows.

    Engines that spread tasks evenly (Flink, Spark) then give each worker the same work, and calls of the engine are full.
    """
    share = max(1, -(-n_shards // max(1, workers)))
    return -(-share // -(-share // most))


def shards_per_call(
    shard_rows: int, row_bytes: int, *, most_rows: int, most_bytes: int, most: int
) -> int:
    """How many shards the engine computes in one call: many rows fill its lanes well, their states must fit in memory."""
    rows = min(most_rows, most_bytes // row_bytes)
    return max(1, min(most, rows // shard_rows))


def grouped(tasks: Iterator[ShardTask], size: int) -> Iterator[list[ShardTask]]:
    """Consecutive tasks in lists of ``size``."""
    while batch := list(islice(tasks, size)):
        yield batch


def plan_job(
    _: Iterable[int],
    root: Root,
    read: ReadSettings,
    most_shards_per_task: int,
    workers: int,
    resumed: bool,
    max_reject_rate: float = 1.0,
) -> Iterable[Any]:
    """Sizes into the manifest, empty arrays into the store, and the tasks; of a job that is resumed some may be done.

    ``max_reject_rate``: the share of the records that are not blank whose refusal ends the job when it is exceeded.
    Yields `NUMBER`: part groups to number, `SHARDS`: lists of shard tasks, and, if there are none too, `BEGUN`: an outcome to
    which theirs are added.
    IncompleteJobError if input files can't be read, none of them has a sentence, or too many records were refused.
    """
    yield TaggedOutput(BEGUN, Outcome())
    manifest = read_manifest(root)
    if manifest.complete:
        return
    stop_for_bad_files(root)
    plan = corpus_plan(root, manifest, read)
    stop_for_no_sentence(root, plan.counts.sentences, plan.n_skipped)
    stop_for_rejects(root, [part.scratch for part in plan.parts], max_reject_rate)
    manifest = replace(manifest, counts=plan.counts)
    identity = id_of_plan(manifest, plan)
    groups = part_groups(plan.parts, plan.counts.sentences, manifest.sentence_chunk)
    if not is_planned(root, identity):
        write_manifest(root, manifest)
        zarr_form.create(root, manifest)
        write_plan(
            root, identity, plan.counts, n_groups=len(groups), n_id_runs=id_runs(plan.counts.sentences),
            resumed=resumed, n_skipped=plan.n_skipped,
        )  # fmt: skip
    yield from (TaggedOutput(NUMBER, group) for group in groups)
    tasks = shard_tasks(
        [(part.scratch.path, part.range) for part in plan.parts],
        plan.counts.rows,
        manifest.shard_rows,
    )
    most = (
        SHARDS_PER_LOOK if resumed else most_shards_per_task
    )  # what is left to do is grouped anew
    size = shards_per_task(plan.counts.shards, most=most, workers=workers)
    yield from (TaggedOutput(SHARDS, batch) for batch in grouped(tasks, size))


def corpus_plan(root: Root, manifest: Manifest, read: ReadSettings) -> CorpusPlan:
    """The plan that the markers of all reading tasks give: a GET a task. RuntimeError for a task without one."""

    def result(task: ReadTask) -> TaskResult:
        marked = marked_result(
            root, task, read
        )  # the task itself has just looked whether its parts are there
        if marked is None:
            raise RuntimeError(
                f"task {task.name} ({task.splits[0].url}) is not tokenised: run the same command again"
            )
        return marked

    with ThreadPoolExecutor(IO_THREADS) as pool:
        results = pool.map(result, listed_tasks(root))
        return make_plan(results, shard_rows=manifest.shard_rows, boundaries=manifest.boundaries)


def id_of_plan(manifest: Manifest, plan: CorpusPlan) -> str:
    """A short hash of what all shards' bytes follow from: the parts in order, the model, and every setting of the job."""
    settings = [manifest.states, manifest.dtype, manifest.precision, manifest.job.get("cell")]
    settings += [manifest.boundaries, manifest.shard_rows, manifest.chunk_rows]
    forms = [form for form in FORMS if form in manifest.forms]
    encoding = [forms, manifest.compression, manifest.checksum]
    digest = hashlib.sha256()
    for value in (
        manifest.model.fingerprint,
        manifest.start_state.sha256,
        json.dumps(settings),
        json.dumps(encoding),
        *(part.scratch.sha256 for part in plan.parts),
    ):
        digest.update(value.encode() + b"\0")
    return digest.hexdigest()[:32]


def write_plan(
    root: Root,
    identity: str,
    counts: Counts,
    *,
    n_groups: int,
    n_id_runs: int,
    resumed: bool,
    n_skipped: int = 0,
) -> None:
    """Leave the sizes of the job in the scratch area: the stages behind the plan, and whoever watches, read them there."""
    root.put_json(
        PLAN,
        {"id": identity, "run": run_name(root)}
        | {"n_tokens": counts.tokens, "n_rows": counts.rows, "n_shards": counts.shards}
        | {
            "n_part_groups": n_groups,
            "n_id_runs": n_id_runs,
            "resumed": resumed,
            "skipped": n_skipped,
        },
    )


def marker_of_plan(root: Root, kind: type[M], number: int, plan: str | None) -> M | None:
    """The marker ``number`` if it can be read and follows from ``plan`` (an id; None: any). Otherwise it is to be done: None."""
    try:
        marker = read_marker(root, kind, number)
    except ShardCorruptError:
        return None
    return marker if marker is not None and plan in (None, marker.plan) else None


def is_planned(root: Root, identity: str) -> bool:
    """Whether this run has written this plan already: a runner may run the step twice, the second time late.

    What follows from the plan may be written or finished by then, and nothing of it is touched.
    """
    with suppress(FileNotFoundError, ValueError):
        plan = root.get_json(PLAN)
        return run_name(root) != "" and (plan.get("run"), plan.get("id")) == (
            run_name(root),
            identity,
        )
    return False
