"""A store's vectors in the files that other programs read: `export`, and the command ``elmo-store export``.

docs/export.md describes every file. `export` is imported when it is first used: the command line asks for the formats' names
before it needs NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from elmo_store.exports.formats import FORMATS, Format, Settings

if TYPE_CHECKING:
    from elmo_store.exports.job import Report, export

__all__ = ["FORMATS", "Format", "Report", "Settings", "export"]


if not TYPE_CHECKING:  # a type checker sees the imports above, and nothing else

    def __getattr__(name: str) -> Any:
        if name not in ("Report", "export"):
            raise AttributeError(f"module 'elmo_store.exports' has no attribute {name!r}")
        return getattr(importlib.import_module("elmo_store.exports.job"), name)
