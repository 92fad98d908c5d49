"""Whether what is written or removed overlaps what is read: by what stands there, not by how it is spelled.

On this machine links, mounts and other spellings lead to the same folder; elsewhere endpoint, bucket and key count. What can't
be told apart is taken for the same.
"""

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from fsspec.core import OpenFile
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import OverlapError
from elmo_store.storage.filesystems import opened
from elmo_store.storage.location import Location

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # variables; the first that is set counts
LOCAL = "local"
Node = tuple[int, int]  # device and inode


class Relation(Enum):
    """Of the first of two places to the second."""

    APART = "has nothing to do with"
    SAME = "is the same as"
    INSIDE = "lies inside"
    CONTAINS = "contains"


@dataclass(frozen=True)
class Place:
    """A location, resolved.

    Attributes:
        shown: as its user wrote it.
        kind: of filesystem.
        endpoint: the server or account, "" where nothing says which.
        parts: names of the path, links resolved; on object stores bucket first.
        nodes: of the path (first) and the folders above it, as far as they exist; None for what does not. This machine only.
    """

    shown: str
    kind: str
    endpoint: str
    parts: tuple[str, ...]
    nodes: tuple[Node | None, ...] = ()


def relation(one: Place, other: Place) -> Relation:
    """How ``one`` lies to ``other``. Pure."""
    if one.kind != other.kind or (one.endpoint and other.endpoint and one.endpoint != other.endpoint):
        return Relation.APART
    if one.parts == other.parts or _node(one) in {_node(other)} - {None}:
        return Relation.SAME
    if _is_below(one, other):
        return Relation.INSIDE
    return Relation.CONTAINS if _is_below(other, one) else Relation.APART


def _node(place: Place) -> Node | None:
    return place.nodes[0] if place.nodes else None


def _is_below(inner: Place, outer: Place) -> bool:
    return inner.parts[: len(outer.parts)] == outer.parts or _node(outer) in set(inner.nodes) - {None}


def resolved(location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Place:
    """The place that ``location`` means, anything fsspec understands. It need not exist. Errors as those of the filesystem."""
    shown = os.fspath(location)
    filesystem, path = _innermost(*opened(shown, storage_options))
    if isinstance(filesystem, LocalFileSystem):
        real = os.path.realpath(path)
        parts = tuple(part for part in real.split(os.sep) if part)
        return Place(shown, LOCAL, "", parts, _nodes(real))
    parts = tuple(part for part in posixpath.normpath("/" + path).split("/") if part)
    return Place(shown, type(filesystem).__name__, _endpoint(filesystem), parts)


def places_of(location: Location) -> tuple[Place, ...]:
    """Where ``location`` is, and where links directly in that folder lead: a store's folders may stand on another disk."""
    place = resolved(location.url, location.storage_options)
    if place.kind != LOCAL:
        return (place,)
    folder = os.sep + os.sep.join(place.parts)
    links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()] if os.path.isdir(folder) else []
    return (place, *map(resolved, sorted(links)))


def check_apart(written: Location, reads: Iterable[Location]) -> None:
    """OverlapError if ``written`` overlaps any of ``reads``; nothing is touched. Other errors as those of the filesystems."""
    outputs = places_of(written)
    for read in reads:
        for place, output in product(places_of(read), outputs):
            found = relation(output, place)
            if found is Relation.APART or (found is Relation.INSIDE and read.leaves_out):
                continue
            raise OverlapError(f"{written.what} {output.shown}", found.value, f"{read.what} {place.shown}")


def check_outside(written: Location, what: str, urls: Iterable[str], storage_options: Mapping[str, Any] | None = None) -> None:
    """OverlapError if one of the files ``urls`` (full names; ``what``: they are) lies in ``written``, also by a link."""
    outputs = places_of(written)
    inside: dict[str, bool] = {}  # files are many, folders few
    for url in urls:
        name = os.path.realpath(url) if os.path.islink(url) else url
        looked_at = name if "::" in name else name.rpartition("/")[0] or "/"
        if looked_at not in inside:
            place = resolved(looked_at, storage_options)
            inside[looked_at] = any(relation(output, place) in (Relation.SAME, Relation.CONTAINS) for output in outputs)
        if inside[looked_at]:
            raise OverlapError(str(written), Relation.CONTAINS.value, f"{what} {url}")


def _innermost(filesystem: Any, path: str) -> tuple[Any, str]:
    """The filesystem that keeps the bytes, and the path there: below caches and folders; of an archive the file that it is."""
    while True:
        archive = getattr(filesystem, "of", None)
        if isinstance(filesystem, CachingFileSystem):
            filesystem, path = filesystem.fs, str(filesystem.fs._strip_protocol(path))
        elif isinstance(filesystem, DirFileSystem):
            filesystem, path = filesystem.fs, str(filesystem._join(path))
        elif isinstance(archive, OpenFile):
            filesystem, path = archive.fs, str(archive.path)
        else:
            return filesystem, path


def _nodes(path: str) -> tuple[Node | None, ...]:
    """Of ``path`` and every folder above it."""
    nodes: list[Node | None] = []
    while True:
        try:
            status = os.stat(path)
            nodes.append((status.st_dev, status.st_ino) if status.st_ino else None)
        except OSError:
            nodes.append(None)
        above = os.path.dirname(path)
        if above == path:
            return tuple(nodes)
        path = above


def _endpoint(filesystem: Any) -> str:
    """What tells servers and accounts of one kind apart, as far as the filesystem says it."""
    options = {**filesystem.storage_options, **(filesystem.storage_options.get("client_kwargs") or {})}
    given = options.get("endpoint_url") or options.get("account_name") or options.get("host") or ""
    if not given and "s3" in filesystem.protocol:
        given = next((os.environ[name] for name in _S3_ENDPOINTS if os.environ.get(name)), "")
    text = str(given).lower()
    parsed = urlsplit(text if "://" in text else f"//{text}")
    host = "localhost" if parsed.hostname in LOOPBACK else parsed.hostname or ""
    port = parsed.port or options.get("port")
    return f"{host}:{port}" if host and port else host
