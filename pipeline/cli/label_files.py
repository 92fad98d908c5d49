"""Text files that options name, line by line."""

from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

from elmo_store.storage.failures import translated_errors


class LabelError(ValueError):
    """A file that can't be used; names the file and the line."""


def lines_of(url: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a file in UTF-8 without their ends, numbered from 1. LabelError, OSError.

    It may be on any fsspec URL, and compressed (gzip, bzip2, xz, zstd, by its name).
    """
    number = 0
    how = {"encoding": "utf-8-sig", "compression": "infer", "newline": "\n", **(storage_options or {})}
    try:
        with translated_errors(url), fsspec.open(url, "rt", **how) as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LabelError(f"{url}, after line {number}: not UTF-8 ({error.reason}): convert the file") from error
