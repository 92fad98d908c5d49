"""What makes versions of a collection: collecting stores, adding one that a job wrote, removing sentences, compacting.

Each holds the collection's lease while it reads the newest version, decides, and puts its own: changes happen one after the
other. Everything is put before the version that names it; so whenever a process ends, the newest version is whole, and the same
call does what is left.
"""

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from elmo_store.errors import LeaseHeldError, ShardMissingError, StoreError, StoreNotFoundError
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.manifest import Counts, Manifest, read_manifest
from elmo_store.format.version import Change, Member, Removed, Version
from elmo_store.format.words import WordLimit
from elmo_store.forms.shards import shard_objects
from elmo_store.reading.collection import CollectionReader, rejects_in, rejects_of
from elmo_store.reading.rows import Int64
from elmo_store.reading.store import StoreReader
from elmo_store.storage.filesystems import kind_of
from elmo_store.storage.lease import LEASES, WAIT_SECONDS, LeaseHolder
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart
from elmo_store.storage.root import Root
from elmo_store.writer import begun, write_store

COMPACTED = "compacted_from"  # of a job: the member that was rewritten
_log = logging.getLogger(__name__)
_LOOK_SECONDS, _REMOTE_LOOK_SECONDS = (
    0.1,
    2.0,
)  # between looks whether another command still changes the collection
# What a member is without, of a store that is collected: of its last run, private to its folder, or about it.
_LEFT_OUT = (f"{layout.WORK}/", "report.html", layout.MANIFEST)


def collect(
    url: str | os.PathLike[str],
    stores: Sequence[StoreReader],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Version:
    """Add complete stores to the collection at ``url``, which is made if there is none; returns the version that has them.

    The stores stay as they are: their objects become those of members by hard links on one local disk, otherwise by copies. A
    store that was collected before is left out, also if it was changed by `remove` and `compact` since.

    Raises:
        LeaseHeldError: another command changes the collection for too long.
        MemberMismatchError: a store differs from the others in what members must have in common; nothing is written.
        StoreError: a store that is not complete, or is a collection; something else stands at ``url``.
        OverlapError: a store lies in the collection, or the reverse.
    """
    root = Root(url, storage_options)
    newest = check_collection(root)
    like = newest.store if newest else stores[0].manifest
    sources = {}
    for store in stores:
        if (
            not store.manifest.complete
            or len(store.held()) != 1
            or store.held()[0].store is not store
        ):
            raise StoreError(
                f"{store.url} is not a complete store: collect stores that are complete, one by one"
            )
        check_apart(
            Location("collection", str(root), storage_options),
            [Location("store", store.url, store.root.storage_options)],
        )
        versions.check_agrees(str(root), like, store.url, store.manifest)
        checksums = store.manifest.checksums
        assert checksums is not None  # of a complete store
        sources[name_of(checksums.shards, checksums.parts)] = store
    with _changing(root) as holder:
        newest = check_collection(root)
        names = {}
        for source, store in sources.items():
            if newest is None or newest.of_source(source) is None:
                names[source] = name_of(store.manifest.to_json()["sha256"])
                target = member_root(root, names[source])
                _copy(store, target)
                _completed(target)
        return _append(holder, newest, "collect", names)


@contextmanager
def _changing(root: Root) -> Iterator[LeaseHolder]:
    """The collection's lease, once no other command has it. LeaseHeldError if one has it for longer than `WAIT_SECONDS`."""
    deadline, is_said = time.monotonic() + WAIT_SECONDS, False
    while True:
        try:
            holder = LeaseHolder.take(root, uuid.uuid4().hex)
            break
        except LeaseHeldError as error:
            if time.monotonic() > deadline:
                raise
            if not is_said:
                _log.warning(
                    "waiting up to %.0f s: %s belongs to %s", WAIT_SECONDS, root, error.holder
                )
            is_said = True
            time.sleep(_LOOK_SECONDS if root.is_local else _REMOTE_LOOK_SECONDS)
    with holder:
        for folder in (layout.VERSIONS, LEASES):  # of commands that were killed
            root.sweep(folder)
        yield holder


def member_root(root: Root, name: str) -> Root:
    """Where the member ``name`` of the collection at ``root`` is, or will be."""
    return Root(root.url(layout.member(name)), root.storage_options)


def check_collection(root: Root) -> Version | None:
    """The newest version of the collection at ``root``; None if nothing stands there, or the beginnings of one. StoreError."""
    newest = versions.newest(root)
    if newest is None:
        strange = [
            name for name in root.names("") if name not in (layout.MEMBERS, layout.VERSIONS, LEASES)
        ]
        if strange:
            raise StoreError(
                f"{root} holds {strange[0]}, so it is not a collection: give another folder; nothing was touched"
            )
    return newest


def name_of(*what: str) -> str:
    """A member's name, of what it is made of."""
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:32]


def add(root: Root, name: str, source: str) -> Version:
    """Put a version with the store ``members/NAME`` too, which an embed job has completed; ``source``: the job's identity.

    Returns the newest version, which is left as it is if it has the source. LeaseHeldError as `collect`; MemberMismatchError, if
    the collection's first version has come about since the job began, and they differ.
    """
    with _changing(root) as holder:
        newest = check_collection(root)
        known = newest is not None and newest.of_source(source) is not None
        if not known:
            _completed(member_root(root, name))
        return _append(holder, newest, "embed", {} if known else {source: name})


def discard(root: Root, name: str) -> None:
    """Remove the store ``members/NAME``, unless the newest version has it. LeaseHeldError as `collect`."""
    with _changing(root) as holder:
        newest = check_collection(root)
        if newest is None or all(member.name != name for member in newest.members):
            _remove_store(holder, name)


def _append(
    holder: LeaseHolder, newest: Version | None, change: Change, names: Mapping[str, str]
) -> Version:
    """Put a version with these members too, complete stores that lie there: source → name. Without any, the newest."""
    root = holder.root
    manifests = {source: read_manifest(member_root(root, name)) for source, name in names.items()}
    if newest is not None and not manifests:
        return newest
    like = newest.store if newest else next(iter(manifests.values()))
    members = list(newest.members) if newest else []
    counts = newest.store.sizes if newest else Counts(0, 0, 0, 0, 0, 0, 0)
    for source, manifest in manifests.items():
        name = names[source]
        versions.check_agrees(str(root), like, root.url(layout.member(name)), manifest)
        members.append(Member.of(name, source, manifest, like))
        counts = versions.added(counts, manifest.sizes)
    return versions.publish(
        holder, versions.made(newest.number + 1 if newest else 1, change, like, members, counts)
    )


def _existing(root: Root) -> Version:
    """The newest version of the collection at ``root``. StoreNotFoundError without one."""
    newest = versions.newest(root)
    if newest is not None:
        return newest
    if root.exists(layout.MANIFEST):
        raise StoreNotFoundError(
            f"{root} is a store, not a collection: elmo-store collect NAME {root} makes one that has it"
        )
    raise StoreNotFoundError(f"no collection at {root}: is the location right?")


def remove(root: Root, ids: Sequence[str]) -> tuple[Version, int, int]:
    """Put a version without the sentences that have these ids: the version, how many sentences went, ids that none had.

    Their bytes stay until `compact`. StoreNotFoundError if there is no collection, LeaseHeldError as `collect`. Nothing is put
    where no sentence has such an id.
    """
    _existing(root)  # no lease where there is no collection
    with _changing(root) as holder:
        newest = _existing(root)
        store = CollectionReader(root, newest, newest.store.forms[0])
        matches = store.find_ids(ids) if ids else []
        numbers = np.unique(np.array([number for own in matches for number in own], np.int64))
        missing = sum(not own for own in matches)
        if not len(numbers):
            return newest, 0, missing
        members = _without(newest, store, numbers)
        counts = versions.added(newest.store.sizes, _counts_of(store, numbers), -1)
        version = versions.made(newest.number + 1, "remove", newest.store, members, counts)
        return versions.publish(holder, version), len(numbers), missing


def _without(version: Version, store: CollectionReader, numbers: Int64) -> list[Member]:
    """The members, with these sentences of the collection removed too."""
    runs, spans = store.runs, store.spans(numbers)
    run, sentences = runs.own(numbers)
    rows = spans[:, 0] - runs.rows[run] + runs.own_rows[run]
    members = []
    for number, member in enumerate(version.members):
        own = runs.store_of[run] == number
        each = zip(
            sentences[own].tolist(),
            rows[own].tolist(),
            np.diff(spans, axis=1)[own, 0].tolist(),
            strict=True,
        )
        gone = sorted(
            [*member.removed, *(Removed(sentence, 1, row, n) for sentence, row, n in each)],
            key=lambda run: run.span,
        )
        members.append(msgspec.structs.replace(member, removed=tuple(_joined(gone))))
    return members


def _joined(runs: Sequence[Removed]) -> list[Removed]:
    """Runs in order, those that follow each other as one."""
    joined: list[Removed] = []
    for run in runs:
        before = joined[-1] if joined else None
        if before is not None and before.span[1] == run.first_sentence:
            joined[-1] = Removed(
                before.first_sentence,
                before.n_sentences + run.n_sentences,
                before.first_row,
                before.n_rows + run.n_rows,
            )
        else:
            joined.append(run)
    return joined


def _counts_of(store: StoreReader, numbers: Int64) -> Counts:
    """What these sentences of a store or collection add to its counts; parts and shards are 0."""
    tokens = cut = rejected = 0
    limit = WordLimit.of(store.manifest.model.options)
    for first in range(0, len(numbers), 1024):
        records = store.records(numbers[first : first + 1024].tolist())
        tokens += sum(len(record.tokens) for record in records)
        cut += sum(limit.n_truncated(record.tokens) for record in records)
    spans = store.spans(numbers)
    if store.manifest.sizes.rejected:
        wanted = set(numbers.tolist())
        rejected = sum(
            reject["sentence"] in wanted for held in store.held() for reject in rejects_of(held)
        )
    return Counts(len(numbers), tokens, int((spans[:, 1] - spans[:, 0]).sum()), rejected, cut, 0, 0)


def _completed(root: Root) -> Manifest:
    """The manifest of a member that is complete, without what a killed command left there."""
    manifest = read_manifest(root)
    if not manifest.complete:
        raise StoreError(f"{root} is not complete: the command that writes it continues it")
    if LEASES in root.names(""):  # of a command that was killed at its very end
        with suppress(LeaseHeldError):
            LeaseHolder.take(root, uuid.uuid4().hex).end()
    root.flush()
    return manifest


def _copy(store: StoreReader, target: Root) -> None:
    """Make ``target`` what the store is, the manifest last; what is there already stays. Nobody else may write there."""
    target.remove_unfinished()  # of a command that was killed
    source, there = store.root, target.sizes()
    listed, m = source.sizes(), store.manifest
    of_parts = [layout.sentences_part(part) for part in range(m.sizes.parts)]
    of_shards = [rel for shard in range(m.sizes.shards) for rel in shard_objects(m, shard)]
    for rel in [*(record.path for record in m.objects), *of_parts, *of_shards]:
        if rel not in listed:  # a folder that is a link is read, and not listed
            raise ShardMissingError(
                f"{source.url(rel)} is missing, or below a link: restore it, or copy its folder"
            )
    for rel, size in listed.items():
        if layout.is_ours(rel) and not rel.startswith(_LEFT_OUT) and there.get(rel) != size:
            _copy_object(source, target, rel)
    source.confirm(now=True)  # the store that was opened
    target.flush()
    target.put(layout.MANIFEST, source.get(layout.MANIFEST))


def _copy_object(source: Root, target: Root, rel: str) -> None:
    if source.is_local:
        target.put(rel, Path(os.path.realpath(source.path(rel))), link=True)
    elif (
        kind_of(source.filesystem) == kind_of(target.filesystem)
        and source.storage_options == target.storage_options
    ):
        target.calls.cp_file(source.path(rel), target.path(rel))
    else:
        target.put(rel, source.get(rel))


def compact(root: Root, *, keep_versions: int = 1) -> tuple[Version, list[int]]:
    """Rewrite members without their removed sentences, put the version that has them, remove what still holds the sentences.

    That is every version with a member that the newest has not, but for the newest ``keep_versions``, and those members; then
    nothing of a removed sentence is left. Returns the newest version, and the numbers of those that went.

    StoreNotFoundError if there is no collection, LeaseHeldError as `collect`.
    """
    _existing(root)  # no lease where there is no collection
    with _changing(root) as holder:
        newest = _existing(root)
        if any(member.removed for member in newest.members):
            newest = versions.publish(holder, _compacted(holder, newest))
        return newest, _sweep(holder, newest, keep_versions)


def _compacted(holder: LeaseHolder, newest: Version) -> Version:
    """A version whose members hold nothing that is removed in the newest."""
    members = []
    for member in newest.members:
        if member.removed:
            name = name_of(member.name, json.dumps(msgspec.to_builtins(member.removed)))
            manifest = _rewritten(holder, newest, member, name)
            member = Member.of(name, member.source, manifest, newest.store)
        members.append(member)
    return versions.made(newest.number + 1, "compact", newest.store, members, newest.store.sizes)


def _rewritten(holder: LeaseHolder, newest: Version, member: Member, name: str) -> Manifest:
    """The manifest of the store ``name``, what ``member`` keeps, which is written unless it is there."""
    target = member_root(holder.root, name)
    try:
        return _completed(target)
    except StoreError:  # it is not there, or not complete
        _remove_store(holder, name)
    source = CollectionReader(
        holder.root, versions.with_members(newest, [member]), newest.store.forms[0]
    )
    (held,) = source.held()
    spans = [np.arange(*run.span) for run in member.removed]
    gone = _counts_of(held.store, np.concatenate(spans))
    like = held.store.manifest
    manifest = begun(
        like, versions.added(like.sizes, gone, -1), job=dict(like.job) | {COMPACTED: member.name}
    )
    write_store(holder, target, manifest, source, source, partial(rejects_in, source))
    return _completed(target)


def _sweep(holder: LeaseHolder, newest: Version, keep_versions: int) -> list[int]:
    """Remove what only holds what the newest version does not; numbers of the versions that went.

    They go last, so that what was interrupted is found again.
    """
    root, here = holder.root, {member.name for member in newest.members}
    known = versions.numbers(root)
    names = {
        number: {member.name for member in versions.read_version(root, number).members}
        for number in known[:-1]
    }
    older = known[: max(0, len(known) - max(1, keep_versions))]
    gone = [number for number in older if not names[number] <= here]
    alive = here.union(*(names[number] for number in names if number not in gone))
    named = set().union(*(names[number] for number in gone))
    begun = [
        name
        for name, manifest in unversioned(root, alive | named).items()
        if COMPACTED in manifest.job
    ]
    if gone:  # what commands left beside the members about all of them
        holder.check()
        root.remove("report.html")
    for name in sorted(named - alive) + begun:
        _remove_store(holder, name)
    holder.check()
    for number in gone:
        root.remove(layout.version(number))
    return gone


def unversioned(root: Root, named: Collection[str]) -> dict[str, Manifest]:
    """Name → manifest of members that commands began and no version has; ``named``: those that versions have."""
    manifests = {}
    for name in root.names(layout.MEMBERS):
        if name not in named:
            with suppress(StoreError):
                manifests[name] = read_manifest(member_root(root, name))
    return manifests


def _remove_store(holder: LeaseHolder, name: str) -> None:
    """Remove a member's objects, the manifest last; what is not a store's stays."""
    holder.check()
    root = member_root(holder.root, name)
    root.remove(*[rel for rel in root.list() if layout.is_ours(rel) and rel != layout.MANIFEST])
    root.remove(layout.MANIFEST)
    root.remove_unfinished()
    holder.root.remove_empty(layout.member(name))
