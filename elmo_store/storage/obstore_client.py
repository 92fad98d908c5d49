"""Object stores by obstore, which works outside the interpreter: what `Root` asks of a filesystem, and reading of open files.

Not ``obstore.fsspec``: its puts know no condition, it joins ranges a megabyte apart, fails for all of many objects where one is
missing, and reads no ends of objects.

Storage options are those of s3fs and adlfs. What of them has no counterpart is `UntranslatedError`, by name; whoever opens the
storage takes the fsspec library then.
"""

import json
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import obstore
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from obstore import exceptions
from obstore.store import AzureStore, S3Store

from elmo_store.storage.data import pieces_of, size_of
from elmo_store.storage.failures import translated_errors
from elmo_store.storage.retrying import retry

AT_ONCE = 32  # requests of one call
MOST_IN_ONE_PUT = 100 << 20  # bytes; beyond that parts are put, each …
PART_BYTES, PARTS_AT_ONCE = 16 << 20, 4
# A request of a whole shard over a slow line; obstore's 30 s would end it.
CLIENT = {"timeout": "15min", "connect_timeout": "10s"}
RETRIES: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(minutes=2)}
_HOME = os.getpid()  # obstore's threads live in the process that imported it; after a fork its calls would wait for ever
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS_LAST = timedelta(minutes=5)  # then botocore is asked again; it renews what runs out, and reads no file anew
_S3 = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token", "anon": "skip_signature"}
_S3 |= {"endpoint_url": "endpoint", "requester_pays": "request_payer"}
_S3_CLIENT = {"endpoint_url": "endpoint", "region_name": "region", "aws_access_key_id": "access_key_id"}
_S3_CLIENT |= {"aws_secret_access_key": "secret_access_key", "aws_session_token": "session_token"}
_AZURE = {"account_name": "account_name", "account_key": "account_key", "sas_token": "sas_key"}
_AZURE |= {"tenant_id": "tenant_id", "client_id": "client_id", "client_secret": "client_secret"}
_CONNECTION = {"AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key"}
_CONNECTION |= {"BlobEndpoint": "endpoint"}
T = TypeVar("T")


class UntranslatedError(Exception):
    """What of the options or the environment obstore has no counterpart for."""


@dataclass(frozen=True)
class Settings:
    """How a bucket is opened: obstore's own options as JSON, and the AWS profile whose credentials botocore finds, if any."""

    config: str = field(repr=False)
    ca_file: str = ""
    profile: str | None = None
    from_botocore: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The options by obstore's names."""
        return dict(json.loads(self.config))


def s3_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Of s3fs' options, completed from ``environment`` and botocore's files. UntranslatedError."""
    profile = options.get("profile") or environment.get("AWS_PROFILE")
    config = _renamed(options.get("client_kwargs") or {}, _S3_CLIENT, "client_kwargs.")
    config |= _renamed({key: value for key, value in options.items() if key not in ("client_kwargs", "profile")}, _S3)
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    has_keys = "access_key_id" in config or bool(config.get("skip_signature"))
    if not has_keys and not options.get("profile"):
        has_keys = bool(environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"))
    region = config.get("region") or environment.get("AWS_DEFAULT_REGION")
    endpoint = config.get("endpoint") or next((environment[name] for name in names if environment.get(name)), None)
    if profile or not has_keys:
        found_region, found_endpoint = _of_botocore(profile)
        region, endpoint = region or found_region, endpoint or found_endpoint
    if not region and not endpoint:
        raise UntranslatedError("a bucket whose region is not named (client_kwargs.region_name, AWS_DEFAULT_REGION)")
    config |= {"region": region or "us-east-1"} | ({"endpoint": endpoint} if endpoint else {})
    # TLS sees to it that what arrives is what was sent; a hash of each object for the signature took half of the time of a put.
    config["unsigned_payload"] = not str(config.get("endpoint", "")).startswith("http://")
    return Settings(json.dumps(config), environment.get("AWS_CA_BUNDLE", ""), profile, not has_keys)


def abfs_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Of adlfs' options: a connection string, or an account with a key, a signature or a client's secret. UntranslatedError."""
    rest = {key: value for key, value in options.items() if key != "connection_string"}
    fields = dict(part.split("=", 1) for part in str(options.get("connection_string") or "").split(";") if "=" in part)
    fields = {key: value for key, value in fields.items() if key not in ("DefaultEndpointsProtocol", "EndpointSuffix")}
    config = _renamed(fields, _CONNECTION, "connection_string.") | _renamed(rest, _AZURE)
    if not {"account_key", "sas_key", "client_secret"} & config.keys():
        raise UntranslatedError("an account without account_key, sas_token or client_secret")
    return Settings(json.dumps(config))


def _renamed(options: Mapping[str, Any], names: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    renamed = {}
    for key, value in options.items():
        if value is None:
            continue
        if key not in names or not isinstance(value, str | bool):
            raise UntranslatedError(f"{prefix}{key}")
        renamed[names[key]] = value
    return renamed


def _of_botocore(profile: str | None) -> tuple[str | None, str | None]:
    """Region and endpoint that the user's files name."""
    session = _session(profile)
    return session.get_config_variable("region"), session.get_scoped_config().get("endpoint_url")


def botocore_credentials(profile: str | None) -> Callable[[], dict[str, Any]]:
    """What finds credentials as s3fs does: environment, files, single sign-on, roles of containers and machines."""
    found = _session(profile).get_credentials()
    if found is None:
        raise PermissionError("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role")

    def credentials() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key, "token": frozen.token}
        return keys | {"expires_at": datetime.now(UTC) + _CREDENTIALS_LAST}

    return credentials


def _session(profile: str | None) -> Any:
    try:
        from botocore.session import Session
    except ImportError:
        raise UntranslatedError("credentials that only botocore finds") from None
    return Session(profile=profile)


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
        with translated_errors(path, put=function is obstore.put):
            return function(_client(self.bucket_type, bucket, self._settings), key, *arguments, **options)

    def _call_again(self, function: Callable[..., T], path: str, *arguments: Any, **options: Any) -> T:
        """`_call`, retried where the connection fails: obstore does not retry what may have been done already."""
        return retry(
            partial(self._call, function, path, *arguments, **options),
            local=False, attempts=RETRIES["max_retries"] + 1, transient=lambda error: isinstance(error, ConnectionError),
        )  # fmt: skip

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

        def read(path: str, start: int | None, end: int | None) -> Any:
            try:
                return self._read(path, start, end)
            except Exception as error:
                if on_error == "raise":
                    raise
                return error

        if n < 2:
            return list(map(read, paths, starts, ends))
        with ThreadPoolExecutor(min(AT_ONCE, n)) as pool:
            return list(pool.map(read, paths, starts, ends))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> str:
        """Put an object whole; its stamp. FileExistsError with ``mode`` create if it exists, or an attempt's answer was lost."""
        pieces = [memoryview(piece).cast("B") for piece in pieces_of(value)]  # PyArrow's have signed bytes, which obstore refuses
        return self._put(self._strip_protocol(path), pieces, size_of(value), mode)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Put what a local file holds, in bounded memory; ``mode`` as of `pipe_file`, for which 5 GiB are the most."""
        path, size = self._strip_protocol(rpath), os.path.getsize(lpath)
        if size > MOST_IN_ONE_PUT and mode != "create":
            self._put(path, Path(lpath), size, mode)
            return
        with open(lpath, "rb") as file:  # mapped: its pages come and go while they are sent
            self._put(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"", size, mode)

    def _put(self, path: str, value: Any, size: int, mode: str) -> str:
        in_parts = size > MOST_IN_ONE_PUT and mode != "create"
        answer = self._call_again(
            obstore.put, path, value, mode=mode, use_multipart=in_parts, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        return f"ETag={answer['e_tag']}" if answer["e_tag"] else ""

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
            self._call_again(lambda client, _: obstore.delete(client, [name.partition("/")[2] for name in paths]), paths[0])

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object: within a bucket at the server, otherwise by way of this machine's memory."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        bucket, _slash, key = path2.partition("/")
        if path1.partition("/")[0] == bucket:
            self._call(obstore.copy, path1, key)
        else:
            self.pipe_file(path2, self.cat_file(path1))

    def modified(self, path: str) -> datetime:
        """When an object was put, which DuckDB asks as it opens one."""
        changed: datetime = self.info(path)["LastModified"]
        return changed

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "ObjectFile":
        if mode != "rb":
            raise UnsupportedOperation(f"{path}: objects are put whole")
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
