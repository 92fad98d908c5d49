"""Helpers of the reading tests: splits of a file, and its records as plain values."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transforms.inputs.records import ReadSentence, ReadSettings, Record, Reject, Split
from transforms.readers import open_split
from transforms.stages.split import plan_splits


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def one_split(
    path: Path, input_format: str = "auto", settings: ReadSettings | None = None
) -> Split:
    (split,) = plan_splits([str(path)], input_format, settings)
    return split


def read_split(
    split: Split, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Record]:
    return open_split(split, settings, storage_options)[1]


def records(
    path: Path, input_format: str = "auto", settings: ReadSettings | None = None
) -> list[Record]:
    settings = settings or ReadSettings()
    return list(read_split(one_split(path, input_format, settings), settings))


def tokens(found: list[Record]) -> list[list[str]]:
    return [list(record.tokens) if isinstance(record, ReadSentence) else [] for record in found]


def rejects(found: list[Record]) -> list[Reject]:
    return [record for record in found if isinstance(record, Reject)]
