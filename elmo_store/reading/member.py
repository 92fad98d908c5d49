"""A member of a collection, when it is opened: is it what the version says?"""

import numpy as np

from elmo_store.errors import ManifestError, ShardCorruptError, ShardMissingError, StoreNotFoundError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.version import Inside, Member, Version
from elmo_store.reading.sentences import SentenceTable
from elmo_store.reading.watched import opened_store
from elmo_store.storage.root import Root


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
        raise ShardMissingError(f"{url}, a member of version {version.number}, is missing: restore it") from error
    said = version.manifest_of(member)
    is_alike = (manifest.counts, Inside.of(manifest)) == (said.counts, Inside.of(said))
    if not is_alike or manifest.to_json()["sha256"] != member.sha256:
        raise ShardCorruptError(f"{url} is not the member that version {version.number} names: restore it")
    if member.removed:
        _check_removed(SentenceTable(root, manifest), version, member)
    return root, manifest


def _check_removed(sentences: SentenceTable, version: Version, member: Member) -> None:
    """ManifestError unless the rows of the removed runs are those of their sentences."""
    edges = np.array([(run.first_sentence, run.span[1] - 1) for run in member.removed], np.int64)
    stored = sentences.starts.spans(edges.ravel()).reshape(-1, 4)[:, [0, 3]]  # first row, and the row after the last
    said = np.array([(run.first_row, run.first_row + run.n_rows) for run in member.removed], np.int64)
    if len(wrong := np.flatnonzero((stored != said).any(axis=1))):
        run, (first, stop) = member.removed[wrong[0]], stored[wrong[0]].tolist()
        raise ManifestError(
            f"version {version.number}: sentences {run.first_sentence} to {run.span[1] - 1} of member {member.name} are removed "
            f"with rows {run.first_row} to {run.first_row + run.n_rows}, but have rows {first} to {stop}: restore the version"
        )
