"""Stage D: is everything there? Then the last small objects, the complete manifest, and the scratch area goes.

Nobody reads all markers alone: a look at what earlier runs wrote (`left_to_do`) and the last look at everything are both tasks
of a few hundred shards. Finishing again is harmless: every step overwrites what it wrote before.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import apache_beam as beam

from elmo_store.errors import LeaseLostError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import (
    CHECKSUM_RUN,
    REPEATED_IDS,
    IdsMarker,
    M,
    PartGroupMarker,
    ShardMarker,
    checksum_of_runs,
    path_of,
    read_marker,
    run_digest,
    stamped_fault,
    stamped_objects,
)
from elmo_store.storage.root import Root
from elmo_store.writer import complete_store
from transforms.runtime.owner import run_of
from transforms.runtime.results import SHARDS_SHOWN, Outcome, stop, total
from transforms.runtime.wiring import gathered, spread
from transforms.runtime.work import PLAN, START, SUMMARY
from transforms.stages.plan import IO_THREADS, ShardTask, grouped, marker_of_plan

ID_RUNS_OF_TASK = 16  # runs of id tables that one task looks at


def finish_store(root: Root) -> beam.PTransform:
    """Outcomes of all tasks → True, once the store is complete. IncompleteJobError if work is left."""
    return (
        "All outcomes" >> gathered(check_tasks, root)
        | "Look" >> spread(check, root)
        | "All looks" >> gathered(finish_job, root)
    )


def left_to_do(
    tasks: Sequence[ShardTask], root: Root, most_shards_per_task: int
) -> Iterator[list[ShardTask]]:
    """Those of ``tasks`` without a valid marker of this very plan, in lists. Nothing is removed: a later look may be a late one.

    On a local disk every byte is hashed; elsewhere an object whose stamp is that of the put is not read.
    """
    shards = [task.shard for task in tasks]
    done = sound_markers(
        root, ShardMarker, shards, str(root.get_json(PLAN)["id"]), stamps=not root.is_local
    )
    yield from grouped((task for task in tasks if task.shard not in done), most_shards_per_task)


def sound_markers(
    root: Root,
    kind: type[M],
    numbers: Sequence[int],
    plan: str | None = None,
    *,
    stamps: bool = True,
) -> dict[int, M]:
    """Those of the markers ``numbers`` whose objects are as they say.

    ``plan``: an id; a marker of another plan is left out too. A marker or an object that is missing, cut or changed means "do it
    again", never an error. ``stamps``: an object whose stamp is that of its put is not read.
    """
    with ThreadPoolExecutor(IO_THREADS) as pool:
        found = zip(
            numbers,
            pool.map(lambda number: marker_of_plan(root, kind, number, plan), numbers),
            strict=True,
        )
        markers = {number: marker for number, marker in found if marker is not None}
        objects = [
            (number, record, stamp)
            for number in markers
            for record, stamp in stamped_objects(markers[number])
        ]
        faults = pool.map(
            lambda each: stamped_fault(root, each[1], each[2] if stamps else ""), objects
        )
        faulty = {number for (number, _, _), fault in zip(objects, faults, strict=True) if fault}
    return {number: marker for number, marker in markers.items() if number not in faulty}


@dataclass(frozen=True)
class CheckTask:
    """Markers of ``folder`` to look at when all work is over; the first task carries what the work came to."""

    first: int
    stop: int
    outcome: Outcome | None = None
    folder: str = layout.SHARDS  # or layout.PART_GROUPS, layout.IDS


def check_tasks(outcomes: Iterable[Outcome], root: Root) -> Iterator[CheckTask]:
    """The plan's shards in runs, of which there is one at least, which carries ``outcomes``; its part groups and id tables."""
    outcome = total(outcomes)
    plan = (
        root.get_json(PLAN) if root.exists(PLAN) else {}
    )  # no plan: the store is complete already
    n_shards = int(plan.get("n_shards", 0))
    for first in range(0, max(1, n_shards), CHECKSUM_RUN):
        yield CheckTask(first, min(first + CHECKSUM_RUN, n_shards), outcome if first == 0 else None)
    for folder, number, size in (
        (layout.PART_GROUPS, "n_part_groups", 1),
        (layout.IDS, "n_id_runs", ID_RUNS_OF_TASK),
    ):
        n = plan.get(number, 0)
        for first in range(0, n, size):
            yield CheckTask(first, min(first + size, n), folder=folder)


def check(task: CheckTask, root: Root) -> Outcome:
    """Read a run of markers, and look whether their objects are still those that their writers put."""
    numbers = range(task.first, task.stop)
    if task.folder != layout.SHARDS:
        kind: type[PartGroupMarker | IdsMarker] = (
            IdsMarker if task.folder == layout.IDS else PartGroupMarker
        )
        sound = sound_markers(root, kind, numbers)
        faulty = [f"{task.folder}/{number:05d}" for number in numbers if number not in sound]
        return Outcome(faulty=tuple(faulty[:SHARDS_SHOWN]))
    outcome = task.outcome or Outcome()
    if not numbers:
        return outcome
    plan, began = str(root.get_json(PLAN)["id"]), float(root.get_json(START)["started"])
    # What stands there must be what the marker's writer put: a late worker of another run may have come after it.
    done = sound_markers(root, ShardMarker, numbers, plan)
    missing = [shard for shard in numbers if shard not in done]
    if root.is_local:
        for shard in numbers:
            root.remove_unfinished(os.path.dirname(layout.zarr_states_shard(shard)))
    return outcome + Outcome(
        digests=((task.first, run_digest(done.values())),),
        n_missing=len(missing),
        missing=tuple(missing[:SHARDS_SHOWN]),
        n_bytes=sum(record.bytes for marker in done.values() for record in marker.objects),
        everything=stat_sums(done.values()),
        this_run=stat_sums(
            marker for marker in done.values() if float(marker.stats.get("finished", 0)) >= began
        ),
        devices=frozenset(
            str(marker.stats["device"]) for marker in done.values() if "device" in marker.stats
        ),
    )


def stat_sums(markers: Iterable[ShardMarker]) -> Counter[str]:
    """The sums of the markers' numbers, by name."""
    sums: Counter[str] = Counter()
    for marker in markers:
        sums.update(
            {name: value for name, value in marker.stats.items() if isinstance(value, int | float)}
        )
    return sums


def finish_job(looks: Iterable[Outcome], root: Root) -> list[bool]:
    """True, once the store at ``root`` is complete. IncompleteJobError, also left for the launcher, if work is left."""
    outcome, manifest = total(looks), read_manifest(root)
    if (
        manifest.complete
    ):  # a runner that runs the last step twice; the first time may not have come to its end
        with suppress(LeaseLostError):
            _end_run(root)
        return [True]
    plan = root.get_json(PLAN)
    if outcome.n_missing:  # what failed in one attempt may have succeeded in another
        more = " …" if outcome.n_missing > len(outcome.missing) else ""
        shown = ", ".join(map(str, outcome.missing)) + more
        missing = f"{outcome.n_missing} of {manifest.sizes.shards} shards are not in the store as their markers say ({shown})"
        stop(root, [*outcome.errors, missing])  # causes first
    if outcome.faulty:
        stop(
            root,
            [
                f"{', '.join(outcome.faulty)} are not in the store as their markers say: run the same command again"
            ],
        )
    groups = _markers(root, PartGroupMarker, plan["n_part_groups"])
    tables = _markers(root, IdsMarker, plan["n_id_runs"])
    if (
        root.is_local
    ):  # not in the folders that hold one shard each: they are many, `check` looks there
        root.remove_unfinished(but=f"{layout.ZARR}/states/c")
    if plan["resumed"]:
        _remove_strays(root, [*groups, *tables])
    waits = root.get_json(START).get("waits", False)
    checksum = checksum_of_runs(digest for _, digest in sorted(outcome.digests))
    complete_store(root, with_cards(manifest, outcome.devices), checksum, groups, tables)
    if waits:  # the launcher, who removes it
        repeated = sum(int(table.stats.get(REPEATED_IDS, 0)) for table in tables)
        everything = outcome.everything + Counter(
            {REPEATED_IDS: repeated, "skipped": int(plan.get("skipped", 0))}
        )
        root.put_json(
            SUMMARY,
            {"bytes": outcome.n_bytes, "everything": everything, "this_run": outcome.this_run},
        )
    _end_run(root, waits)
    return [True]


def with_cards(manifest: Manifest, devices: Collection[str]) -> Manifest:
    """``manifest`` with the cards that its shards' markers name: cards and lanes show in the last bits."""
    gpus = sorted({device.partition(" ")[2] for device in devices} - {""})
    return replace(manifest, job={**manifest.job, "gpu": "; ".join(gpus)}) if gpus else manifest


def _end_run(root: Root, waits: bool = False) -> None:
    """Remove the scratch area, then the run's right to write: a late copy of any stage finds none.

    ``waits``: but for what the launcher has yet to tell, which removes that.
    """
    if waits:
        root.remove(
            *[
                rel
                for rel in root.list(layout.WORK)
                if rel != SUMMARY and not rel.startswith(f"{layout.ENDED}/")
            ]
        )
    else:
        root.remove_tree(layout.WORK)
    if (run := run_of(root)) is not None:
        run.release()


def _remove_strays(root: Root, markers: Sequence[PartGroupMarker | IdsMarker]) -> None:
    """Remove what an earlier plan of this job left beside its parts and id tables: the input may have changed since."""
    known = set(map(path_of, markers)) | {
        record.path for marker in markers for record in marker.objects
    }
    folders = (
        layout.SENTENCES,
        layout.SENTENCE_IDS,
        layout.SENTENCE_TEXTS,
        layout.REJECTS,
        layout.PART_GROUPS,
        layout.IDS,
    )
    found = [
        rel for folder in (*folders, f"{layout.ZARR}/sentence_start/c") for rel in root.list(folder)
    ]
    root.remove(*[rel for rel in found if layout.is_ours(rel) and rel not in known])


def _markers(root: Root, kind: type[M], n: int) -> list[M]:
    """The markers 0 … ``n``, which workers have just seen."""
    with ThreadPoolExecutor(IO_THREADS) as pool:
        markers = [
            marker
            for marker in pool.map(lambda number: read_marker(root, kind, number), range(n))
            if marker is not None
        ]
    if len(markers) < n:
        stop(
            root,
            [
                "markers of parts or ids have gone while they were counted: run the same command again"
            ],
        )
    return markers
