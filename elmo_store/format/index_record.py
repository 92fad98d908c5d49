"""Indexes beside a store: complete or absent.

The files of an index are written one by one; the record that names each with its size and CRC-32C is put last, in one put.
Without its record an index is absent, whatever lies in its folder, and the next one that is made sweeps that away.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import converted
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.root import Root


@dataclass(frozen=True)
class IndexRecord:
    """An index that is complete.

    Attributes:
        facts: what it says of itself.
        objects: its files, by path in the store.
    """

    facts: Mapping[str, Any]
    objects: Mapping[str, ObjectRecord]


def record_of(folder: str) -> str:
    """The record's path in the store."""
    return f"{folder}/facts.json"


def withdraw(root: Root, folder: str) -> None:
    """Make the index of ``folder`` absent, and remove all that it, or one that was not finished, left there."""
    root.remove(record_of(folder))
    root.remove(*[rel for rel in root.list(folder) if layout.is_ours(rel)])
    root.sweep(folder)


def publish(holder: LeaseHolder, folder: str, facts: Mapping[str, Any], objects: Iterable[ObjectRecord]) -> None:
    """Put the record, by which the index is complete. LeaseLostError if another command has taken the store meanwhile."""
    holder.check()
    holder.root.put_json(record_of(folder), {**facts, "objects": [vars(record) for record in objects]})


def read_record(root: Root, folder: str, identity: str, remedy: str) -> IndexRecord | None:
    """The index of ``folder``, None where there is none.

    ``identity``: of the store, as the facts have it; ``remedy``: the command that makes the index again. StoreError for a record
    that is none, or another store's.
    """
    rel = record_of(folder)
    try:
        value = root.get_json(rel)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(root, rel, f"is no JSON ({error})", remedy) from error
    try:
        objects = [converted(record, ObjectRecord) for record in value["objects"]]
        store = value["store"]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(root, rel, f"is not a record of an index ({error!r})", remedy) from error
    if store != identity:
        raise StoreError(f"{root.url(folder)} is the index of another store: run `{remedy}` again")
    if outside := [record.path for record in objects if not record.path.startswith(f"{folder}/")]:
        raise damaged(root, rel, f"names {outside[0]!r}, which is not in its folder", remedy)
    return IndexRecord(value, {record.path: record for record in objects})


def damaged(root: Root, rel: str, problem: str, remedy: str) -> StoreError:
    """The error of an index that can't be used."""
    return StoreError(f"{root.url(rel)} {problem}: run `{remedy}` again")
