"""The sample of an input by which the types of its fields are found: the first records of some of its files.

It depends on the input alone: not on how files are cut into splits, nor on who reads them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from elmo_store.format.fields import KeptField, check_fields
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings, Reject, Split, WholeFile, split_as
from transforms.readers import ROWS
from transforms.readers.conll import sampled_words
from transforms.readers.field_types import FieldTypes, SampledRecord
from transforms.readers.fields import NAME_SHOWN, NAMES_SHOWN, sampled
from transforms.readers.parquet import parquet_names, parquet_rows

SAMPLED_FILES = 16
SAMPLED_RECORDS = 1000  # of each
SAMPLED_CHARACTERS = 1 << 22  # of the records of each, about
WORD_FORMATS = ("conllu", "conll")
SPELT_FORMATS = ("csv", "tsv")  # whose values are all text


def find_fields(
    splits: Sequence[Split],
    settings: ReadSettings,
    names: Mapping[str, str],
    *,
    every: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[KeptField, ...]:
    """The fields of these names, each under its new one, and with ``every`` all others that the sample has, with their types.

    ``splits`` begin with the beginning of their files. InputError for what can't be read, a name that no record of the sample
    has, and one that can't be a column's.
    """
    files = list({split.url: split for split in reversed(splits) if split.format in (*ROWS, *WORD_FORMATS)}.values())[::-1]
    n = min(len(files), SAMPLED_FILES)
    types = FieldTypes()
    for file in (files[round(i * (len(files) - 1) / max(1, n - 1))] for i in range(n)):
        with suppress(DamagedInputError):  # the job looks at all files, and names all that are damaged
            types.add(_first_records(split_as(WholeFile, file), settings, storage_options, None if every else names))
    where = files[0].url if files else ""
    if unknown := [name for name in names if name not in types.seen]:
        known = ", ".join(repr(name[:NAME_SHOWN]) for name in list(types.seen)[:NAMES_SHOWN]) or "none"
        raise InputError(where, f"--keep-fields {unknown[0]}: no record of the sample has such a field; they have {known}")
    fields = tuple(types.chosen(names, every=every))
    try:
        check_fields(fields)
    except ValueError as error:
        raise InputError(where, f"--keep-fields: {error}") from error
    return fields


def _first_records(
    file: WholeFile, settings: ReadSettings, storage_options: Mapping[str, Any] | None, wanted: Collection[str] | None
) -> Iterator[SampledRecord]:
    source = ByteSource(file, storage_options, encoding=settings.encoding)
    n_characters = 0
    for record in islice(_records(source, settings, wanted), SAMPLED_RECORDS):
        yield record
        n_characters += sum(len(str(value)) for value in record.values.values())
        if n_characters > SAMPLED_CHARACTERS:
            return


def _records(source: ByteSource, settings: ReadSettings, wanted: Collection[str] | None) -> Iterator[SampledRecord]:
    """``wanted``: of Parquet's columns, None for all."""
    input_format = source.split.format
    if input_format in WORD_FORMATS:
        yield from sampled_words(source, settings)
    elif input_format == "parquet":
        names = parquet_names(source) if wanted is None else wanted
        yield from (sampled(row, settings, spelt=False) for row in parquet_rows(source, settings, names))
    else:
        rows = ROWS[input_format](source, settings)
        yield from (sampled(row, settings, spelt=input_format in SPELT_FORMATS) for row in rows if not isinstance(row, Reject))
