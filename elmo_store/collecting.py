"""What makes versions of a collection: collecting stores, adding one that a job wrote, removing sentences, compacting.

Each holds the collection's lease while it reads the newest version, decides, and puts its own: changes happen one after the
other. Everything is put before the version that names it; so whenever a process ends, the newest version is whole, and the same
call does what is left.
"""

import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from elmo_store.errors import (
    LeaseHeldError,
    ManifestError,
    ShardMissingError,
    StoreError,
    StoreNotFoundError,
    StoreReplacedError,
)
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.manifest import Counts, Manifest, read_manifest
from elmo_store.format.texts import hash_texts
from elmo_store.format.version import Change, Member, Removed, Version
from elmo_store.format.words import WordLimit
from elmo_store.forms.shards import shard_objects
from elmo_store.reading.rejects import rejects_in, rejects_of
from elmo_store.reading.runs import Int64
from elmo_store.reading.store import StoreReader
from elmo_store.reading.view import View
from elmo_store.storage.filesystems import kind_of
from elmo_store.storage.lease import LEASES, WAIT_SECONDS, LeaseHolder, described, read_lease
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart
from elmo_store.storage.root import Root
from elmo_store.writer import begun, write_store

if TYPE_CHECKING:
    from elmo_store.store import Store

COMPACTED = "compacted_from"  # of a job: the member that was rewritten
WITHOUT = "compacted_without"  # of a job: a hash of the runs of sentences that were removed
_NAME = re.compile("[0-9a-f]{32}")  # of a member
_SENTENCES_AT_ONCE = 1024  # that are compared together
_TO_DECIDE = "rerun the job that writes it and then `compact`, or delete that folder"
_log = logging.getLogger(__name__)
_LOOK_SECONDS, _REMOTE_LOOK_SECONDS = (
    0.1,
    2.0,
)  # between looks whether another command still changes the collection
# What a member is without, of a store that is collected: of its last run, private to its folder, or about it.
_LEFT_OUT = (f"{layout.WORK}/", "report.html", layout.MANIFEST)


def collect(
    url: str | os.PathLike[str],
    stores: Sequence["Store"],
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
    for view in (store._view for store in stores):
        store = view.whole_store
        if store is None or not store.manifest.complete:
            raise StoreError(
                f"{view.url} is not a complete store: collect stores that are complete, one by one"
            )
        collection = Location("collection", str(root), storage_options)
        check_apart(collection, view.locations())
        versions.check_agrees(str(root), like, store.url, store.manifest)
        checksums = store.manifest.checksums
        assert checksums is not None  # of a complete store
        sources[name_of(checksums.shards, checksums.parts)] = store
    with changing(root) as holder:
        newest = check_collection(root)
        names = {}
        for source, store in sources.items():
            if newest is None or newest.of_source(source) is None:
                names[source] = name_of(store.manifest.to_json()["sha256"])
                target = member_root(holder.writable(), names[source])
                _copy(store, target)
                _completed(target)
        version = _appended(root, newest, "collect", names)
        return versions.publish(holder, version) if names else version


@contextmanager
def changing(root: Root) -> Iterator[LeaseHolder]:
    """The collection's lease, once no other command has it. LeaseHeldError if one has it for longer than `WAIT_SECONDS`.

    What is written below ``root`` must be written by `LeaseHolder.writable`.
    """
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


def put_beside(view: View, rel: str, data: bytes) -> None:
    """Put an object about a store, or about all members of a collection, into its folder, under its lease.

    What shows sentences must not come back after they are removed, so nothing is put if the collection has changed since.

    Raises:
        LeaseHeldError: as `collect`.
        StoreReplacedError: another store took its place, or the collection has a newer version.
    """
    assert view.root is not None  # of what was opened
    root = Root(view.url, view.root.storage_options)
    with changing(root) as holder:
        if view.version is not None:
            newest = check_collection(root)
            if newest is None or newest.number != view.version.number:
                raise StoreReplacedError(
                    f"{root} has changed since version {view.version.number} was read: "
                    "run the same command again"
                )
        view.root.confirm(now=True)
        root.sweep(name=rel)  # what a killed command left
        holder.writable().put(rel, data)


def member_root(root: Root, name: str) -> Root:
    """Where the member ``name`` of the collection at ``root`` is, or will be; of the same owner."""
    return Root(root.url(layout.member(name)), root.storage_options).owned_by(root.owner)


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


def add(root: Root, name: str, source: str, *, compared_with: int | None = None) -> Version | None:
    """Put a version with the store ``members/NAME`` too, which an embed job has completed.

    Args:
        root: the collection.
        name: of the member.
        source: the job's identity. The newest version is left as it is if it has the source.
        compared_with: the number of the version whose sentences the job left out, 0 for none, None if it left out none. What
            versions since have is removed of the member, as `remove` does it.

    Returns:
        The newest version; None if the member holds nothing that the collection did not have, and was removed.

    Raises:
        LeaseHeldError: as `collect`.
        MemberMismatchError: the collection's first version has come about since the job began, and they differ.
    """
    with changing(root) as holder:
        own = holder.writable()
        newest = check_collection(root)
        if newest is not None and newest.of_source(source) is not None:
            return newest
        manifest = _completed(member_root(own, name))
        version = _appended(root, newest, "embed", {source: name})
        skips_known = compared_with is not None
        if skips_known and newest is not None and newest.number != compared_with:
            version = _without_known(root, newest, version)
        counts = version.store.sizes
        before = newest.store.sizes if newest else Counts(0, 0, 0, 0, 0, 0, 0)
        if skips_known and counts.tokens == before.tokens and not manifest.sizes.rejected:
            _remove_store(own, name)
            return None
        return versions.publish(holder, version)


def _without_known(root: Root, newest: Version, version: Version) -> Version:
    """Return ``version``, whose last member is new, without that member's sentences that ``newest`` has too."""
    known = View.of_version(root, newest, newest.store.forms[0])
    store = View.of_version(root, version, version.store.forms[0])
    repeated: list[int] = []
    for first in range(known.n_sentences, store.n_sentences, _SENTENCES_AT_ONCE):
        numbers = range(first, min(first + _SENTENCES_AT_ONCE, store.n_sentences))
        columns = store.table(numbers, ["id", "source", "tokens"]).to_pydict()
        own_ids = [
            "" if _is_place(sentence_id, source) else sentence_id
            for sentence_id, source in zip(columns["id"], columns["source"], strict=True)
        ]
        are_known = known_sentences(known, own_ids, columns["tokens"])
        repeated += [
            number for number, is_known in zip(numbers, are_known, strict=True) if is_known
        ]
    if not repeated:
        return version
    return _without(version, store, np.array(repeated, np.int64), version.number, "embed")


def known_sentences(store: View, ids: Sequence[str], tokens: Sequence[Sequence[str]]) -> list[bool]:
    """Return, for each sentence, whether a collection has it: by its own id, otherwise by its tokens.

    Args:
        store: the collection.
        ids: of each sentence the id that its record brings, "" without one.
        tokens: of each sentence. One without tokens is never known.
    """
    named = [i for i, words in enumerate(tokens) if len(words) and ids[i]]
    plain = [i for i, words in enumerate(tokens) if len(words) and not ids[i]]
    by_id = store.find_ids([ids[i] for i in named]) if named else []
    hashes = hash_texts([tokens[i] for i in plain], store.cut_bytes)
    by_text = store.find(hashes, texts=True) if plain else []
    known = [False] * len(tokens)
    for i, found in zip([*named, *plain], [*by_id, *by_text], strict=True):
        known[i] = bool(found)
    return known


def _is_place(sentence_id: str, source: str) -> bool:
    """Return True if an id says where the sentence stands, ``FILE:NUMBER`` or ``FILE:NUMBER:WITHIN``."""
    file = source.rstrip("/").rpartition("/")[2]
    return re.fullmatch(re.escape(file) + r"(:[0-9]+){1,2}", sentence_id) is not None


def _appended(
    root: Root, newest: Version | None, change: Change, names: Mapping[str, str]
) -> Version:
    """Return a version, still to be put, with these complete stores too: source → name. Without any, the newest."""
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
    return versions.made(newest.number + 1 if newest else 1, change, like, members, counts)


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
    with changing(root) as holder:
        newest = _existing(root)
        store = View.of_version(root, newest, newest.store.forms[0])
        matches = store.find_ids(ids) if ids else []
        numbers = np.unique(np.array([number for own in matches for number in own], np.int64))
        missing = sum(not own for own in matches)
        if not len(numbers):
            return newest, 0, missing
        version = _without(newest, store, numbers, newest.number + 1, "remove")
        return versions.publish(holder, version), len(numbers), missing


def _without(version: Version, store: View, numbers: Int64, number: int, change: Change) -> Version:
    """Return the ``number``-th version: ``version``, which ``store`` reads, without these of its sentences."""
    members = _with_removed(version, store, numbers)
    counts = versions.added(version.store.sizes, _counts_of(store, numbers), -1)
    return versions.made(number, change, version.store, members, counts)


def _with_removed(version: Version, store: View, numbers: Int64) -> list[Member]:
    """The members, with these sentences of the collection removed too."""
    runs, spans = store.runs, store.spans(numbers)
    run, sentences = runs.locate(numbers)
    rows = spans[:, 0] - store.row_runs.shifts[run]
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


def _counts_of(store: View, numbers: Int64) -> Counts:
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
            reject["sentence"] in wanted
            for member in store.opened_stores()
            for reject in rejects_of(member)
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
        target.copy_within(source, rel, rel)
    else:
        target.put(rel, source.get(rel))


class Compacted(NamedTuple):
    """What `compact` did.

    Attributes:
        version: the newest version.
        removed: numbers of the versions that are gone.
        undecided: what may still hold removed sentences, a line for each, and what to do about it.
    """

    version: Version
    removed: list[int]
    undecided: list[str]


def compact(root: Root, *, keep_versions: int = 1) -> Compacted:
    """Rewrite members without their removed sentences, put the version that has them, remove what still holds the sentences.

    That is every version with a member that the newest has not, but for the newest ``keep_versions``; those members; what
    commands that were killed left. Then nothing of a removed sentence is left but where ``undecided`` says so.

    Raises:
        StoreNotFoundError: there is no collection.
        LeaseHeldError: as `collect`.
    """
    _existing(root)  # no lease where there is no collection
    with changing(root) as holder:
        newest = _existing(root)
        if any(member.removed for member in newest.members):
            newest = versions.publish(holder, _compacted(holder, newest))
        return _sweep(holder.writable(), newest, keep_versions)


def _compacted(holder: LeaseHolder, newest: Version) -> Version:
    """A version whose members hold nothing that is removed in the newest."""
    root = holder.root
    written = unversioned(root, [member.name for member in newest.members])
    members = []
    for member in newest.members:
        if member.removed:
            name, manifest = _rewritten(holder, newest, member, written)
            member = Member.of(name, member.source, manifest, newest.store)
        members.append(member)
    return versions.made(newest.number + 1, "compact", newest.store, members, newest.store.sizes)


def _rewritten(
    holder: LeaseHolder, newest: Version, member: Member, written: Mapping[str, Manifest]
) -> tuple[str, Manifest]:
    """Return name and manifest of a store with what ``member`` keeps, writing it unless it is one of those ``written``.

    Each attempt writes to a folder of its own, so that a command that lost the lease does not write into the folder of the one
    that has it.
    """
    removed = name_of(json.dumps(msgspec.to_builtins(member.removed)))
    job = {COMPACTED: member.name, WITHOUT: removed}
    for name, manifest in written.items():
        if manifest.complete and job.items() <= dict(manifest.job).items():
            return name, _completed(member_root(holder.writable(), name))
    name = name_of(member.name, removed, holder.run)
    target = member_root(holder.writable(), name)
    kept = versions.with_members(newest, [member])
    source = View.of_version(holder.root, kept, newest.store.forms[0])
    (opened,) = source.opened_stores()
    whole = View.of_store(opened.store)
    gone = np.concatenate([np.arange(*run.span) for run in member.removed])
    like = opened.store.manifest
    counts = versions.added(like.sizes, _counts_of(whole, gone), -1)
    begin = begun(like, counts, job=dict(like.job) | job)
    write_store(target, begin, source, _rejects_without(source, opened.store, gone))
    return name, _completed(target)


def _rejects_without(
    source: View, member: StoreReader, gone: Int64
) -> Callable[[range], list[dict[str, Any]]]:
    """Return a function that gives refused records of neighbours in ``source``, without the text of removed sentences.

    A refused sentence keeps the text of its whole record. If another sentence of that record is removed, the text goes.

    Args:
        source: what is kept of a member.
        member: the member.
        gone: its sentences that are removed.
    """
    records: set[tuple[str, int]] = set()
    for first in range(0, len(gone) if member.manifest.sizes.rejected else 0, _SENTENCES_AT_ONCE):
        numbers = gone[first : first + _SENTENCES_AT_ONCE].tolist()
        columns = member.table(numbers, ["source", "position"]).to_pydict()
        records.update(zip(columns["source"], columns["position"], strict=True))

    def rejects(numbers: range) -> list[dict[str, Any]]:
        return [
            reject | {"raw": ""} if (reject["source"], reject["position"]) in records else reject
            for reject in rejects_in(source, numbers)
        ]

    return rejects


def _sweep(root: Root, newest: Version, keep_versions: int) -> Compacted:
    """Remove what only holds what the newest version does not.

    Versions go last, so that what was interrupted is found again.
    """
    here = {member.name for member in newest.members}
    known = versions.numbers(root)
    names, damaged = _names_of_versions(root, known[:-1])
    kept = known[-max(1, keep_versions) :]
    older = [number for number in known if number not in kept]
    gone = [number for number in older if number in damaged or not names[number] <= here]
    alive = here.union(*(names[number] for number in names if number not in gone))
    named = set[str]().union(*(names[number] for number in names if number in gone))
    unnamed, undecided = _unnamed(root, newest, alive | named)
    for number in damaged:
        if number in kept:
            unnamed = []  # it may name them
            undecided.append(
                f"{root.url(layout.version(number))} is damaged, so it is not known which members it needs: "
                "restore it, or compact again and keep fewer versions"
            )
    root.remove_unfinished(but=layout.MEMBERS)  # of commands that were killed
    if gone:  # what commands left beside the members about all of them
        root.remove("report.html")
    for name in sorted(named - alive):
        _remove_store(root, name)
    undecided += [line for name in unnamed if (line := _remove_unnamed(root, name))]
    for number in gone:
        root.remove(layout.version(number))
    return Compacted(newest, gone, undecided)


def _names_of_versions(root: Root, numbers: Sequence[int]) -> tuple[dict[int, set[str]], list[int]]:
    """Return the names of each version's members, and the numbers of the versions that are damaged."""
    names, damaged = dict[int, set[str]](), []
    for number in numbers:
        try:
            version = versions.read_version(root, number)
        except ManifestError:
            damaged.append(number)
        else:
            names[number] = {member.name for member in version.members}
    return names, damaged


def _unnamed(root: Root, newest: Version, named: Collection[str]) -> tuple[list[str], list[str]]:
    """Return members that no version names: the names of those to remove, and a line about each that a job may need.

    `collect` and `compact` write under the collection's lease, so what they began and no version names is left behind. An embed
    job writes under a lease of its own, and adds its member later.

    Args:
        root: the collection.
        newest: its newest version.
        named: members that some version names, or named.
    """
    left, undecided = [], []
    for name in root.names(layout.MEMBERS):
        if name in named or not _NAME.fullmatch(name):
            continue
        member = member_root(root, name)
        try:
            manifest = read_manifest(member)
        except StoreNotFoundError:
            left.append(name)
            continue
        except StoreError as error:
            undecided.append(f"{error}; no version names this member: {_TO_DECIDE}")
            continue
        is_collected = name == name_of(manifest.to_json()["sha256"])
        # An embed job's member is named by its source until it is compacted.
        is_replaced = newest.of_source(name) is not None
        if COMPACTED in manifest.job or is_collected or is_replaced:
            left.append(name)
        else:
            what = "a complete store" if manifest.complete else "an unfinished store"
            undecided.append(f"{member} is {what} that no version names: {_TO_DECIDE}")
    return left, undecided


def _remove_unnamed(root: Root, name: str) -> str:
    """Remove a member that no version names, unless a job has it. Return a line about it where it stays, otherwise ""."""
    member = member_root(root, name)
    lease = read_lease(member)
    if lease is not None and not lease.has_ended():
        return f"{member} belongs to {described(lease)}: {_TO_DECIDE}"
    try:
        with LeaseHolder.take(member, uuid.uuid4().hex):  # a job may begin at this moment
            _remove_store(root, name)
    except LeaseHeldError as error:
        return f"{member} belongs to {error.holder}: {_TO_DECIDE}"
    root.remove_empty(layout.member(name))
    return ""


def unversioned(root: Root, named: Collection[str]) -> dict[str, Manifest]:
    """Name → manifest of members that commands began and no version has; ``named``: those that versions have."""
    manifests = {}
    for name in root.names(layout.MEMBERS):
        if name not in named:
            with suppress(StoreError):
                manifests[name] = read_manifest(member_root(root, name))
    return manifests


def _remove_store(root: Root, name: str) -> None:
    """Remove a member's objects, the manifest last; what is not a store's stays.

    Half-written files go first: what a command that lost the lease is about to give its name then never gets it.
    """
    member = member_root(root, name)
    member.remove_unfinished()
    member.remove(*[rel for rel in member.list() if layout.is_ours(rel) and rel != layout.MANIFEST])
    member.remove(layout.MANIFEST)
    member.remove_unfinished()
    root.remove_empty(layout.member(name))
