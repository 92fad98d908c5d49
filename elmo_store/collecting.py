"""What makes versions of a collection: collecting stores, adding one that a job wrote, removing sentences, compacting.

Everything is put before the version that names it, and the version on the condition that there is none of its number; so
whenever a process ends, the newest version is whole, and the same call does what is left.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from elmo_store.errors import ManifestError, StoreError, StoreNotFoundError
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.version import Change, Member, Version
from elmo_store.reading import text_index
from elmo_store.reading.store import StoreReader
from elmo_store.reading.watched import StoreRoot
from elmo_store.storage.filesystems import kind_of
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart
from elmo_store.storage.root import Root

# What a member is without, of a store that is collected: of its last run, private to its folder, or about it.
_LEFT_OUT = (f"{layout.WORK}/", f"{layout.VECTOR_INDEX}/", "report.html", layout.MANIFEST)


def collect(
    url: str | os.PathLike[str], stores: Sequence[StoreReader], *, storage_options: Mapping[str, Any] | None = None
) -> Version:
    """Add complete stores to the collection at ``url``, which is made if there is none; returns the version that has them.

    The stores stay as they are: their objects become those of members by hard links on one local disk, otherwise by copies. A
    store that the newest version has already is left out.

    Raises:
        MemberMismatchError: a store differs from the others in what members must have in common; nothing is written.
        StoreError: a store that is not complete, or is a collection; something else stands at ``url``.
        OverlapError: a store lies in the collection, or the reverse.
    """
    root = Root(url, storage_options)
    before = check_collection(root)
    like = before.store if before else stores[0].manifest
    for store in stores:
        if not store.manifest.complete or len(store.held()) != 1 or store.held()[0].store is not store:
            raise StoreError(f"{store.url} is not a complete store: collect stores that are complete, one by one")
        check_apart(
            Location("collection", str(root), storage_options), [Location("store", store.url, store.root.storage_options)]
        )
        versions.check_agrees(str(root), like, store.url, store.manifest)
    names = [name_of(store.manifest.to_json()["sha256"]) for store in stores]
    for store, name in zip(stores, names, strict=True):
        _copy(store, Root(root.url(layout.member(name)), storage_options))
    return add(root, "collect", list(dict.fromkeys(names)))


def check_collection(root: Root) -> Version | None:
    """The newest version of the collection at ``root``; None if nothing stands there, or the beginnings of one. StoreError."""
    newest = versions.newest(root)
    if newest is None:
        strange = [name for name in root.names("") if name not in (layout.MEMBERS, layout.VERSIONS)]
        if strange:
            raise StoreError(f"{root} holds {strange[0]}, and is no collection: give another folder; nothing was touched")
    return newest


def name_of(*what: str) -> str:
    """A member's name, of what it is made of."""
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:32]


def add(root: Root, change: Change, names: Sequence[str]) -> Version:
    """Put a version with these members too, complete stores that lie there, each with its index by text.

    MemberMismatchError, if the newest version has come about since they were begun, and they differ.
    """
    manifests = {name: _indexed(Root(root.url(layout.member(name)), root.storage_options)) for name in names}

    def with_members(newest: Version | None) -> Version | None:
        like = newest.store if newest else next(iter(manifests.values()))
        members = list(newest.members) if newest else []
        counts = newest.store.sizes if newest else None
        for name, manifest in manifests.items():
            if name in [member.name for member in members]:
                continue
            versions.check_agrees(str(root), like, root.url(layout.member(name)), manifest)
            members.append(Member.of(name, manifest, like))
            counts = manifest.sizes if counts is None else versions.added(counts, manifest.sizes)
        if counts is None or (newest and len(members) == len(newest.members)):
            return None
        return versions.made(newest.number + 1 if newest else 1, change, like, members, counts)

    version = versions.publish(root, with_members)
    if version is None:
        raise StoreError(f"{root}: no store was given")
    return version


def _indexed(root: Root) -> Manifest:
    """The manifest of a member that is complete, once it has its index by text."""
    manifest = read_manifest(root)
    store = StoreReader(StoreRoot(root, manifest), manifest, manifest.forms[0])
    if not manifest.complete:
        raise StoreError(f"{root} is not complete: the command that writes it continues it")
    text_index.ensure(store.root, manifest, store._now.sentences)
    root.flush()
    return manifest


def _copy(store: StoreReader, target: Root) -> None:
    """Make ``target`` what the store is, the manifest last; what is there already stays."""
    try:
        if read_manifest(target).to_json()["sha256"] == store.manifest.to_json()["sha256"]:
            return
    except (StoreNotFoundError, ManifestError):
        pass
    source, there = store.root, target.sizes()
    for rel, size in source.sizes().items():
        if layout.is_ours(rel) and not rel.startswith(_LEFT_OUT) and there.get(rel) != size:
            _copy_object(source, target, rel)
    source.confirm(now=True)  # the store that was opened
    target.flush()
    target.put(layout.MANIFEST, source.get(layout.MANIFEST))


def _copy_object(source: Root, target: Root, rel: str) -> None:
    if source.is_local:
        target.put_link(rel, source.path(rel))
    elif kind_of(source.filesystem) == kind_of(target.filesystem) and source.storage_options == target.storage_options:
        target.filesystem.cp_file(source.path(rel), target.path(rel))
    else:
        target.put(rel, source.get(rel))
