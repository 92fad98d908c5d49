"""Which filesystem a location means, opened with options from the environment; where stores may be, and names inside them."""

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from fsspec import AbstractFileSystem, available_protocols, get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import registry

from elmo_store.errors import MissingPackageError, StoreError
from elmo_store.extras import missing_package
from elmo_store.storage.data import TooLargeError, read_regular
from elmo_store.storage.failures import translated_errors

OBSTORE = "ELMO_STORE_OBSTORE"  # the environment variable that, if it is 0, leaves S3 to s3fs
ENVIRONMENT = "env:"  # begins the value of a storage option that an environment variable holds
# Where stores and outputs may be: filesystems on which an object appears whole or not at all.
STORE_PROTOCOLS = frozenset(
    {"file", "local", "memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
)
_log = logging.getLogger(__name__)
_PLACELESS = frozenset(("", ".", ".."))  # names that a path inside a store has none of


def resolved_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """``options`` with the value of the environment variable NAME in place of every string ``env:NAME``, also within tables.

    So secrets need not stand on command lines, in files of settings or in a job's graph: each process looks them up where
    it runs. StoreError for a variable that is not set.
    """

    def resolved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: resolved(member) for name, member in value.items()}
        if not isinstance(value, str) or not value.startswith(ENVIRONMENT):
            return value
        name = value.removeprefix(ENVIRONMENT)
        if name not in os.environ:
            raise StoreError(
                f"the storage options ask for the environment variable {name}, which is not set in this process"
            )
        return os.environ[name]

    return {name: resolved(value) for name, value in (options or {}).items()}


def is_protocol(name: str) -> bool:
    """Whether fsspec knows a filesystem by this name: its own, those of installed packages, and those registered since."""
    return name in available_protocols() or name in registry


def names_filesystem(location: str) -> bool:
    """Whether ``location`` names its filesystem: a URL, or a chain such as ``simplecache::s3://…``; otherwise it is a local path.

    Chains may hold no ``://`` (``dir::zip``); what is not a protocol before ``::`` is the beginning of a file's name.
    """
    return "://" in location or ("::" in location and is_protocol(location.partition("::")[0]))


def open_filesystem(
    location: str, storage_options: Mapping[str, Any] | None = None, *, obstore: bool = False
) -> tuple[Any, str]:  # (AbstractFileSystem, path)
    """The filesystem of ``location``, any URL of fsspec or a path of this machine, and its path there. Errors as fsspec's.

    ``obstore``: by obstore where that is installed and can.
    """
    options = resolved_options(storage_options)
    if not names_filesystem(location):
        return LocalFileSystem(**options), str(LocalFileSystem._strip_protocol(location))
    if obstore and (objects := _object_store(location, options)) is not None:
        return objects, str(objects._strip_protocol(location))
    filesystem: AbstractFileSystem
    try:
        filesystem, path = url_to_fs(location, **options)
    except ImportError as error:
        raise missing_package(error, location) or MissingPackageError(str(error)) from error
    return filesystem, path


def fetched(
    location: str, storage_options: Mapping[str, Any] | None = None, most_bytes: int | None = None
) -> bytes:
    """The bytes of a file at any path or URL that fsspec understands; errors of a local one as `read_regular`'s.

    FileNotFoundError, IsADirectoryError of a local folder, other errors as `failures.translate_error` has them.
    """
    with translated_errors(location):
        if not names_filesystem(location):
            return read_regular(location, most_bytes)
        filesystem, path = open_filesystem(location, storage_options)
        data: bytes = filesystem.cat_file(
            path, **({} if most_bytes is None else {"start": 0, "end": most_bytes + 1})
        )
    if most_bytes is not None and len(data) > most_bytes:
        raise TooLargeError(most_bytes)
    return data


def _object_store(location: str, options: Mapping[str, Any]) -> AbstractFileSystem | None:
    """obstore's filesystem for ``location`` on S3; None where it is not installed, not meant, or can't do what is asked for."""
    scheme, _, path = location.partition("://")
    if (
        scheme not in ("s3", "s3a")
        or os.environ.get(OBSTORE) == "0"
        or find_spec("obstore") is None
    ):
        return None
    from elmo_store.storage import obstore_client

    try:
        if not obstore_client.works_here():
            raise obstore_client.UntranslatedError(
                "a forked process (spawn it to have obstore there)"
            )
        if "//" in path:
            raise obstore_client.UntranslatedError("a path with // in it")
        return obstore_client.ObstoreFileSystem(**options)
    except obstore_client.UntranslatedError as what:
        if find_spec("s3fs") is None:
            raise MissingPackageError(
                f"{location} needs s3fs, which is not installed, as obstore is not for {what}: "
                "pip install '.[s3]' in elmo-store's checkout"
            ) from None
        _log.info("%s is left to s3fs: obstore is not for %s", location, what)
        return None


def check_store_location(location: str) -> None:
    """StoreError if ``location`` names a filesystem that holds no stores, such as a file server. Nothing is opened."""
    if not names_filesystem(location):
        return
    protocol = location.partition("::")[0].partition("://")[0]
    registered = registry.get(
        protocol
    )  # one that a program registered may say that it is as good as one of ours
    names = {protocol, *(protocols_of(registered) if registered is not None else ())}
    if STORE_PROTOCOLS.isdisjoint(names):
        raise StoreError(
            f"{location}: outputs and stores can't be on {protocol}: give a local or mounted folder, s3://, gs:// or abfs://"
        )


def check_client(location: str) -> None:
    """MissingPackageError if the library that opens the URL ``location`` is not installed. Nothing is opened."""
    try:
        get_filesystem_class(location.partition("::")[0].partition("://")[0])
    except ImportError as error:
        raise missing_package(error, location) or MissingPackageError(str(error)) from error


def protocols_of(filesystem: AbstractFileSystem | type[AbstractFileSystem]) -> tuple[str, ...]:
    """The names by which URLs call a filesystem."""
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def kind_of(filesystem: AbstractFileSystem) -> str:
    """What tells kinds of storage apart, whichever library opened it."""
    return protocols_of(filesystem)[0]


def is_inside(rel: str) -> bool:
    """Whether ``rel`` names something inside a root, whatever the filesystem makes of names."""
    return "\\" not in rel and "\0" not in rel and _PLACELESS.isdisjoint(rel.split("/"))


def checked(rel: str) -> str:
    """``rel`` if it stays inside the root; StoreError otherwise."""
    if not is_inside(rel):
        raise StoreError(
            f"{rel!r} is not a path inside the store: it must be relative, without '..', '.', '\\' or empty names"
        )
    return rel
