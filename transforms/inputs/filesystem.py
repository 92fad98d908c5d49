"""Which filesystem the name of an input means."""

import os
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from elmo_store.storage.filesystems import names_filesystem, resolved_options


def filesystem_of(place: str, storage_options: Mapping[str, Any] | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of ``place`` and its path there.

    A file of this machine whose name holds ``::`` is that file, and no chain of filesystems (``zip://a::b.zip``).
    """
    if "::" in place and not is_chained(place):
        return LocalFileSystem(), os.path.abspath(place)
    return url_to_fs(place, **resolved_options(storage_options))


def is_chained(place: str) -> bool:
    """Whether ``place`` is a chain of filesystems: it has ``::`` after the name of one, and is no file here."""
    return "::" in place and names_filesystem(place) and not os.path.lexists(place)
