"""Is a store what it says? Reads every object, in parallel and in bounded memory, and reports every fault that it finds.

Each object is compared with the size and CRC-32C that a marker or the manifest gives; markers with the manifest's checksums. A
quick look reads markers and the few small objects that the manifest names, and compares what one listing says of all others. A
stamp is that of an object, not of its bytes: an object with another stamp than its marker gives is read.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from elmo_store.errors import ShardCorruptError, ShardMissingError, StoreError
from elmo_store.format import layout
from elmo_store.format.markers import (
    AnyMarker,
    IdsMarker,
    M,
    ObjectRecord,
    PartGroupMarker,
    ShardMarker,
    checksum,
    marked,
    object_fault,
    path_of,
    read_marker,
    stamped_objects,
)
from elmo_store.reading.store import StoreReader
from elmo_store.reading.view import View
from elmo_store.storage.data import comparable, is_of_parts

FAULTS_SHOWN = 10
FAULTS_AT_MOST = 1000  # of a kind: a manifest may speak of any number of objects
THREADS = 8


@dataclass(frozen=True)
class Fault:
    """Something that is not as it must be. ``missing``: an object is not there."""

    text: str
    missing: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """What was read, and what was found wrong."""

    shards: int
    objects: int  # whose bytes were read and compared, or, by a quick look, what the listing says of them
    bytes: int  # of these objects
    sentences: int
    read: int  # of the objects, those whose bytes were read
    by_size: int  # of the objects of a quick look, those of which only the size could be compared
    faults: tuple[Fault, ...]  # in no particular order; empty for a sound store

    def raise_faults(self, where: str) -> None:
        """ShardMissingError if an object is not there, otherwise ShardCorruptError for any other fault, naming up to ten."""
        if not self.faults:
            return
        missing = [fault for fault in self.faults if fault.missing]
        shown = (missing or list(self.faults))[:FAULTS_SHOWN]
        more = (
            f"\n… and {len(self.faults) - len(shown)} more" if len(self.faults) > len(shown) else ""
        )
        text = "\n".join(fault.text for fault in shown)
        error = ShardMissingError if missing else ShardCorruptError
        raise error(
            f"{where}: {len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}\n{text}{more}"
        )


def verify(
    view: View, *, quick: bool = False, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Check all of a complete store, or of each member of a collection.

    Args:
        view: what was opened.
        quick: read markers and what the manifest names (metadata, start state, inputs, table of parts), and compare the size
            and the stamp (the ETag; on a disk the time of the last change) of every other object with those of one listing.
            An object with another stamp is read; but where the stamps of all objects differ, as in a copy of a store, only
            sizes are compared. On S3, objects that were put in parts are looked at apart from the others, since copies keep
            the ETags of the others only. Bytes that changed under the same size and stamp are not seen.
        progress: called now and then with the bytes read since it was called last; from several threads.

    StoreReplacedError if another store takes this one's place meanwhile.
    """
    if not view.manifest.complete:
        raise StoreError(
            f"{view.url} is not complete: run its job again to continue it, then verify it"
        )
    unopened: list[StoreError] = []
    members = view.opened_stores(unopened)
    reports = [
        _Check(member.store, progress or (lambda _: None), quick).run()
        for member in {member.store.url: member for member in members}.values()
    ]
    summed = ("shards", "objects", "bytes", "sentences", "read", "by_size")
    sums = {name: sum(getattr(report, name) for report in reports) for name in summed}
    faults = [Fault(str(error), isinstance(error, ShardMissingError)) for error in unopened]
    faults += [fault for report in reports for fault in report.faults]
    return VerifyReport(**sums, faults=tuple(faults))


class _Check:
    """One verification: the markers, then every object that they name."""

    def __init__(self, store: StoreReader, progress: Callable[[int], None], quick: bool) -> None:
        self._root, self._manifest, self._progress = store.root, store.manifest, progress
        self._quick = quick
        self._listed = store.root.listed()
        self._faults: list[Fault] = []
        self._objects = self._bytes = self._read = self._by_size = 0

    def run(self) -> VerifyReport:
        m = self._manifest
        with ThreadPoolExecutor(THREADS) as pool:
            self._compare(pool, m.objects, read=True)
            shards = self._markers(pool, ShardMarker, self._shards_to_read())
            groups = self._markers(pool, PartGroupMarker, marked(self._root, layout.PART_GROUPS))
            tables = self._markers(pool, IdsMarker, marked(self._root, layout.IDS))
            named: list[AnyMarker] = [*shards, *groups, *tables]
            records = [record for marker in named for record in marker.objects]
            if self._quick:
                stamped = [each for marker in named for each in stamped_objects(marker)]
                unlike = self._with_another_stamp(stamped)
                alike = [record for record in records if record.path not in unlike]
                self._compare(pool, alike, read=False)
                self._compare(pool, unlike.values(), read=True)
            else:
                self._compare(pool, records, read=True)
        self._check_counts(groups)
        for name, markers in (("shards", shards), ("parts", groups), ("ids", tables)):
            wanted, actual = getattr(m.checksums, name), checksum(markers)
            if actual != wanted:
                self._wrong(
                    layout.MANIFEST,
                    f"gives the checksum {wanted} for its {name}, their markers give {actual}",
                )
        self._check_strays(
            {record.path for record in (*records, *m.objects)} | set(map(path_of, named))
        )
        self._root.confirm(now=True)  # otherwise these are faults of two stores
        return VerifyReport(
            shards=m.sizes.shards,
            objects=self._objects,
            bytes=self._bytes,
            sentences=m.sizes.sentences,
            read=self._read,
            by_size=self._by_size,
            faults=tuple(self._faults),
        )

    def _wrong(self, rel: str, problem: str, *, missing: bool = False) -> None:
        self._faults.append(Fault(f"{self._root.url(rel)} {problem}", missing))

    def _shards_to_read(self) -> list[int]:
        """Shards with a marker, and the first few that have none: a manifest may speak of any number of shards."""
        n = self._manifest.sizes.shards
        written = {shard for shard in marked(self._root, layout.SHARDS) if shard < n}
        without = n - len(written)
        if without > FAULTS_AT_MOST:
            self._wrong(
                layout.SHARDS,
                f"has {len(written):,} markers, the manifest says {n:,} shards",
                missing=True,
            )
            without = FAULTS_SHOWN
        return sorted(
            [*written, *islice((shard for shard in range(n) if shard not in written), without)]
        )

    def _markers(self, pool: Any, kind: type[M], numbers: Iterable[int]) -> list[M]:
        """The markers of these numbers that can be read; a fault for each of the others."""

        def marker_or_fault(number: int) -> M | Fault:
            try:
                marker = read_marker(self._root, kind, number)
            except StoreError as error:
                return Fault(str(error))
            return marker or Fault(f"{self._root.url(kind.at(number))} is missing", missing=True)

        results = list(pool.map(marker_or_fault, numbers))
        self._faults += [result for result in results if isinstance(result, Fault)]
        return [result for result in results if not isinstance(result, Fault)]

    def _compare(self, pool: Any, objects: Iterable[ObjectRecord], *, read: bool) -> None:
        """Compare the size of every object, and with ``read`` its CRC-32C."""

        def fault_of(record: ObjectRecord) -> Fault | None:
            size = self._listed[record.path].size if record.path in self._listed else None
            try:
                text = object_fault(self._root, record, size, quick=not read)
            except (OSError, StoreError) as error:
                text = f"{record.path} can't be read ({type(error).__name__}: {error})"
            self._progress(record.bytes)
            return Fault(text, size is None) if text else None

        records = list(objects)
        self._faults += [fault for fault in pool.map(fault_of, records) if fault]
        self._objects += len(records)
        self._bytes += sum(record.bytes for record in records)
        self._read += len(records) if read else 0

    def _with_another_stamp(
        self, stamped: Sequence[tuple[ObjectRecord, str]]
    ) -> dict[str, ObjectRecord]:
        """Return the objects, by path, that were put anew since their marker was, and count those without a usable stamp."""
        unlike: dict[str, ObjectRecord] = {}
        for of_parts in (False, True):
            some = [(record, stamp) for record, stamp in stamped if is_of_parts(stamp) == of_parts]
            known = [
                (record, stamp, self._listed[record.path].stamp)
                for record, stamp in some
                if stamp and record.path in self._listed and self._listed[record.path].stamp
            ]
            changed = {
                record.path: record
                for record, put, now in known
                if comparable(put) != comparable(now)
            }
            if len(changed) == len(known):  # a copy: the stamps are those of other objects
                self._by_size += len(some)
            else:
                self._by_size += len(some) - len(known)
                unlike |= changed
        return unlike

    def _check_counts(self, groups: Sequence[PartGroupMarker]) -> None:
        parts = [part for marker in groups for part in marker.parts]
        found = (
            len(parts),
            sum(part.n_sentences for part in parts),
            sum(part.n_rows for part in parts),
        )
        wanted = (
            self._manifest.sizes.parts,
            self._manifest.sizes.sentences,
            self._manifest.sizes.rows,
        )
        if found != wanted:
            self._wrong(
                layout.PART_GROUPS,
                f"names {found} parts, sentences and rows, the manifest {wanted}",
                missing=True,
            )

    def _check_strays(self, known: set[str]) -> None:
        """Objects where only named ones may stand, such as those of a lost marker. What stands elsewhere is not ours."""
        rooms = tuple(f"{room}/" for room in layout.FOLDERS if room != layout.WORK)
        for rel in self._listed:
            if rel not in known and rel.startswith(rooms):
                self._wrong(rel, "is among the store's objects, and no marker names it")
