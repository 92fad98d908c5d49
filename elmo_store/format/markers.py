"""Markers: the only proof that objects of a store are written.

A marker is put after the objects that it names, each with its size and CRC-32C. Presence of data proves nothing. There is one
for each shard, one for each stretch of parts (a run of parts that one worker numbered), and one for each run of id tables. What
differs from run to run by nature (times, the worker, stamps) stands in ``stats``, apart from what two runs have in common; a
hash at the marker's end covers both.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.format.typed import Count, Crc32c, converted
from elmo_store.storage.data import Data, crc32c_digits, size_of
from elmo_store.storage.filesystems import is_inside
from elmo_store.storage.json_values import MOST_JSON_BYTES, parse_json
from elmo_store.storage.root import Root

CHECKSUM_RUN = 1024  # markers whose objects are hashed together, so that many workers can hash them
Stats = Mapping[str, float | int | str]
REPEATED_IDS = "repeated_ids"  # of an `IdsMarker`'s stats: sentences whose id an earlier one has
STAMPS = "stamps"  # of a marker's stats: the stamps of its objects when they were put, one a line


@dataclass(frozen=True)
class ObjectRecord:
    """One object: its path relative to the store, its size in bytes, its CRC-32C as 8 hexadecimal digits."""

    path: Annotated[str, Meta(pattern="^[^/].*[^/]$|^[^/]$")]
    bytes: Count
    crc32c: Crc32c

    def __post_init__(self) -> None:
        if not is_inside(self.path):
            raise ValueError(f"{self.path!r} is not a path inside the store")

    @classmethod
    def of(cls, path: str, data: Data) -> "ObjectRecord":
        """The record of an object whose bytes are ``data``."""
        return cls(path, size_of(data), crc32c_digits(data))


@dataclass(frozen=True)
class ShardMarker:
    """Shard ``shard`` holds ``n_rows`` rows from ``first_row`` in ``objects``.

    ``plan`` names what its writer had planned; ``stats`` are of its run alone, for progress, summary and finishing.
    """

    at: ClassVar[Callable[[int], str]] = layout.shard_marker

    shard: Count
    first_row: Count
    n_rows: Count
    objects: tuple[ObjectRecord, ...]
    plan: str = ""
    stats: Stats = field(default_factory=dict)


@dataclass(frozen=True)
class PartRange:
    """What a part holds: sentences from ``first_sentence`` on and their rows from ``first_row`` on."""

    part: Count
    first_sentence: Count
    n_sentences: Count
    first_row: Count
    n_rows: Count


@dataclass(frozen=True)
class PartGroupMarker:
    """Consecutive parts are written: their files, and the chunks of ``sentence_start`` that begin among their sentences."""

    at: ClassVar[Callable[[int], str]] = layout.part_group_marker

    stretch: Count
    parts: tuple[PartRange, ...]
    objects: tuple[ObjectRecord, ...]
    plan: str = ""
    stats: Stats = field(default_factory=dict)


@dataclass(frozen=True)
class IdsMarker:
    """Id tables ``first_table … first_table + n_tables`` are written."""

    at: ClassVar[Callable[[int], str]] = layout.ids_marker

    number: Count
    first_table: Count
    n_tables: Count
    objects: tuple[ObjectRecord, ...]
    plan: str = ""
    stats: Stats = field(default_factory=dict)


AnyMarker = ShardMarker | PartGroupMarker | IdsMarker
M = TypeVar("M", bound=AnyMarker)


def path_of(marker: AnyMarker) -> str:
    """Where a marker stands, by its number, which is its first field."""
    return type(marker).at(getattr(marker, fields(marker)[0].name))


def write_marker(root: Root, marker: M, *, create: bool = False) -> M:
    """Put a marker, the last thing that is written of what it names, and return it. ``create``: as of `put_objects`."""
    put = root.create if create else root.put
    put(path_of(marker), sealed(asdict(marker)))
    return marker


def sealed(value: Mapping[str, Any], indent: int | None = 2) -> bytes:
    """A marker's JSON object as it is stored: as text in UTF-8, with the SHA-256 of all bytes before it as its last member.

    ``indent``: None for one line, which is read in half the time.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
    )
    head = text.removesuffix("}").removesuffix("\n").encode()
    return head + _seal(head)


def is_sealed(data: bytes) -> bool:
    """Whether bytes are as `sealed` left them."""
    n = len(_seal(b""))
    return data[-n:] == _seal(data[:-n])


def _seal(head: bytes) -> bytes:
    return f',\n  "sha256": "{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()


def read_marker(root: Root, kind: type[M], number: int) -> M | None:
    """The ``number``-th marker of a kind, None without one. ShardCorruptError if it can't be read or is another's."""
    rel = kind.at(number)
    try:
        data = root.get(rel, MOST_JSON_BYTES)
        value = parse_json(data)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ShardCorruptError(
            f"{root.url(rel)} is not JSON ({error}): remove it and run the job again"
        ) from error
    try:
        if not is_sealed(data):
            raise ValueError("its sha256 is that of other bytes")
        marker = converted(value, kind)
    except ValueError as error:
        raise ShardCorruptError(
            f"{root.url(rel)} is not a marker ({error}): remove it and run the job again"
        ) from error
    if path_of(marker) != rel:
        raise ShardCorruptError(
            f"{root.url(rel)} is a copy of {path_of(marker)}: remove it and run the job again"
        )
    return marker


def marked(root: Root, folder: str) -> list[int]:
    """Numbers of the markers in ``folder`` (`layout.SHARDS`, …), from one listing, sorted; they are not read."""
    names = (
        rel.rpartition("/")[2].removesuffix(".json")
        for rel in root.list(folder)
        if rel.endswith(".json")
    )
    return sorted(int(name) for name in names if name.isdecimal())


def object_fault(
    root: Root, record: ObjectRecord, size: int | None, *, quick: bool = False
) -> str | None:
    """What is wrong with an object whose size was found to be ``size`` (None: it is missing); None if nothing is.

    ``quick``: its bytes are not read.
    """
    if size is None:
        return f"{root.url(record.path)} is missing"
    if size != record.bytes:
        return f"{root.url(record.path)} has {size} bytes, its marker says {record.bytes}"
    if not quick and (actual := root.crc32c(record.path)) != record.crc32c:
        return f"{root.url(record.path)} has CRC-32C {actual}, its marker says {record.crc32c}"
    return None


def put_objects(
    root: Root, objects: Iterable[tuple[str, Data]], *, create: bool = False
) -> tuple[tuple[ObjectRecord, ...], dict[str, str]]:
    """Put objects, path and bytes each; their records, and their stamps as a marker's stats have them.

    ``create``: objects are created as `Root.create` does, and never written over.
    """
    put = root.create if create else root.put
    records, stamps = [], []
    for path, data in objects:
        stamps.append(put(path, data) or root.stamp(path) or "")
        records.append(ObjectRecord.of(path, data))
    return tuple(records), {STAMPS: "\n".join(stamps)}


def stamped_objects(marker: AnyMarker) -> list[tuple[ObjectRecord, str]]:
    """The objects of a marker, each with its stamp when it was put ("": not known)."""
    stamps = str(marker.stats.get(STAMPS, "")).split("\n") + [""] * len(marker.objects)
    return list(zip(marker.objects, stamps, strict=False))


def finished(root: Root, kind: type[M], number: int) -> M | None:
    """Return the ``number``-th marker of a kind if every object is as it says; None if the work has to be done again."""
    try:
        marker = read_marker(root, kind, number)
        if marker is None:
            return None
        faults = (stamped_fault(root, record, stamp) for record, stamp in stamped_objects(marker))
        return None if any(faults) else marker
    except (FileNotFoundError, ShardCorruptError):
        return None


def stamped_fault(root: Root, record: ObjectRecord, stamp: str) -> str | None:
    """What is wrong with an object that was put with ``stamp``; its bytes are read where it has another one, or "" is given."""
    if stamp and root.stamp(record.path) == stamp:
        return None
    return object_fault(root, record, root.size(record.path))


def checksum(markers: Iterable[AnyMarker]) -> str:
    """SHA-256 over all that ``markers`` name, in their order, 64 digits: over the digests of runs of `CHECKSUM_RUN` of them."""
    every = iter(markers)
    runs = iter(lambda: list(islice(every, CHECKSUM_RUN)), [])
    return checksum_of_runs(map(run_digest, runs))


def run_digest(markers: Iterable[AnyMarker]) -> str:
    """SHA-256 over the objects that one run of markers names, in their order: of the lines ``path TAB crc32c LF``."""
    digest = hashlib.sha256()
    for marker in markers:
        for record in marker.objects:
            digest.update(f"{record.path}\t{record.crc32c}\n".encode())
    return digest.hexdigest()


def checksum_of_runs(digests: Iterable[str]) -> str:
    """SHA-256 over the digests of the runs, in order: of the lines ``digest LF``."""
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
