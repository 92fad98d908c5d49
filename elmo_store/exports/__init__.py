"""A store's vectors in the files that other programs read: `export`, and the command ``elmo-store export``.

A module a format: hdf5, npz, tensors (safetensors), arrow (Hugging Face datasets), tar (WebDataset). docs/export.md describes
every file.

The names below are imported when they are first used: the command line asks for the formats' names before it needs NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo_store.exports.formats import FORMATS, Format
    from elmo_store.exports.job import Options, Report, export

__all__ = ["FORMATS", "Format", "Options", "Report", "export"]

_HOMES = {"FORMATS": "formats", "Format": "formats", "Options": "job", "Report": "job", "export": "job"}


if not TYPE_CHECKING:  # a type checker sees the imports above, and nothing else

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'elmo_store.exports' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"elmo_store.exports.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
