"""A marker a shard: the only proof that the shard is written. Imports storage, layout and errors.

A marker is put after all objects of its shard, and names each with its size and SHA-256. Presence of data proves nothing.
"""

import builtins
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from elmo_store.errors import ShardCorruptError
from elmo_store.layout import SHARDS, shard_marker
from elmo_store.storage import Root

Verify = Literal["none", "size", "sha256"]


@dataclass(frozen=True)
class ObjectRecord:
    """One object of a shard: its path relative to the store, its size in bytes, its SHA-256 as 64 hexadecimal digits."""

    path: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: str, data: builtins.bytes | bytearray) -> "ObjectRecord":
        """The record of an object whose bytes are ``data``."""
        return cls(path, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class ShardMarker:
    """Shard ``shard`` holds ``n_rows`` rows from ``first_row`` in ``objects``; ``stats`` are numbers for progress and summary."""

    shard: int
    first_row: int
    n_rows: int
    objects: tuple[ObjectRecord, ...]
    stats: Mapping[str, float | int | str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The marker's JSON object."""
        return {
            "shard": self.shard,
            "first_row": self.first_row,
            "n_rows": self.n_rows,
            "objects": [{"path": o.path, "bytes": o.bytes, "sha256": o.sha256} for o in self.objects],
            "stats": dict(self.stats),
        }

    @classmethod
    def parse(cls, value: Any, where: str) -> "ShardMarker":
        """The marker of a JSON object. ShardCorruptError, naming ``where``, if it is not one."""
        try:
            objects = tuple(ObjectRecord(_text(o["path"]), _count(o["bytes"]), _text(o["sha256"])) for o in value["objects"])
            stats = {_text(name): number for name, number in value["stats"].items()}
            return cls(_count(value["shard"]), _count(value["first_row"]), _count(value["n_rows"]), objects, stats)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ShardCorruptError(f"{where} is not a marker of a shard ({error!r}): remove it and run the job again") from error


def write_marker(root: Root, marker: ShardMarker) -> None:
    """Put the marker: the last thing that is written of a shard."""
    root.put_json(shard_marker(marker.shard), marker.to_json())


def read_marker(root: Root, shard: int) -> ShardMarker | None:
    """The marker of shard ``shard``, None without one. ShardCorruptError if it can't be read or speaks of another shard."""
    rel = shard_marker(shard)
    try:
        value = root.get_json(rel)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ShardCorruptError(f"{root.url(rel)} is not JSON ({error}): remove it and run the job again") from error
    marker = ShardMarker.parse(value, root.url(rel))
    if marker.shard != shard:
        raise ShardCorruptError(f"{root.url(rel)} speaks of shard {marker.shard}: remove it and run the job again")
    return marker


def marked_shards(root: Root) -> list[int]:
    """Numbers of the shards that have a marker, from one listing, sorted; the markers are not read."""
    names = (rel.rpartition("/")[2].removesuffix(".json") for rel in root.list(SHARDS) if rel.endswith(".json"))
    return sorted(int(name) for name in names if name.isdecimal())


def object_fault(root: Root, record: ObjectRecord, verify: Verify, size: int | None) -> str | None:
    """What is wrong with an object whose size was found to be ``size`` (None: it is not there); None if nothing is."""
    if verify == "none":
        return None
    if size is None:
        return f"{root.url(record.path)} is missing"
    if size != record.bytes:
        return f"{root.url(record.path)} has {size} bytes, its marker says {record.bytes}"
    if verify == "sha256":
        found = hashlib.sha256(root.get(record.path)).hexdigest()
        if found != record.sha256:
            return f"{root.url(record.path)} has SHA-256 {found}, its marker says {record.sha256}"
    return None


def valid_markers(root: Root, n_shards: int, verify: Verify = "size") -> dict[int, ShardMarker]:
    """Markers of shards ``0 … n_shards`` whose objects are as they say; the others' work is to be done again.

    ``verify``: "none" trusts the markers, "size" compares sizes (one listing of the store), "sha256" reads every object.
    """
    sizes = root.sizes() if verify != "none" else {}
    valid: dict[int, ShardMarker] = {}
    for shard in marked_shards(root):
        if shard >= n_shards:
            continue
        try:
            marker = read_marker(root, shard)
        except ShardCorruptError:
            continue
        if marker and not any(object_fault(root, o, verify, sizes.get(o.path)) for o in marker.objects):
            valid[shard] = marker
    return valid


def total_bytes(markers: Sequence[ShardMarker]) -> int:
    """Bytes of all objects of the shards."""
    return sum(record.bytes for marker in markers for record in marker.objects)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value
