"""Which shards of a store are done: what earlier runs left, and whether all are there at the end. By many workers.

Nobody reads all markers alone: a look at what earlier runs wrote and the last look at everything are both tasks of a few
hundred shards.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.errors import ShardCorruptError
from elmo_store.format.layout import IDS, SHARDS, STRETCHES, zarr_states_shard
from elmo_store.format.markers import (
    CHECKSUM_RUN,
    IdsMarker,
    ShardMarker,
    StretchMarker,
    Verify,
    checksum_of_runs,
    marker_fault,
    read_ids_marker,
    read_marker,
    read_stretch_marker,
    run_digest,
    stamped_fault,
    stamped_objects,
    total_bytes,
)
from elmo_store.storage.root import TEMPORARY_PREFIX, Root
from transforms.runtime.job_root import RETRIES
from transforms.runtime.progress_files import ShardProgress
from transforms.runtime.results import Outcome
from transforms.runtime.work import PLAN, START
from transforms.stages.plan import ShardTask, grouped

IO_THREADS = 16
SHOWN = 10  # missing shards that are named
ID_RUNS_OF_TASK = 16  # runs of id tables that one task looks at


class FindDone(beam.PTransform[PCollection[list[ShardTask]], PCollection[list[ShardTask]]]):
    """Lists of shard tasks → what is left of them, after those that an earlier run did. For jobs that are resumed."""

    def __init__(self, root: Root, most_shards_per_task: int) -> None:
        super().__init__()
        self._arguments = (root, most_shards_per_task)

    def expand(self, tasks: PCollection[list[ShardTask]]) -> PCollection[list[ShardTask]]:
        """Wire `left_to_do`."""
        return tasks | "Spread checks" >> beam.Reshuffle() | "Check" >> beam.FlatMap(left_to_do, *self._arguments)


def left_to_do(tasks: Sequence[ShardTask], root: Root, most_shards_per_task: int) -> Iterator[list[ShardTask]]:
    """Those of ``tasks`` without a valid marker of this very plan, in lists. Nothing is removed: a later look may be a late one.

    On a local disk every byte is hashed; elsewhere an object whose stamp is that of the put is not read.
    """
    plan = str(root.get_json(PLAN)["id"])
    done = done_shards(root, plan, [task.shard for task in tasks], "sha256" if root.is_local else "stamp")
    progress = ShardProgress(root)
    progress.found(sorted(done))
    progress.last()
    yield from grouped((task for task in tasks if task.shard not in done), most_shards_per_task)


def done_shards(root: Root, plan: str, shards: Sequence[int], verify: Verify) -> dict[int, ShardMarker]:
    """Markers of those of ``shards`` that this very plan wrote and that are as their markers say.

    ``plan``: the id of the plan; a shard of another plan counts as not done. A marker or an object that is missing, cut or
    changed means "do it again", never an error. ``verify``: as in ``elmo_store.format.markers``; "none" looks at no object.
    """

    def check(shard: int) -> ShardMarker | None:
        try:
            marker = read_marker(root, shard)
        except ShardCorruptError:
            return None
        if marker is None or marker.plan != plan:
            return None
        return None if marker_fault(root, marker, verify) else marker

    with ThreadPoolExecutor(IO_THREADS) as pool:
        return {shard: marker for shard, marker in zip(shards, pool.map(check, shards), strict=True) if marker}


@dataclass(frozen=True)
class CheckTask:
    """Markers of ``room`` to look at when all work is over; the first task carries what the work came to."""

    first: int
    stop: int
    outcome: Outcome | None = None
    room: str = SHARDS  # or STRETCHES, IDS: folders of `elmo_store.format.layout`


@dataclass(frozen=True)
class Checked:
    """What stands in the store: digests of runs by their first shard, sums over shards' markers, and what is missing."""

    outcome: Outcome = field(default_factory=Outcome)
    digests: tuple[tuple[int, str], ...] = ()
    n_missing: int = 0
    missing: tuple[int, ...] = ()  # a few of them
    faulty: tuple[str, ...] = ()  # stretches of parts and runs of id tables whose objects are not what their markers say: a few
    n_bytes: int = 0
    everything: Counter[str] = field(default_factory=Counter)  # sums of the markers' numbers
    this_run: Counter[str] = field(default_factory=Counter)  # of those that this run wrote
    devices: frozenset[str] = frozenset()  # what computed them, as far as they say

    def __add__(self, other: "Checked") -> "Checked":
        return Checked(
            self.outcome + other.outcome,
            self.digests + other.digests,
            self.n_missing + other.n_missing,
            tuple(sorted(self.missing + other.missing)[:SHOWN]),
            tuple(sorted(self.faulty + other.faulty)[:SHOWN]),
            self.n_bytes + other.n_bytes,
            self.everything + other.everything,
            self.this_run + other.this_run,
            self.devices | other.devices,
        )

    @property
    def checksum(self) -> str:
        """Over all shards, as the manifest has it."""
        return checksum_of_runs(digest for _, digest in sorted(self.digests))


class CheckAll(beam.PTransform[PCollection[Outcome], PCollection[Checked]]):
    """What all work came to → what stands in the store, looked at by many workers."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root

    def expand(self, outcome: PCollection[Outcome]) -> PCollection[Checked]:
        """Wire `check_tasks` and `check`."""
        return (
            outcome
            | "Runs of markers" >> beam.FlatMap(check_tasks, self._root).with_output_types(CheckTask)
            | "Spread runs of markers" >> beam.Reshuffle()
            | "Look" >> beam.Map(check, self._root).with_output_types(Checked)
            | "All looks" >> beam.CombineGlobally(_CombineChecked())
        )


def check_tasks(outcome: Outcome, root: Root) -> Iterator[CheckTask]:
    """The plan's shards in runs, of which there is one at least, which carries ``outcome``; its stretches and id tables."""
    plan = root.get_json(PLAN) if root.exists(PLAN) else {}  # no plan: the store is complete already
    n_shards = int(plan.get("n_shards", 0))
    for first in range(0, max(1, n_shards), CHECKSUM_RUN):
        yield CheckTask(first, min(first + CHECKSUM_RUN, n_shards), outcome if first == 0 else None)
    for room, n, size in ((STRETCHES, plan.get("n_stretches", 0), 1), (IDS, plan.get("n_id_runs", 0), ID_RUNS_OF_TASK)):
        for first in range(0, n, size):
            yield CheckTask(first, min(first + size, n), room=room)


def check(task: CheckTask, root: Root) -> Checked:
    """Read a run of markers, and look whether their objects are still those that their writers put."""
    if task.room != SHARDS:
        numbers = range(task.first, task.stop)
        return Checked(faulty=tuple(f"{task.room}/{n:05d}" for n in numbers if not _is_sound(root, task.room, n))[:SHOWN])
    found = Checked(task.outcome or Outcome())
    if task.first == task.stop:
        return found
    plan, began = str(root.get_json(PLAN)["id"]), float(root.get_json(START)["started"])
    shards = range(task.first, task.stop)
    # What stands there must be what the marker's writer put: a late worker of another run may have come after it.
    done = done_shards(root, plan, shards, "stamp")
    missing = [shard for shard in shards if shard not in done]
    if root.is_local:
        for shard in shards:
            remove_half_written(os.path.dirname(root.path(zarr_states_shard(shard))))
    return found + Checked(
        digests=((task.first, run_digest(done.values())),),
        n_missing=len(missing),
        missing=tuple(missing[:SHOWN]),
        n_bytes=total_bytes(list(done.values())),
        everything=_sums(done.values()),
        this_run=_sums(marker for marker in done.values() if float(marker.stats.get("finished", 0)) >= began),
        devices=frozenset(str(marker.stats["device"]) for marker in done.values() if "device" in marker.stats),
        outcome=Outcome(n_retries=RETRIES.taken()),
    )


def _is_sound(root: Root, room: str, number: int) -> bool:
    """Whether a stretch of parts or a run of id tables is as its marker says; the marker of one that is not is removed."""
    marker: StretchMarker | IdsMarker | None
    marker = read_stretch_marker(root, number) if room == STRETCHES else read_ids_marker(root, number)
    if marker is None:
        return False
    with ThreadPoolExecutor(IO_THREADS) as pool:
        sound = not any(pool.map(lambda one: stamped_fault(root, one[0], one[1], "stamp"), stamped_objects(marker)))
    if not sound:
        root.remove(marker.path)  # the next run looks at sizes only
    return sound


def remove_half_written(folder: str, *, but: str = "") -> None:
    """Remove the temporary files that killed writers left in ``folder`` of this machine and below it, ``but`` for one folder."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path != but:
                    remove_half_written(entry.path, but=but)
            elif entry.name.startswith(TEMPORARY_PREFIX):
                with suppress(FileNotFoundError):
                    os.remove(entry.path)


def _sums(markers: Iterable[ShardMarker]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for marker in markers:
        sums.update({name: value for name, value in marker.stats.items() if isinstance(value, int | float)})
    return sums


class _CombineChecked(beam.CombineFn):
    def create_accumulator(self) -> Checked:
        """Nothing yet."""
        return Checked()

    def add_input(self, mutable_accumulator: Checked, element: Checked) -> Checked:
        """One more."""
        return mutable_accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Checked]) -> Checked:
        """Sum of sums."""
        return sum(accumulators, Checked())

    def extract_output(self, accumulator: Checked) -> Checked:
        """The sum."""
        return accumulator
