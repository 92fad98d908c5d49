"""What a command reads or writes, as its user named it: a light module, so that a bad path is told at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Location:
    """A file, folder or object prefix."""

    what: str  # it is called in messages: ``output``, ``--weights``
    url: str  # path or URL, anything fsspec understands
    storage_options: Mapping[str, Any] | None = None  # what its filesystem takes
    leaves_out: bool = (
        False  # who reads this folder leaves out the output, which may therefore lie below it
    )

    def __str__(self) -> str:
        return f"{self.what} {self.url}"
