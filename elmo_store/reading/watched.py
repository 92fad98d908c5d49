"""The root of a store that is open: it notices when another store took the store's place.

Why no row of another store is ever given out for one of this store:

- Whoever replaces a store changes its manifest before anything else: ``--overwrite`` first says there that the store is
  incomplete, and removes and writes objects afterwards (`pipeline.jobs.output.clear`). So as long as the manifest is the one that
  was opened, no object of another store is there.
- Readers look at the manifest after they have opened, or fetched, an object, never before. If it is the one that was opened, it
  was so when the object was opened: the object is this store's. Files of a local disk that stay open are read on as they were,
  since writers put other files in the place of old ones, and write into none.
- A look at a local disk is one ``stat``. On object stores it is a request, so one look holds for `LOOK_SECONDS`, counted from
  before it was made; in return a writer waits `REPLACE_SECONDS`, which is more, between changing the manifest of a complete store
  and writing the first object of its own. (A store that was replaced by other means, such as a copy from elsewhere, is noticed
  at the next look.) Where an object is missing or damaged, and in an unfinished store, nothing is taken from an earlier look.
- Caches hold what was read before such a look, so what they hold is this store's.

A manifest that was put again with the same contents is not another one: it names the same bytes by their checksums.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from elmo_store.errors import StoreError, StoreNotFoundError, StoreReplacedError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, own_sha256, read_manifest
from elmo_store.storage.root import Root

P = ParamSpec("P")
T = TypeVar("T")
Seen = tuple[int, int] | float | None
LOOK_SECONDS = 1.0  # that a look at the manifest holds, where it is a request
REPLACE_SECONDS = 2.0  # between changing a manifest and the first object of another store there


def _confirmed(read: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method of `Root` that reads, of the store that was opened: another one is noticed when all is read."""

    @wraps(read)
    def confirmed(self: "StoreRoot", *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = getattr(Root, read.__name__)(self, *args, **kwargs)  # as it is at the call, like super()
        self.confirm()
        return value

    return confirmed


class StoreRoot(Root):
    """The root of a store that was opened. What it reads raises StoreReplacedError where another store stands, or none."""

    def __init__(self, root: Root, manifest: Manifest, seen: Seen = None) -> None:
        """``manifest``: of the store that was opened. ``seen``: what a look said before it was read, see `opened_store`."""
        super().__init__(str(root), root.storage_options)
        self._whole, self._identity = manifest.complete, _identity(manifest, manifest.complete)
        self._file = _file_of(root)
        self._seen = seen

    def __getstate__(self) -> dict[str, Any]:
        # Another process, maybe of another machine, looks for itself.
        own = {"_whole": self._whole, "_identity": self._identity, "_file": self._file, "_seen": None}
        return super().__getstate__() | own

    def confirm(self, *, now: bool = False) -> None:
        """StoreReplacedError unless the store that was opened stands here; ``now``: nothing is taken from an earlier look."""
        seen = _look(self._file)
        if isinstance(seen, float) and isinstance(self._seen, float):
            known = self._whole and not now and seen - self._seen < LOOK_SECONDS
        else:
            known = seen is not None and seen == self._seen
        if not known:
            self._compare()
            self._seen = seen

    def _compare(self) -> None:
        remedy = "open it again; what was read before stays as it was"
        try:
            current = read_manifest(Root(str(self), self.storage_options))
        except StoreNotFoundError as error:
            gone = f"the store at {self} was removed, or is being replaced, since it was opened: {remedy}"
            raise StoreReplacedError(gone) from error
        except StoreError as error:
            raise StoreReplacedError(f"the store at {self} was replaced since it was opened ({error}): {remedy}") from error
        if _identity(current, self._whole) != self._identity:
            raise StoreReplacedError(f"the store at {self} was replaced, or is being replaced, since it was opened: {remedy}")

    get = _confirmed(Root.get)
    get_many = _confirmed(Root.get_many)
    get_tails = _confirmed(Root.get_tails)
    read_ranges = _confirmed(Root.read_ranges)
    crc32c = _confirmed(Root.crc32c)


def opened_store(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> tuple[StoreRoot, Manifest]:
    """The store at ``url``, complete or not: its root, and its manifest. Errors as `read_manifest`'s."""
    root = Root(url, storage_options)
    seen = _look(_file_of(root))
    manifest = read_manifest(root)
    return StoreRoot(root, manifest, seen), manifest


def _file_of(root: Root) -> str | None:
    """The manifest's path on a local disk; None elsewhere."""
    return root.path(layout.MANIFEST) if root.is_local else None


def _look(file: str | None) -> Seen:
    """Which file the manifest is (inode, time in ns), before it is read; None if nobody can say. Elsewhere the time."""
    if file is None:
        return time.monotonic()
    try:
        status = os.stat(file)
    except OSError:  # whoever reads it says what is wrong
        return None
    return status.st_ino, status.st_mtime_ns


def _identity(manifest: Manifest, whole: bool) -> str:
    """A hash of what tells a store from another one. An unfinished store (not ``whole``) may have been completed since."""
    if not whole:
        job = {name: value for name, value in manifest.job.items() if name != "device"}  # "auto" until workers said what it is
        manifest = replace(manifest, complete=False, objects=(), checksums=None, software={}, job=job)
    return own_sha256(manifest.to_json())
