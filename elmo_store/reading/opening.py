"""Opening a store or a member of a collection, and noticing, whenever it is read, that another store took its place.

Why no row of another store is ever given out for one of this store:

- Whoever replaces a store changes its manifest before anything else: ``--overwrite`` first says there that the store is
  incomplete, and removes and writes objects afterwards (`pipeline.jobs.output.clear`). So as long as the manifest is the one that
  was opened, no object of another store is there.
- Readers look at the manifest after they have opened, or fetched, an object, never before. If it is the one that was opened, it
  was so when the object was opened: the object is this store's. Files of a local disk that stay open are read on as they were,
  since writers put other files in the place of old ones, and write into none.
- A look at a local disk is one ``stat``. On object stores it is a request, so one look holds until the clock's next multiple of
  `LOOK_SECONDS`; in return a writer waits `REPLACE_SECONDS`, which is more, between changing the manifest of a complete store
  and writing the first object of its own. (A store that was replaced by other means, such as a copy from elsewhere, is noticed
  at the next look.) Where an object is missing or damaged, and in an unfinished store, nothing is taken from an earlier look.
- Caches hold what was read before such a look, so what they hold is this store's.

A manifest that was put again with the same contents is not another one: it names the same bytes by their checksums.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from elmo_store.errors import (
    ManifestError,
    ShardCorruptError,
    ShardMissingError,
    StoreError,
    StoreNotFoundError,
    StoreReplacedError,
)
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, own_sha256, read_manifest
from elmo_store.format.version import Inside, Member, Version
from elmo_store.reading.sentences import SentenceTable
from elmo_store.storage.root import Root

Seen = tuple[float, ...] | None
LOOK_SECONDS = 1.0  # that a look at the manifest holds at most, where it is a request
REPLACE_SECONDS = 2.0  # between changing a manifest and the first object of another store there


class Watch:
    """Notices that the store that was opened is no longer at its root, see `elmo_store.storage.root.Root.watched_by`."""

    def __init__(self, manifest: Manifest, seen: Seen = None) -> None:
        """``manifest``: of the store that was opened. ``seen``: what a look said before it was read, see `opened_store`."""
        self._whole, self._identity = manifest.complete, _identity(manifest, manifest.complete)
        self._seen = seen

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_seen": None
        }  # another process, maybe of another machine, looks for itself

    def __call__(self, root: Root, now: bool) -> None:
        """StoreReplacedError unless the store that was opened stands at ``root``; ``now``: no earlier look is believed."""
        seen = _look(root)
        if seen is not None and seen == self._seen and (root.is_local or (self._whole and not now)):
            return
        cause = None
        try:
            current = _identity(read_manifest(root.watched_by(None)), self._whole)
        except StoreError as error:
            current, cause = "", error
        if current != self._identity:
            raise StoreReplacedError(
                f"the store at {root} was removed, or is being replaced, since it was opened: open it again; "
                "what was read before stays as it was"
            ) from cause
        self._seen = seen


def opened_store(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Root, Manifest]:
    """The store at ``url``, complete or not: its root, watched, and its manifest. Errors as `read_manifest`'s."""
    root = Root(url, storage_options)
    seen = _look(root)
    manifest = read_manifest(root)
    return root.watched_by(Watch(manifest, seen)), manifest


def _look(root: Root) -> Seen:
    """Before the manifest is read: on a local disk its inode and time in ns, None if nobody can say. Elsewhere the time."""
    if not root.is_local:
        return (time.monotonic() // LOOK_SECONDS,)
    try:
        status = os.stat(root.path(layout.MANIFEST))
    except OSError:  # whoever reads it says what is wrong
        return None
    return status.st_ino, status.st_mtime_ns


def _identity(manifest: Manifest, whole: bool) -> str:
    """A hash of what tells a store from another one. An unfinished store (not ``whole``) may have been completed since."""
    if not whole:
        job = {
            name: value for name, value in manifest.job.items() if name != "device"
        }  # "auto" until workers said what it is
        manifest = replace(
            manifest, complete=False, objects=(), checksums=None, software={}, job=job
        )
    return own_sha256(manifest.to_json())


def opened_member(collection: Root, version: Version, member: Member) -> tuple[Root, Manifest]:
    """The member's root and manifest.

    Raises:
        ShardMissingError: it is not there.
        ShardCorruptError: another store is in its place, or its manifest is not as the version says.
        ManifestError: removed sentences have other rows than the version says, or the member's manifest is damaged.
    """
    url = collection.url(layout.member(member.name))
    try:
        root, manifest = opened_store(url, collection.storage_options)
    except StoreNotFoundError as error:
        raise ShardMissingError(
            f"{url}, a member of version {version.number}, is missing: restore it"
        ) from error
    said = version.manifest_of(member)
    is_alike = (manifest.counts, Inside.of(manifest)) == (said.counts, Inside.of(said))
    if not is_alike or manifest.to_json()["sha256"] != member.sha256:
        raise ShardCorruptError(
            f"{url} is not the member that version {version.number} names: restore it"
        )
    if member.removed:
        _check_removed(SentenceTable(root, manifest), version, member)
    return root, manifest


def _check_removed(sentences: SentenceTable, version: Version, member: Member) -> None:
    """ManifestError unless the rows of the removed runs are those of their sentences."""
    edges = np.array([(run.first_sentence, run.span[1] - 1) for run in member.removed], np.int64)
    stored = sentences.starts.spans(edges.ravel()).reshape(-1, 4)[
        :, [0, 3]
    ]  # first row, and the row after the last
    said = np.array(
        [(run.first_row, run.first_row + run.n_rows) for run in member.removed], np.int64
    )
    if len(wrong := np.flatnonzero((stored != said).any(axis=1))):
        run, (first, stop) = member.removed[wrong[0]], stored[wrong[0]].tolist()
        raise ManifestError(
            f"version {version.number}: sentences {run.first_sentence} to {run.span[1] - 1} of member {member.name} are removed "
            f"with rows {run.first_row} to {run.first_row + run.n_rows}, but have rows {first} to {stop}: restore the version"
        )
