"""Object stores by obstore, which works outside the interpreter: what `Root` asks of a filesystem, and reading of open files.

Not ``obstore.fsspec``: its puts know no condition, it joins ranges a megabyte apart, fails for all of many objects where one is
missing, and reads no ends of objects.
"""

import mmap
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import obstore
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from obstore import exceptions
from obstore.store import AzureStore, S3Store

from elmo_store.storage.data import pieces_of, size_of
from elmo_store.storage.failures import telling
from elmo_store.storage.object_options import Settings, abfs_settings, botocore_credentials, s3_settings

AT_ONCE = 32  # requests of one call
MOST_IN_ONE_PUT = 100 << 20  # bytes; beyond that parts are put, each …
PART_BYTES, PARTS_AT_ONCE = 16 << 20, 4
# A request of a whole shard over a slow line; obstore's 30 s would end it.
CLIENT = {"timeout": "15min", "connect_timeout": "10s"}
RETRIES = {"max_retries": 5, "retry_timeout": timedelta(minutes=2)}
_HOME = os.getpid()  # obstore's threads live in the process that imported it; after a fork its calls would wait for ever
_STATUS = re.compile(r"status code: (\d{3})")
T = TypeVar("T")
Item = TypeVar("Item")


def works_here() -> bool:
    """Whether this process is the one that imported obstore, and no fork of it."""
    return os.getpid() == _HOME


class ObjectStoreFileSystem(AbstractFileSystem):
    """Objects of the buckets that one set of options opens; threads may share it, processes that are forked may not.

    Errors: FileNotFoundError, FileExistsError, PermissionError; every other is an OSError, which may be gone the next time.
    """

    takes_pieces = True  # whose bytes `pipe_file` does not copy
    cachable = False  # fsspec would keep one a thread; clients, which hold the connections, are kept by `_client`
    bucket_type: ClassVar[Any]
    settings_of: ClassVar[Callable[..., Settings]]

    def __init__(self, **options: Any) -> None:
        """``options``: as s3fs or adlfs takes them. UntranslatedError for those without a counterpart."""
        super().__init__(**options)
        self._settings = type(self).settings_of(options, os.environ)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _call(self, function: Callable[..., T], path: str, *arguments: Any, **options: Any) -> T:
        """``function`` of the bucket's client and of the key. Every request is made here."""
        if not works_here():
            raise OSError(f"{path}: obstore can't be used in a forked process: open the store there")
        bucket, _, key = path.partition("/")
        with telling(path, put=function is obstore.put):
            return function(_client(self.bucket_type, bucket, self._settings), key, *arguments, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of an object, or of a range of it as of a slice; fewer where it ends before."""
        return self._read(self._strip_protocol(path), start, end)

    def _read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if start is None and end is None:
            return self._call(_whole, path)
        if start is not None and start < 0 and end is None:
            return self._call(_tail, path, -start)
        if (start or 0) < 0 or end is None or end < 0:
            size = int(self.info(path)["size"])
            start, end, _step = slice(start, end).indices(size)
        return self._call(_range, path, start or 0, end)

    def cat_ranges(
        self, paths: Sequence[str], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        """`cat_file` of each, all at once; an error in place of its bytes."""
        n = len(paths)
        starts, ends = (list(value) if isinstance(value, Sequence) else [value] * n for value in (starts, ends))
        return _at_once(lambda part: self._read(*part), list(zip(paths, starts, ends, strict=True)), on_error)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """`cat_file` of one, or of each of many by its path."""
        if isinstance(path, str) and not recursive:
            return self.cat_file(path)
        paths = list(self.find(path) if isinstance(path, str) else path)
        return dict(zip(paths, _at_once(self._read, paths, on_error), strict=True))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Put an object whole; FileExistsError with ``mode`` create if there is one."""
        pieces = [memoryview(piece).cast("B") for piece in pieces_of(value)]  # PyArrow's have signed bytes, which obstore refuses
        self._put(self._strip_protocol(path), pieces, size_of(value), mode)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Put what a local file holds, in bounded memory; ``mode`` as of `pipe_file`, for which 5 GiB are the most."""
        path, size = self._strip_protocol(rpath), os.path.getsize(lpath)
        if size > MOST_IN_ONE_PUT and mode != "create":
            self._put(path, Path(lpath), size, mode)
            return
        with open(lpath, "rb") as file:  # mapped: its pages come and go while they are sent
            self._put(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"", size, mode)

    def _put(self, path: str, value: Any, size: int, mode: str) -> None:
        in_parts = size > MOST_IN_ONE_PUT and mode != "create"
        self._call(
            obstore.put, path, value, mode=mode, use_multipart=in_parts, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Of an object, or of a prefix of some as of a folder. FileNotFoundError."""
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        if key:
            try:
                return _described(bucket, self._call(obstore.head, path))
            except FileNotFoundError:
                pass
        self._call(_first_below, path)
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What stands directly in a prefix. FileNotFoundError if nothing does."""
        path = self._strip_protocol(path)
        bucket = path.partition("/")[0]
        listed = self._call(obstore.list_with_delimiter, path)
        entries = [{"name": f"{bucket}/{folder}", "size": 0, "type": "directory"} for folder in listed["common_prefixes"]]
        entries += [_described(bucket, meta) for meta in listed["objects"]]
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else sorted(str(entry["name"]) for entry in entries)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> dict[str, Any] | list[str]:
        """Every object below a prefix, which no name of a folder is."""
        if maxdepth is not None or withdirs:
            found: dict[str, Any] | list[str] = super().find(path, maxdepth, withdirs, detail, **options)
            return found
        path = self._strip_protocol(path)
        bucket = path.partition("/")[0]
        infos = {info["name"]: info for info in (_described(bucket, meta) for meta in self._call(_below, path))}
        return infos if detail else sorted(infos)

    def rm_file(self, path: str) -> None:
        """Remove an object; of one that is not there some servers tell nothing."""
        self._call(obstore.delete, self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove objects of one bucket, or all below a prefix."""
        paths = [self._strip_protocol(name) for name in ([path] if isinstance(path, str) else path)]
        if recursive:
            paths = [name for below in paths for name in self.find(below)]
        if paths:
            self._call(lambda client, _: obstore.delete(client, [name.partition("/")[2] for name in paths]), paths[0])

    def modified(self, path: str) -> datetime:
        """When an object was put."""
        changed: datetime = self.info(path)["LastModified"]
        return changed

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "ObjectFile":
        if mode != "rb":
            raise NotImplementedError(f"{path}: objects are put whole")
        return ObjectFile(self, path, mode, **options)


class S3Objects(ObjectStoreFileSystem):
    """Amazon's and compatible servers."""

    protocol = ("s3", "s3a")
    bucket_type, settings_of = S3Store, s3_settings


class AzureObjects(ObjectStoreFileSystem):
    """Azure's."""

    protocol = ("abfs", "az", "abfss")
    bucket_type, settings_of = AzureStore, abfs_settings


class ObjectFile(AbstractBufferedFile):
    """An object that is read in blocks."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


@lru_cache(32)
def _client(bucket_type: Any, bucket: str, settings: Settings) -> Any:
    """The client of a bucket. It holds connections, and making one takes milliseconds: those of equal options share it."""
    config = settings.values
    endpoint = str(config.get("endpoint", ""))
    client: dict[str, Any] = CLIENT | {"allow_http": endpoint.startswith("http://")}
    if settings.ca_file:
        client["root_certificate"] = Path(settings.ca_file).read_bytes()
    provider = {"credential_provider": botocore_credentials(settings.profile)} if settings.from_botocore else {}
    return bucket_type(bucket, config=config, client_options=client, retry_config=RETRIES, **provider)


def _at_once(work: Callable[[Item], Any], items: Sequence[Item], on_error: str) -> list[Any]:
    """``work`` of each item, in order; errors in their places unless ``on_error`` is raise."""

    def done(item: Item) -> Any:
        try:
            return work(item)
        except Exception as error:
            if on_error == "raise":
                raise
            return error

    if len(items) < 2:
        return [done(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        return list(pool.map(done, items))


def _whole(client: Any, key: str) -> bytes:
    return obstore.get(client, key).bytes().to_bytes()


def _tail(client: Any, key: str, n_bytes: int) -> bytes:
    try:
        return obstore.get(client, key, options={"range": {"suffix": n_bytes}}).bytes().to_bytes()
    except exceptions.BaseError:  # an empty object has no range, and some servers know none from the end
        size = obstore.head(client, key)["size"]
        return _range(client, key, max(0, size - n_bytes), size)


def _range(client: Any, key: str, start: int, stop: int) -> bytes:
    if start >= stop:
        return b""
    try:
        return obstore.get_range(client, key, start=start, end=stop).to_bytes()
    except exceptions.BaseError as error:
        if "416" in _STATUS.findall(str(error)):  # it ends before the first byte
            return b""
        raise


def _below(client: Any, key: str) -> list[Any]:
    return [meta for chunk in obstore.list(client, key or None, chunk_size=1000) for meta in chunk]


def _first_below(client: Any, key: str) -> None:
    if not next(iter(obstore.list(client, key or None, chunk_size=1)), None):
        raise FileNotFoundError


def _described(bucket: str, meta: Any) -> dict[str, Any]:
    """As s3fs names it, so that both have the same stamps."""
    name = f"{bucket}/{meta['path']}"
    return {"name": name, "size": meta["size"], "type": "file", "ETag": meta["e_tag"], "LastModified": meta["last_modified"]}
