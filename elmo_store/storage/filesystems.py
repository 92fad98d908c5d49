"""Which filesystem a location means, opened: options from the environment, names with ``::``, connections for one caller; and
which names stay inside a store.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from threading import RLock
from typing import Any

from fsspec import AbstractFileSystem, available_protocols
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import registry

from elmo_store.errors import StoreError

OBSTORE = "ELMO_STORE_OBSTORE"  # the environment variable that, if it is 0, leaves object stores to fsspec's own libraries
ENVIRONMENT = "env:"  # begins the value of a storage option that stands in an environment variable
# Filesystems whose writes can be seen half-way, and whose times are of whole seconds: file servers, not object stores.
FILE_SERVERS = frozenset({"hdfs", "arrow_hdfs", "webhdfs", "webHDFS", "sftp", "ssh", "smb", "ftp"})
# Those whose connection is for one caller at a time: of two threads that wait for an answer, one may take the other's.
ONE_CALLER = frozenset({"sftp", "ssh", "ftp"})
# Not Google's: obstore puts by its XML interface, which no server here knows, so nothing could show that it holds.
OBJECT_STORES = {
    **dict.fromkeys(("s3", "s3a"), ("S3Objects", "s3fs")),
    **dict.fromkeys(("abfs", "abfss", "az"), ("AzureObjects", "adlfs")),
}
_log = logging.getLogger(__name__)
_PLACELESS = frozenset(("", ".", ".."))  # names that a path inside a store has none of
_CALLS = (
    "cat_file", "cat_ranges", "info", "ls", "find", "exists", "pipe_file", "mv", "rm_file", "rm", "makedirs",
    "put_file", "get_file",
)  # fmt: skip


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
            raise StoreError(f"the storage options ask for the environment variable {name}, which is not set in this process")
        return os.environ[name]

    return {name: resolved(value) for name, value in (options or {}).items()}


def is_protocol(name: str) -> bool:
    """Whether fsspec knows a filesystem by this name: its own, those of installed packages, and those registered since."""
    return name in available_protocols() or name in registry


def names_filesystem(location: str) -> bool:
    """Whether ``location`` names its filesystem: a URL, or a chain such as ``simplecache::s3://…``; otherwise it is a local path.

    Chains may hold no ``://`` (``dir::zip``); what is no protocol before ``::`` is the beginning of a file's name.
    """
    return "://" in location or ("::" in location and is_protocol(location.partition("::")[0]))


def opened(location: str, storage_options: Mapping[str, Any] | None) -> tuple[Any, str]:  # (AbstractFileSystem, path)
    """The filesystem of ``location``, a URL or an absolute path of this machine, and its path there. Errors as fsspec's."""
    options = resolved_options(storage_options)
    if not names_filesystem(location):
        return LocalFileSystem(**options), location
    if (objects := _object_store(location, options)) is not None:
        return objects, str(objects._strip_protocol(location))
    filesystem, path = url_to_fs(location, **options)
    if not ONE_CALLER.isdisjoint(protocols_of(filesystem)):
        _take_turns(filesystem)
    return filesystem, path


def _object_store(location: str, options: Mapping[str, Any]) -> AbstractFileSystem | None:
    """obstore's filesystem for ``location``; None where it is not installed, not meant, or can't do what is asked for."""
    scheme, _, path = location.partition("://")
    if scheme not in OBJECT_STORES or os.environ.get(OBSTORE) == "0" or find_spec("obstore") is None:
        return None
    from elmo_store.storage import object_store

    name, library = OBJECT_STORES[scheme]
    try:
        if not object_store.works_here():
            raise object_store.UntranslatedError("a forked process (spawn it to have obstore there)")
        if "//" in path or "@" in path.partition("/")[0]:
            raise object_store.UntranslatedError("a path with // or an account in it")
        objects: AbstractFileSystem = getattr(object_store, name)(**options)
        return objects
    except object_store.UntranslatedError as what:
        if find_spec(library) is None:
            raise StoreError(
                f"{location}: obstore is not for {what}; {library} is not installed: pip install {library}"
            ) from None
        _log.info("%s is left to fsspec's library: obstore is not for %s", location, what)
        return None


def is_file_server(filesystem: AbstractFileSystem) -> bool:
    """Whether an object is written there by a move onto its name, and its time tells no two writes of a second apart."""
    return not FILE_SERVERS.isdisjoint(protocols_of(filesystem))


def protocols_of(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    """The names by which URLs call a filesystem."""
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def kind_of(filesystem: AbstractFileSystem) -> str:
    """What tells kinds of storage apart, whichever library opened it."""
    return protocols_of(filesystem)[0]


def _take_turns(filesystem: AbstractFileSystem) -> None:
    """Let one caller at a time in; fsspec gives the same instance to whoever asks for the same."""
    if getattr(filesystem, "_elmo_store_turn", None) is not None:
        return
    turn = filesystem._elmo_store_turn = RLock()

    def in_turn(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def called(*args: Any, **options: Any) -> Any:
            with turn:
                _reconnect(filesystem)
                return call(*args, **options)

        return called

    for name in _CALLS:
        setattr(filesystem, name, in_turn(getattr(filesystem, name)))


def _reconnect(filesystem: AbstractFileSystem) -> None:
    """Connect to an SFTP server anew where the connection is gone: fsspec has one for the life of the process."""
    client: Any = getattr(filesystem, "client", None)
    if hasattr(client, "get_transport"):
        transport = client.get_transport()
        if transport is None or not transport.is_active():
            filesystem._connect()


def is_azure(filesystem: AbstractFileSystem) -> bool:
    """Whether it is Azure's: its client takes a bytearray for a series of numbers, and it knows no ranges from the end."""
    return "abfs" in protocols_of(filesystem)


def is_inside(rel: str) -> bool:
    """Whether ``rel`` names something inside a root, whatever the filesystem makes of names."""
    return "\\" not in rel and "\0" not in rel and _PLACELESS.isdisjoint(rel.split("/"))


def checked(rel: str) -> str:
    """``rel`` if it stays inside the root; StoreError otherwise."""
    if not is_inside(rel):
        raise StoreError(f"{rel!r} is not a path inside the store: it must be relative, without '..', '.', '\\' or empty names")
    return rel
