"""Objects of an object store, by a client with fsspec's methods: fsspec's own, or `obstore_client`. Puts are atomic there.

There are no folders and no half-written files: what is done with those on a disk does nothing here.
"""

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any

from elmo_store.storage.data import (
    TEMPORARY_PREFIX,
    Before,
    Data,
    Listed,
    Range,
    ShortReadError,
    TooLargeError,
    crc32c_digits,
    joined,
    merged,
    nothing,
)
from elmo_store.storage.failures import TranslatingCalls, translate_error
from elmo_store.storage.filesystems import protocols_of

_STAMPS = (
    "ETag",
    "etag",
    "md5Hash",
    "checksum",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)


class ObjectStore:
    """The objects below ``folder`` of ``filesystem``; errors name them by their place below ``url``."""

    def __init__(self, filesystem: Any, folder: str, url: str) -> None:
        self._takes_pieces = getattr(filesystem, "takes_pieces", False)
        self._calls: Any = filesystem if self._takes_pieces else TranslatingCalls(filesystem)
        self._folder, self._url, self._is_azure = folder, url, "abfs" in protocols_of(filesystem)
        # What keeps s3fs from asking for an object's size before it asks for the object.
        self._one_request = {"max_concurrency": 1} if "s3" in protocols_of(filesystem) else {}

    def _path(self, rel: str) -> str:
        return self._folder.rstrip("/") + "/" + rel.rstrip("/") if rel else self._folder

    def get(self, rel: str, most_bytes: int | None = None) -> bytes:
        asked = {} if most_bytes is None else {"start": 0, "end": most_bytes + 1}
        data: bytes = self._calls.cat_file(self._path(rel), **asked, **self._one_request)
        if most_bytes is not None and len(data) > most_bytes:
            raise TooLargeError(most_bytes, rel)
        return data

    def crc32c(self, rel: str) -> str:
        return crc32c_digits(self.get(rel))

    def get_many(self, rels: Sequence[str], most_bytes: int | None = None) -> list[bytes]:
        if len(rels) < 2:
            return [self.get(rel, most_bytes) for rel in rels]
        start, stop = (None, None) if most_bytes is None else (0, most_bytes + 1)
        fetched = self._fetch(rels, [start] * len(rels), [stop] * len(rels), **self._one_request)
        for rel, data in zip(rels, fetched, strict=True):
            if most_bytes is not None and len(data) > most_bytes:
                raise TooLargeError(most_bytes, rel)
        return fetched

    def tails(self, tails: Mapping[str, int]) -> dict[str, bytes]:
        starts = [-n_bytes for n_bytes in tails.values()]
        if self._is_azure:  # which knows no ranges from the end
            for i, (rel, n_bytes) in enumerate(tails.items()):
                if (stat := self.stat(rel)) is None:
                    raise FileNotFoundError(f"{self._url}/{rel}")
                starts[i] = max(0, stat.size - n_bytes)
        return dict(zip(tails, self._fetch(list(tails), starts, [None] * len(starts)), strict=True))

    def ranges(self, ranges: Sequence[Range]) -> None:
        groups = merged(ranges)
        stops = [max(piece.stop for piece in group) for group in groups]
        fetched = self._fetch(
            [group[0].rel for group in groups], [group[0].start for group in groups], stops
        )
        for group, stop, data in zip(groups, stops, fetched, strict=True):
            if len(data) < stop - group[0].start:
                raise ShortReadError(group[0].rel, f"ends before byte {stop}")
            view = memoryview(data)
            for piece in group:
                offset = piece.start - group[0].start
                piece.into[:] = view[offset : offset + piece.into.nbytes]

    def _fetch(
        self, rels: Sequence[str], starts: Sequence[Any], stops: Sequence[Any], **options: Any
    ) -> list[bytes]:
        """Ranges of bytes, all requested at once."""
        paths = [self._path(rel) for rel in rels]
        fetched: list[Any] = self._calls.cat_ranges(
            paths, starts, stops, on_error="return", **options
        )
        for rel, data in zip(rels, fetched, strict=True):
            if isinstance(data, FileNotFoundError):
                raise FileNotFoundError(f"{self._url}/{rel}") from data
            if isinstance(data, Exception):
                error = translate_error(data, f"{self._url}/{rel}")
                raise error from (
                    None if error is data else data
                )  # an error that is its own cause has causes without end
        return fetched

    def stat(self, rel: str) -> Listed | None:
        self._calls.invalidate_cache()
        try:
            info = self._calls.info(
                self._path(rel)
            )  # not ``exists``, which takes any failure for a no
        except FileNotFoundError:
            return None
        return _listed(info) if info["type"] == "file" else None

    def listed(self, prefix: str) -> dict[str, Listed]:
        self._calls.invalidate_cache()
        try:
            infos = self._calls.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return {}
        head = self._folder.rstrip("/") + "/"
        return {
            path[len(head) :]: _listed(info)
            for path, info in sorted(infos.items())
            if path.startswith(head)
            and info["type"] == "file"
            and not posixpath.basename(path).startswith(TEMPORARY_PREFIX)
        }

    def names(self, folder: str) -> list[str]:
        self._calls.invalidate_cache()
        try:
            paths = self._calls.ls(self._path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (posixpath.basename(path.rstrip("/")) for path in paths)
        return sorted(name for name in names if name and not name.startswith(TEMPORARY_PREFIX))

    def put(
        self, rel: str, data: Data | Path, before: Before = nothing, *, link: bool = False
    ) -> str:
        answer = self._put(rel, data, before)  # obstore's is a stamp, s3fs' what the server says
        if isinstance(answer, Mapping) and answer.get("ETag"):
            return f"ETag={answer['ETag']}"
        return answer if isinstance(answer, str) else ""

    def _put(self, rel: str, data: Data | Path, before: Before, **mode: str) -> Any:
        if isinstance(data, Path):
            before()
            return self._calls.put_file(str(data), self._path(rel), **mode)
        if not self._takes_pieces:
            data = (
                bytes(joined(data)) if self._is_azure else joined(data)
            )  # its client takes a bytearray for numbers
        before()
        return self._calls.pipe_file(self._path(rel), data, **mode)

    def put_new(self, rel: str, data: Data | Path, before: Before = nothing) -> bool:
        put = self.stat(rel) is None
        if put:
            try:
                self._put(rel, data, before, mode="create")
            except OSError:  # FileExistsError, but some servers' clients name it otherwise
                if self.stat(rel) is None:
                    raise
                put = False
        if not isinstance(data, bytes | bytearray):  # too large to be read back
            return put
        return self.get(rel) == data  # by this attempt, or by one whose answer was lost

    def remove(self, rels: Sequence[str], before: Before = nothing) -> None:
        before()
        self._remove([self._path(rel) for rel in rels])

    def _remove(self, paths: Sequence[str]) -> None:
        try:
            if any(map(has_magic, paths)):  # names, which fsspec's ``rm`` takes for patterns
                raise FileNotFoundError
            self._calls.rm(paths)
        except FileNotFoundError:  # one was removed by an attempt whose answer was lost
            for path in paths:
                with suppress(FileNotFoundError):
                    self._calls.rm_file(path)
        self._calls.invalidate_cache()

    def remove_tree(self, prefix: str, before: Before = nothing) -> None:
        before()
        self._calls.invalidate_cache()
        with suppress(FileNotFoundError):
            self._remove(self._calls.find(self._path(prefix)))

    def remove_unfinished(self, prefix: str, but: str = "", before: Before = nothing) -> None:
        before()

    def remove_unfinished_of(self, rels: Sequence[str], before: Before = nothing) -> None:
        before()

    def remove_empty(self, prefix: str, before: Before = nothing) -> None:
        before()

    def sweep(self, folder: str, name: str = "") -> None:
        pass

    def flush(self) -> None:
        pass


def _listed(info: Mapping[str, Any]) -> Listed:
    return Listed(
        int(info["size"]), next((f"{name}={info[name]}" for name in _STAMPS if info.get(name)), "")
    )
