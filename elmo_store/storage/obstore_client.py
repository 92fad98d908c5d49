"""S3 by obstore, which works outside the interpreter: what `Root` asks of a filesystem, and reading of open files.

Not ``obstore.fsspec``: its puts know no condition, it joins ranges a megabyte apart, fails for all of many objects where one is
missing, and reads no ends of objects.

Storage options are those of s3fs. What of them has no counterpart is `UntranslatedError`, by name; then s3fs takes its place.
"""

import json
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache, partial
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, TypeVar

import obstore
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from obstore import exceptions
from obstore.store import S3Store

from elmo_store.storage.data import pieces_of, size_of
from elmo_store.storage.failures import retry, translated_errors

AT_ONCE = 32  # requests of one call
MOST_IN_ONE_PUT = 100 << 20  # bytes; beyond that parts are put, each …
PART_BYTES, PARTS_AT_ONCE = 16 << 20, 4
# A request of a whole shard over a slow line; obstore's 30 s would end it.
CLIENT = {"timeout": "15min", "connect_timeout": "10s"}
RETRIES: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(minutes=2)}
_HOME = os.getpid()  # obstore's threads live in the process that imported it; after a fork its calls would wait for ever
_STATUS = re.compile(r"status code: (\d{3})")
# Environment variables that say where obstore finds credentials.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
_S3 = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
}
_S3 |= {"endpoint_url": "endpoint", "requester_pays": "request_payer"}
_S3_CLIENT = {
    "endpoint_url": "endpoint",
    "region_name": "region",
    "aws_access_key_id": "access_key_id",
}
_S3_CLIENT |= {"aws_secret_access_key": "secret_access_key", "aws_session_token": "session_token"}
T = TypeVar("T")


class UntranslatedError(Exception):
    """What of the options or the environment obstore has no counterpart for."""


def s3_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """obstore's own settings, of s3fs' options and of ``environment``. UntranslatedError.

    obstore finds keys in the environment and the roles of containers; botocore, and so s3fs, also finds profiles, single sign-on
    and the roles of machines.
    """
    config = _renamed(options.get("client_kwargs") or {}, _S3_CLIENT, "client_kwargs.")
    config |= _renamed(
        {key: value for key, value in options.items() if key != "client_kwargs"}, _S3
    )
    named = not environment.get("AWS_PROFILE") and any(
        environment.get(name) for name in _CREDENTIALS
    )
    if not named and not {"access_key_id", "skip_signature"} & config.keys():
        raise UntranslatedError("credentials that only botocore finds")
    region = (
        config.get("region")
        or environment.get("AWS_DEFAULT_REGION")
        or environment.get("AWS_REGION")
    )
    endpoint = (
        config.get("endpoint")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    if not region and not endpoint:
        raise UntranslatedError(
            "a bucket whose region is not named (client_kwargs.region_name, AWS_DEFAULT_REGION)"
        )
    config |= {"region": region or "us-east-1"} | ({"endpoint": endpoint} if endpoint else {})
    # TLS sees to it that what arrives is what was sent; a hash of each object for the signature took half of the time of a put.
    config["unsigned_payload"] = not str(config.get("endpoint", "")).startswith("http://")
    return config


def _renamed(
    options: Mapping[str, Any], names: Mapping[str, str], prefix: str = ""
) -> dict[str, Any]:
    renamed = {}
    for key, value in options.items():
        if value is None:
            continue
        if key not in names or not isinstance(value, str | bool):
            raise UntranslatedError(f"{prefix}{key}")
        renamed[names[key]] = value
    return renamed


def works_here() -> bool:
    """Whether this process is the one that imported obstore, and no fork of it."""
    return os.getpid() == _HOME


class ObstoreFileSystem(AbstractFileSystem):
    """Objects of the buckets that one set of options opens; threads may share it, processes that are forked may not.

    Errors: FileNotFoundError, FileExistsError, PermissionError; every other is an OSError, which may be gone the next time.
    """

    takes_pieces = True  # whose bytes `pipe_file` does not copy
    cachable = False  # fsspec would keep one a thread; clients, which hold the connections, are kept by `_client`
    protocol = ("s3", "s3a")

    def __init__(self, **options: Any) -> None:
        """``options``: as s3fs takes them. UntranslatedError for those without a counterpart."""
        super().__init__(**options)
        self._config = json.dumps(s3_settings(options, os.environ))

    def __repr__(self) -> str:
        return "ObstoreFileSystem()"

    def _call(self, function: Callable[..., T], path: str, *arguments: Any, **options: Any) -> T:
        """``function`` of the bucket's client and of the key. Every request is made here."""
        if not works_here():
            raise OSError(
                f"{path}: obstore can't be used in a forked process: open the store there"
            )
        bucket, _, key = path.partition("/")
        with translated_errors(path, put=function is obstore.put):
            return function(_client(bucket, self._config), key, *arguments, **options)

    def _call_again(
        self, function: Callable[..., T], path: str, *arguments: Any, **options: Any
    ) -> T:
        """`_call`, retried where the connection fails: obstore does not retry what may have been done already."""
        return retry(
            partial(self._call, function, path, *arguments, **options),
            local=False, attempts=RETRIES["max_retries"] + 1, transient=lambda error: isinstance(error, ConnectionError),
        )  # fmt: skip

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of an object, its last ``-start`` bytes, or those from ``start`` to ``end``; fewer where it ends before."""
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self._call(_whole, path)
        if start is not None and start < 0 and end is None:
            return self._call(_tail, path, -start)
        return self._call(_range, path, start or 0, end)

    def cat_ranges(
        self, paths: Sequence[str], starts: Sequence[Any], ends: Sequence[Any], **_: Any
    ) -> list[Any]:
        """`cat_file` of each, all at once; an error in place of its bytes."""

        def read(path: str, start: int | None, end: int | None) -> Any:
            try:
                return self.cat_file(path, start, end)
            except Exception as error:
                return error

        if len(paths) < 2:
            return list(map(read, paths, starts, ends))
        with ThreadPoolExecutor(min(AT_ONCE, len(paths))) as pool:
            return list(pool.map(read, paths, starts, ends))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> str:
        """Put an object whole; its stamp. FileExistsError with ``mode`` create if it exists, or an attempt's answer was lost."""
        pieces = [
            memoryview(piece).cast("B") for piece in pieces_of(value)
        ]  # PyArrow's have signed bytes, which obstore refuses
        return self._put(self._strip_protocol(path), pieces, size_of(value), mode)

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any
    ) -> None:
        """Put what a local file holds, in bounded memory; ``mode`` as of `pipe_file`, for which 5 GiB are the most."""
        size = os.path.getsize(lpath)
        with open(lpath, "rb") as file:  # mapped: its pages come and go while they are sent
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            self._put(self._strip_protocol(rpath), data, size, mode)

    def _put(self, path: str, value: Any, size: int, mode: str) -> str:
        in_parts = size > MOST_IN_ONE_PUT and mode != "create"
        answer = self._call_again(
            obstore.put,
            path,
            value,
            mode=mode,
            use_multipart=in_parts,
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_AT_ONCE,
        )
        return f"ETag={answer['e_tag']}" if answer["e_tag"] else ""

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Of an object. FileNotFoundError."""
        path = self._strip_protocol(path)
        return _described(path.partition("/")[0], self._call(obstore.head, path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What stands directly in a prefix. FileNotFoundError if nothing does."""
        path = self._strip_protocol(path)
        bucket = path.partition("/")[0]
        listed = self._call(obstore.list_with_delimiter, path)
        entries = [
            {"name": f"{bucket}/{folder}", "size": 0, "type": "directory"}
            for folder in listed["common_prefixes"]
        ]
        entries += [_described(bucket, meta) for meta in listed["objects"]]
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else sorted(str(entry["name"]) for entry in entries)

    def find(self, path: str, detail: bool = False, **_: Any) -> dict[str, Any] | list[str]:
        """Every object below a prefix, which no name of a folder is."""
        path = self._strip_protocol(path)
        bucket = path.partition("/")[0]
        infos = {
            info["name"]: info
            for info in (_described(bucket, meta) for meta in self._call(_below, path))
        }
        return infos if detail else sorted(infos)

    def rm_file(self, path: str) -> None:
        """Remove an object; of one that is not there some servers tell nothing."""
        self._call(obstore.delete, self._strip_protocol(path))

    def rm(self, path: Sequence[str], **_: Any) -> None:
        """Remove objects of one bucket."""
        paths = [self._strip_protocol(name) for name in path]
        if paths:
            self._call_again(
                lambda client, _: obstore.delete(
                    client, [name.partition("/")[2] for name in paths]
                ),
                paths[0],
            )

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object: within a bucket at the server, otherwise by way of this machine's memory."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        bucket, _slash, key = path2.partition("/")
        if path1.partition("/")[0] == bucket:
            self._call(obstore.copy, path1, key)
        else:
            self.pipe_file(path2, self.cat_file(path1))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "ObjectFile":
        if mode != "rb":
            raise UnsupportedOperation(f"{path}: objects are put whole")
        return ObjectFile(self, path, mode, **options)


class ObjectFile(AbstractBufferedFile):
    """An object that is read in blocks."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


@lru_cache(32)
def _client(bucket: str, config: str) -> Any:
    """The client of a bucket. It holds connections, and making one takes milliseconds: those of equal options share it."""
    settings = json.loads(config)
    client: dict[str, Any] = CLIENT | {
        "allow_http": str(settings.get("endpoint", "")).startswith("http://")
    }
    if ca_file := os.environ.get("AWS_CA_BUNDLE"):
        client["root_certificate"] = Path(ca_file).read_bytes()
    kind: Any = S3Store  # its types are of literals
    return kind(bucket, config=settings, client_options=client, retry_config=RETRIES)


def _whole(client: Any, key: str) -> bytes:
    return obstore.get(client, key).bytes().to_bytes()


def _tail(client: Any, key: str, n_bytes: int) -> bytes:
    try:
        return obstore.get(client, key, options={"range": {"suffix": n_bytes}}).bytes().to_bytes()
    except (
        exceptions.BaseError
    ):  # an empty object has no range, and some servers know none from the end
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


def _described(bucket: str, meta: Any) -> dict[str, Any]:
    """As s3fs names it, so that both have the same stamps."""
    name = f"{bucket}/{meta['path']}"
    return {
        "name": name,
        "size": meta["size"],
        "type": "file",
        "ETag": meta["e_tag"],
        "LastModified": meta["last_modified"],
    }
