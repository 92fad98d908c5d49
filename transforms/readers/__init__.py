"""Readers: a module a format, each a pure function from a split's bytes to records in order. No Beam here."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from elmo_store.storage.root import Root
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, ReadSettings, Record, Reject, Split
from transforms.readers.conll import conll_rows
from transforms.readers.csv import csv_rows
from transforms.readers.fields import RawRecord, field_records
from transforms.readers.jsonl import json_rows
from transforms.readers.lines import read_lines, read_text
from transforms.readers.parquet import parquet_rows
from transforms.text import tokenizers

ROWS: Mapping[str, Callable[[ByteSource, ReadSettings], Iterator[RawRecord | Reject]]] = {
    "jsonl": json_rows,
    "json": json_rows,
    "csv": csv_rows,
    "tsv": csv_rows,
    "conllu": conll_rows,
    "conll": conll_rows,
    "parquet": parquet_rows,
}


def open_split(
    split: Split,
    settings: ReadSettings,
    storage_options: Mapping[str, Any] | None = None,
    root: Root | None = None,
    sample_bytes: int | None = None,
) -> tuple[ByteSource, Iterator[Record]]:
    """The records of ``split`` in order, and the source whose counts are whole once they are all read.

    ``root``: the store, which holds what came by standard input; ``sample_bytes``: of the text, about, that are enough.
    InputError, while reading, if the file as a whole is gone, changed or (where damage is not to be rejected) damaged.
    """
    source = ByteSource(
        split, storage_options, encoding=settings.encoding, root=root, sample_bytes=sample_bytes
    )
    tokenizer = tokenizers.get(settings.tokenizer, split.format)
    if split.format in ROWS:
        rows = ROWS[split.format](source, settings)
        records: Iterator[Record] = chain.from_iterable(
            field_records(row, settings, tokenizer) for row in rows
        )
    else:
        records = (read_lines if split.format == "lines" else read_text)(
            source, settings, tokenizer
        )
    return source, _until_damage(records, split) if settings.on_bad_file == "reject" else records


def _until_damage(records: Iterator[Record], split: Split) -> Iterator[Record]:
    """The records; one reject in place of all that comes after damage."""
    position = ordinal = -1  # of the last record
    try:
        for record in records:
            position, ordinal = record.position, record.ordinal
            yield record
    except DamagedInputError as error:
        reason = f"the file can't be read from here on: {error.reason}"
        yield Reject(
            position + 1, reason, "", ordinal=ordinal + 1 if split.format == "text" else -1
        )
