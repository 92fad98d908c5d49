"""A version of a collection, ``versions/NNNNNNNN.json``: which stores it is made of, and which of their sentences are removed.

A collection is a folder with stores in ``members/``, none of which ever changes, and numbered versions. Each version is put once,
by the command that holds the collection's lease, under the number after the newest one's. The newest version is never removed, so
no number is used twice. Members are named by 32 hexadecimal digits: nothing a version says is a path.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from elmo_store.errors import (
    LeaseLostError,
    ManifestError,
    MemberMismatchError,
    ShardCorruptError,
    StoreError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format import layout
from elmo_store.format.manifest import Checksums, Counts, Form, InputInfo, Manifest, check_layout
from elmo_store.format.markers import is_sealed, sealed
from elmo_store.format.typed import Count, Sha256, Size
from elmo_store.storage.data import TooLargeError
from elmo_store.storage.json_values import MOST_JSON_BYTES, decode
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.root import Root

Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
Change = Literal["collect", "embed", "remove", "compact"]
# What members must have in common; a mix's weights too.
SAME = ("kind", "dtype", "precision", "boundaries", "states", "channels")


class Removed(msgspec.Struct, frozen=True):
    """Consecutive sentences of a member that are removed, and their rows, by their numbers in it."""

    first_sentence: Count
    n_sentences: Size
    first_row: Count
    n_rows: Count

    @property
    def span(self) -> tuple[int, int]:
        """The first sentence and the one after the last."""
        return self.first_sentence, self.first_sentence + self.n_sentences


class Inside(msgspec.Struct, frozen=True):
    """How a member's objects are laid out; members may differ in it."""

    shard_rows: Size
    chunk_rows: Size
    sentence_chunk: Size
    forms: tuple[Form, ...]
    compression: str
    checksum: str

    @classmethod
    def of(cls, manifest: Manifest) -> "Inside":
        """That of a store."""
        return cls(*(getattr(manifest, name) for name in cls.__struct_fields__))


class Member(msgspec.Struct, frozen=True):
    """A store of a collection, in ``members/NAME/``. A struct, since a hundred of them are read faster than one manifest.

    ``source``: what it was made of, the contents of the store that was collected or the job that embedded it. `compact` rewrites
    a member under another name and keeps this, so a source is added once.
    """

    name: Hex
    source: Hex
    sha256: Sha256  # its manifest's own
    counts: Counts  # its own, removed sentences too
    inside: Inside | None = (
        None  # how it is laid out, None where it is as the version's ``store`` says
    )
    removed: tuple[
        Removed, ...
    ] = ()  # sentences that the version is without, in order, none next to each other

    @classmethod
    def of(cls, name: str, source: str, manifest: Manifest, like: Manifest) -> "Member":
        """A complete store that lies there. ``like``: the version's ``store``."""
        inside = Inside.of(manifest)
        return cls(
            name,
            source,
            manifest.to_json()["sha256"],
            manifest.sizes,
            None if inside == Inside.of(like) else inside,
        )


class _Stored(msgspec.Struct, frozen=True):
    """The JSON object."""

    format_version: int
    version: Count
    change: Change
    written: float  # Unix seconds
    store: dict[str, Any]
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Version:
    """One version."""

    number: int
    change: Change  # the command that put it. written: when, in Unix seconds.
    written: float
    store: Manifest  # what the collection says of itself as one store; its counts are without the removed sentences
    members: tuple[Member, ...]  # in order

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Sentences, rows, shards and parts of each member, removed ones too [n, 4]."""
        counts = [member.counts for member in self.members]
        return np.array(
            [(own.sentences, own.rows, own.shards, own.parts) for own in counts], np.int64
        )

    def of_source(self, source: str) -> Member | None:
        """The member that was made of it, None without one."""
        return next((member for member in self.members if member.source == source), None)

    def manifest_of(self, member: Member) -> Manifest:
        """A member's manifest as far as its reading needs it."""
        return replace(
            self.store,
            counts=member.counts,
            **(msgspec.structs.asdict(member.inside) if member.inside else {}),
        )

    def is_kept_by(self, later: "Version") -> bool:
        """Return True if ``later`` has all that this version changed, as every version that follows it does.

        False also where that can't be told: sentences were removed of a member that was rewritten since.
        """
        for member in self.members:
            other = later.of_source(member.source)
            if other is None:
                return False
            if self.change in ("collect", "embed"):
                continue
            if other.name != member.name or not _numbers(member) <= _numbers(other):
                return False
        return True

    def encoded(self) -> bytes:
        """The object's bytes."""
        stored = _Stored(
            layout.FORMAT_VERSION,
            self.number,
            self.change,
            self.written,
            self.store.to_json(),
            self.members,
        )
        value: dict[str, Any] = msgspec.to_builtins(stored)
        return sealed(value, indent=None)


def _numbers(member: Member) -> set[int]:
    """Return the numbers of a member's removed sentences."""
    return {number for run in member.removed for number in range(*run.span)}


def made(
    number: int, change: Change, like: Manifest, members: Sequence[Member], counts: Counts
) -> Version:
    """A version of these members. ``like``: the manifest of one of them, or an earlier version's; ``counts``: of what is kept.

    Only sentences, tokens, rows, rejected and words_cut of ``counts`` are asked for. StoreError without a form that all have.
    """
    forms = [set(member.inside.forms) if member.inside else set(like.forms) for member in members]
    counts = replace(
        counts,
        parts=sum(member.counts.parts for member in members),
        shards=layout.n_shards(counts.rows, like.shard_rows),
    )
    shared = tuple(form for form in like.forms if all(form in own for own in forms))
    if not shared:
        raise StoreError(
            "these stores have no form in common: write them in one with `elmo-store convert --store`"
        )
    if (
        shared != like.forms
    ):  # what the members that are laid out as ``like`` have is no longer what the version says
        members = [
            member if member.inside else msgspec.structs.replace(member, inside=Inside.of(like))
            for member in members
        ]
    listed = json.dumps(msgspec.to_builtins(members), sort_keys=True)
    content = hashlib.sha256(listed.encode()).hexdigest()
    store = replace(
        like,
        complete=True,
        counts=counts,
        forms=shared,
        input=InputInfo(f"sha256:{content}", 0),
        job={"collection": content},
        objects=(),
        checksums=Checksums(content, content, content),
    )
    return Version(number, change, time.time(), store, tuple(members))


def with_members(version: Version, members: Sequence[Member]) -> Version:
    """Some members of a version, for reading; of the sums only sentences and rows are theirs."""
    sentences = sum(
        one.counts.sentences - sum(run.n_sentences for run in one.removed) for one in members
    )
    rows = sum(one.counts.rows - sum(run.n_rows for run in one.removed) for one in members)
    counts = replace(version.store.sizes, sentences=sentences, rows=rows)
    return replace(version, store=replace(version.store, counts=counts), members=tuple(members))


def added(counts: Counts, others: Counts, sign: int = 1) -> Counts:
    """``counts`` and ``others`` together; with ``sign`` -1 the first without the second, where it counted them."""
    return Counts(
        **{
            name: max(0, value + sign * getattr(others, name))
            for name, value in vars(counts).items()
        }
    )


def check_agrees(collection: str, like: Manifest, store: str, manifest: Manifest) -> None:
    """MemberMismatchError, field by field, unless a store of ``manifest`` can stand in one collection with those of ``like``."""
    sides = [_compared(like), _compared(manifest)]
    different = {
        name: (sides[0][name], sides[1][name])
        for name in sides[0]
        if sides[0][name] != sides[1][name]
    }
    if not different.keys() and not set(like.forms) & set(manifest.forms):
        different = {"forms": (like.forms, manifest.forms)}
    if different:
        raise MemberMismatchError(collection, store, different)


def _compared(manifest: Manifest) -> dict[str, Any]:
    mix = manifest.mix
    return {
        **{name: getattr(manifest, name) for name in SAME},
        "fields": [str(field) for field in manifest.fields],
        "model": manifest.model.fingerprint,
        "start state": manifest.start_state.kind,
        "start state's hash": manifest.start_state.sha256,
        "weights": None
        if mix is None
        else [(one.name, one.s, one.gamma) for one in mix.weight_sets],
        "layer norm": None if mix is None else mix.layer_norm,
    }


def numbers(root: Root) -> list[int]:
    """Numbers of the versions of the collection at ``root``, in order; none where there is no collection."""
    stems = (
        name.removesuffix(".json") for name in root.names(layout.VERSIONS) if name.endswith(".json")
    )
    return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) < 19)


def newest(root: Root) -> Version | None:
    """The newest version of the collection at ``root``, None where there is no collection. Errors as `read_version`'s."""
    last = -1
    while known := numbers(root):
        try:
            return read_version(root, known[-1])
        except StoreNotFoundError:
            if known[-1] <= last:  # it stands in the listing, and not there
                raise
            last = known[-1]  # gone since, for a newer one
    return None


def read_version(root: Root, number: int) -> Version:
    """A version by number.

    Raises:
        StoreNotFoundError: there is none of this number.
        StoreVersionError, StoreFeatureError: of a later format.
        ManifestError: it is damaged.
    """
    rel = layout.version(number)
    where = root.url(rel)
    try:
        data = root.get(rel, MOST_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        known = numbers(root)
        there = f"it has {known[0]} to {known[-1]}" if known else "there is no collection"
        raise StoreNotFoundError(
            f"no version {number} of a collection at {root}: {there}"
        ) from error
    except (TooLargeError, ShardCorruptError) as error:
        raise ManifestError(f"{where}: {error}: restore it") from error
    if not is_sealed(data):
        raise ManifestError(
            f"{where}: its sha256 is that of other bytes: it was changed or damaged; restore it"
        )
    try:
        stored = decode(data, _Stored)
        if stored.format_version != layout.FORMAT_VERSION:
            raise StoreVersionError(where, stored.format_version, layout.FORMAT_VERSION)
        store = Manifest.parse(stored.store, f"{where}: store")
        version = Version(stored.version, stored.change, stored.written, store, stored.members)
        _check(version, number)
    except (ValueError, RecursionError) as error:  # msgspec's too
        raise ManifestError(
            str(error) if isinstance(error, ManifestError) else f"{where}: {error}"
        ) from error
    return version


def _check(version: Version, number: int) -> None:
    """How the members fit together. ValueError."""
    if version.number != number:
        raise ValueError(f"it says that it is version {version.number}")
    different = min(
        len({member.name for member in version.members}),
        len({member.source for member in version.members}),
    )
    if not different or different < len(version.members):
        raise ValueError("members are not one or more stores with different names and sources")
    n_sentences = n_rows = 0
    for member in version.members:
        if member.inside is not None:
            check_layout(version.manifest_of(member))
        n_sentences += member.counts.sentences - sum(run.n_sentences for run in member.removed)
        n_rows += member.counts.rows - sum(run.n_rows for run in member.removed)
    sizes = version.store.sizes
    if (n_sentences, n_rows) != (sizes.sentences, sizes.rows):
        raise ValueError(
            f"members hold {n_sentences} sentences and {n_rows} rows, store.counts {sizes.sentences} and {sizes.rows}"
        )


def publish(holder: LeaseHolder, version: Version) -> Version:
    """Put a version, the next after the newest, with the collection's lease in hand; returns it.

    A version that is put in time stays in the collection whatever happens to this process afterwards: the commands that follow
    build on it. One that is put late, by a process that was suspended after its look at the lease, is removed again.

    Raises:
        LeaseLostError: another command took the lease and put a version of this number, or later ones without this one.
        StoreError: readers would refuse the version for its size.
    """
    root, rel, data = holder.writable(), layout.version(version.number), version.encoded()
    if len(data) > MOST_JSON_BYTES:
        raise StoreError(
            f"version {version.number} of {root} would have {len(data):,} bytes, and readers take {MOST_JSON_BYTES:,}: remove "
            "fewer sentences at a time, and run `elmo-store compact` in between"
        )
    if root.put_new(rel, data):
        latest = newest(root)
        # On a disk nothing is put late: whoever takes the lease over removes the file that is about to take the name.
        if root.is_local or latest is None or version.is_kept_by(latest):
            root.flush()
            return version
        # By the plain root, as the lease is lost: no other command puts a version of this number any more.
        holder.root.remove(rel)
    raise LeaseLostError(str(root), holder.run, "a command that has put a version since")
