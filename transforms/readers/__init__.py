"""Readers: a module a format, each a pure function from a split's bytes to records in order. No Beam here."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elmo_store.storage.root import Root
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import Blob, Damage, FileRange, ReadSettings, Record, Reject, Split
from transforms.readers.conll import read_conll, read_conllu
from transforms.readers.csv import csv_rows
from transforms.readers.fields import Row, row_records
from transforms.readers.jsonl import json_rows, jsonl_rows
from transforms.readers.lines import read_lines, read_text
from transforms.readers.parquet import parquet_rows
from transforms.text import tokenizers
from transforms.text.tokenizers import Tokenizer

_READERS: Mapping[str, Callable[[ByteSource, ReadSettings, Tokenizer], Iterator[Record]]] = {
    "lines": read_lines,
    "text": read_text,
    "conllu": read_conllu,
    "conll": read_conll,
}
ROWS: Mapping[str, Callable[[ByteSource, ReadSettings], Iterator[Row | Reject]]] = {
    "jsonl": jsonl_rows,
    "json": json_rows,
    "csv": csv_rows,
    "tsv": csv_rows,
    "parquet": parquet_rows,
}


def open_split(
    split: Split,
    settings: ReadSettings,
    storage_options: Mapping[str, Any] | None = None,
    root: Root | None = None,
    tokenizer: Tokenizer | None = None,
) -> tuple[ByteSource, Iterator[Record]]:
    """The records of ``split`` in order, and the source whose counts are whole once they are all read.

    ``root``: the store, where the split is a blob of it. ``tokenizer``: that of the settings, which splits read together share,
    because it knows what it met; None makes one. InputError, while reading, if the file as a whole is gone, changed or
    damaged; ValueError for an unknown tokenizer.
    """
    source = ByteSource(split, storage_options, encoding=settings.encoding, root=root)
    if isinstance(split, Damage):
        return source, iter([Reject(0, cut_short(split.reason), "")])
    tokenizer = tokenizer or tokenizers.get(settings.tokenizer, split.format)
    if split.format in ROWS:
        records = row_records(ROWS[split.format](source, settings), settings, tokenizer)
    else:
        records = _READERS[split.format](source, settings, tokenizer)
    return source, records if settings.sample == 1 else _sampled(records, split, settings.sample)


def read_split(
    split: Split, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None, root: Root | None = None
) -> Iterator[Record]:
    """The records of ``split`` in order (see `open_split`)."""
    return open_split(split, settings, storage_options, root)[1]


def cut_short(reason: str) -> str:
    """Of the reject that stands for what comes after the damage in a file."""
    return f"the file can't be read from here on: {reason}"


def _sampled(records: Iterator[Record], split: Split, share: float) -> Iterator[Record]:
    """Those records whose place hashes into the first ``share`` of all hashes; a document's sentences stay together."""
    blob = split.path if isinstance(split, Blob) else ""
    start = split.start if isinstance(split, FileRange) else 0
    for record in records:
        key = f"{split.url}\0{blob}\0{start}\0{record.position if record.ordinal < 0 else record.ordinal}"
        if int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) < share * 2**64:
            yield record
