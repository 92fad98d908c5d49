"""Whether what is written or removed overlaps what is read: by what stands there, not by how it is spelled.

On this machine links, mounts and other spellings lead to the same folder; elsewhere bucket and key count, whichever server has
them. What can't be distinguished is taken for the same.
"""

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from fsspec.core import OpenFile
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import OverlapError
from elmo_store.storage.filesystems import kind_of, open_filesystem
from elmo_store.storage.location import Location

LOCAL = "local"
SAME, INSIDE, CONTAINS = "is the same as", "lies inside", "contains"
Node = tuple[int, int]  # device and inode


@dataclass(frozen=True)
class ResolvedLocation:
    """A location, resolved."""

    shown: str  # as its user wrote it
    kind: str  # of filesystem
    parts: tuple[str, ...]  # names of the path, links resolved; on object stores bucket first
    nodes: tuple[
        Node | None, ...
    ] = ()  # of this machine's path (first) and the folders above it; None for what does not exist


def relation(first: ResolvedLocation, second: ResolvedLocation) -> str | None:
    """How ``first`` lies to ``second``, in words; None where they are apart. Pure."""
    if _is_below(first, second):
        return SAME if _is_below(second, first) else INSIDE
    return CONTAINS if _is_below(second, first) else None


def _is_below(inner: ResolvedLocation, outer: ResolvedLocation) -> bool:
    """Whether ``inner`` lies in ``outer``, or is the same."""
    node = outer.nodes[0] if outer.nodes else None
    below = inner.parts[: len(outer.parts)] == outer.parts or (
        node is not None and node in inner.nodes
    )
    return below and inner.kind == outer.kind


def resolved(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> ResolvedLocation:
    """What ``location`` means, anything fsspec understands. It need not exist. Errors as those of the filesystem."""
    shown = os.fspath(location)
    filesystem, path = _innermost(*open_filesystem(shown, storage_options, obstore=True))
    if isinstance(filesystem, LocalFileSystem):
        real = os.path.realpath(path)
        parts = tuple(part for part in real.split(os.sep) if part)
        return ResolvedLocation(shown, LOCAL, parts, _nodes(real))
    parts = tuple(part for part in posixpath.normpath("/" + path).split("/") if part)
    return ResolvedLocation(shown, kind_of(filesystem), parts)


def resolved_locations(location: Location) -> tuple[ResolvedLocation, ...]:
    """Where ``location`` is, and where links directly in that folder lead: a store's folders may stand on another disk."""
    target = resolved(location.url, location.storage_options)
    if target.kind != LOCAL:
        return (target,)
    folder = os.sep + os.sep.join(target.parts)
    links = (
        [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
        if os.path.isdir(folder)
        else []
    )
    return (target, *map(resolved, sorted(links)))


def check_apart(written: Location, reads: Iterable[Location]) -> None:
    """OverlapError if ``written`` overlaps any of ``reads``; nothing is touched. Other errors as those of the filesystems."""
    outputs = resolved_locations(written)
    for read in reads:
        for source, output in product(resolved_locations(read), outputs):
            overlap = relation(output, source)
            if overlap is not None and not (overlap == INSIDE and read.leaves_out):
                raise OverlapError(
                    f"{written.what} {output.shown}", overlap, f"{read.what} {source.shown}"
                )


def check_outside(
    written: Location,
    what: str,
    urls: Iterable[str],
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """OverlapError if one of the files ``urls`` (full names; ``what``: they are) lies in ``written``, also by a link."""
    outputs = resolved_locations(written)
    inside: dict[str, bool] = {}  # files are many, folders few
    for url in urls:
        name = os.path.realpath(url) if os.path.islink(url) else url
        folder = name if "::" in name else name.rpartition("/")[0] or "/"
        if folder not in inside:
            source = resolved(folder, storage_options)
            inside[folder] = any(_is_below(source, output) for output in outputs)
        if inside[folder]:
            raise OverlapError(str(written), CONTAINS, f"{what} {url}")


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
