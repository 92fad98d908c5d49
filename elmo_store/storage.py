"""A store's root on any fsspec filesystem: whole objects in, whole objects or ranges out. Imports fsspec and errors only.

Writing an object is atomic everywhere: an object store's put is; on a local disk the bytes go to a temporary file in the
same folder that then takes the name. Readers therefore see an object whole or not at all.
"""

import json
import os
import posixpath
import secrets
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from elmo_store.errors import StoreError

TEMPORARY_PREFIX = ".writing-"


class Root:
    """A directory or object prefix, by URL. Cheap to make and to pickle: the filesystem is opened when it is first used.

    ``rel`` is everywhere a path relative to the root, with ``/`` between its names.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        """``url``: anything fsspec understands, a plain local path too; ``storage_options``: what its filesystem takes."""
        self.storage_options = dict(storage_options or {})
        text = os.fspath(url)
        if not text:
            raise StoreError("the location of the store is empty: give a folder or a URL")
        if "://" not in text and "::" not in text:
            text = os.path.abspath(text)  # worker processes may have another working folder
        self._location = text.rstrip("/") or "/"
        self._opened: tuple[int, fsspec.AbstractFileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"storage_options": self.storage_options, "_location": self._location, "_opened": None}

    def __repr__(self) -> str:
        return f"Root({self._location!r})"

    def __str__(self) -> str:
        return self._location

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Root):
            return NotImplemented
        return (self._location, self.storage_options) == (other._location, other.storage_options)

    def __hash__(self) -> int:
        return hash(self._location)

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:  # an event loop does not survive a fork
            filesystem, path = url_to_fs(self._location, **self.storage_options)
            self._opened = (pid, filesystem, path.rstrip("/") if path != "/" else path)
        return self._opened[1], self._opened[2]

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        """The fsspec filesystem of this process."""
        return self._open()[0]

    @property
    def is_local(self) -> bool:
        """True on a disk of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    def path(self, rel: str = "") -> str:
        """The filesystem's own path of ``rel``. StoreError if it would leave the root."""
        base = self._open()[1]
        if not rel:
            return base
        return base.rstrip("/") + "/" + _checked(rel)

    def url(self, rel: str = "") -> str:
        """URL of ``rel`` (a plain path on a local disk), as given to the user and to other programs."""
        return self._location if not rel else self._location.rstrip("/") + "/" + _checked(rel)

    def child(self, rel: str) -> "Root":
        """The root of a folder inside this one."""
        return Root(self.url(rel), self.storage_options)

    def put(self, rel: str, data: bytes | bytearray) -> None:
        """Write the object ``rel`` whole, over what may be there."""
        path = self.path(_checked(rel))
        if not self.is_local:
            self.filesystem.pipe_file(path, data)
            return
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}-{name}"[:255])
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise

    def get(self, rel: str) -> bytes:
        """The bytes of ``rel``. FileNotFoundError if it is not there."""
        data: bytes = self.filesystem.cat_file(self.path(_checked(rel)))
        return data

    def get_range(self, rel: str, start: int, stop: int) -> bytes:
        """Bytes ``start … stop`` of ``rel``; fewer at its end. FileNotFoundError if it is not there."""
        data: bytes = self.filesystem.cat_file(self.path(_checked(rel)), start=start, end=stop)
        return data

    def exists(self, rel: str) -> bool:
        """True if there is an object ``rel``; asked of the filesystem anew, no listing of earlier is trusted."""
        return self.size(rel) is not None

    def size(self, rel: str) -> int | None:
        """Bytes of ``rel``; None if there is no such object."""
        self.filesystem.invalidate_cache()
        try:
            info = self.filesystem.info(self.path(rel))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Relative name → bytes of every object below the folder ``prefix``, sorted, from one listing.

        Half-written temporary files are left out. Empty if there is no such folder.
        """
        self.filesystem.invalidate_cache()
        base = self.path()
        folder = self.path(prefix.rstrip("/"))
        try:
            found = self.filesystem.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        head = base.rstrip("/") + "/"
        sizes: dict[str, int] = {}
        for path, info in sorted(found.items()):
            is_temporary = posixpath.basename(path).startswith(TEMPORARY_PREFIX)
            if path.startswith(head) and info["type"] == "file" and not is_temporary:
                sizes[path[len(head) :]] = int(info["size"])
        return sizes

    def list(self, prefix: str = "") -> list[str]:
        """Relative names of every object below the folder ``prefix``, sorted."""
        return list(self.sizes(prefix))

    def remove(self, rel: str) -> None:
        """Remove the object ``rel``; nothing happens if it is not there."""
        try:
            self.filesystem.rm_file(self.path(_checked(rel)))
        except FileNotFoundError:
            return
        self.filesystem.invalidate_cache()

    def remove_tree(self, prefix: str = "") -> None:
        """Remove everything below the folder ``prefix`` (all of the root without one)."""
        folder = self.path(prefix.rstrip("/"))
        if folder in ("", "/") or not folder.strip("/"):
            raise StoreError(f"{self}: refusing to remove the whole filesystem")
        self.filesystem.invalidate_cache()
        try:
            self.filesystem.rm(folder, recursive=True)
        except FileNotFoundError:
            return
        self.filesystem.invalidate_cache()

    def put_json(self, rel: str, value: Any) -> None:
        """Write ``value`` as JSON in UTF-8, keys in the order given, with two spaces of indent."""
        self.put(rel, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def get_json(self, rel: str) -> Any:
        """Parse ``rel`` as JSON. FileNotFoundError if it is not there, ValueError if it is not JSON in UTF-8."""
        return json.loads(self.get(rel).decode("utf-8"))


def _checked(rel: str) -> str:
    """``rel`` if it stays inside the root; StoreError otherwise."""
    path = PurePosixPath(rel)
    if not rel or "\\" in rel or "\0" in rel or path.is_absolute() or ".." in path.parts or str(path) != rel:
        raise StoreError(f"{rel!r} is not a path inside the store: it must be relative, without '..', '.', '\\' or empty names")
    return rel
