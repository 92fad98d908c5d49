"""The fields to keep and their types, from a sample of the input: the first records of some of its files.

It depends on the input alone: not on how files are cut into splits, nor on who reads them. Of values of several types the wider
one is taken: of whole numbers and others float64, of dates and times timestamp, of objects all their keys; otherwise string. In
formats without types (CSV, TSV, CoNLL) text that spells numbers or booleans in all of the sample is taken for these, in all
formats text that spells dates or times. A list that is as long as the list of tokens in every record has a value a token.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import chain, islice
from typing import Any

from msgspec.structs import replace

from elmo_store.format.fields import MOST_DEPTH, SENTENCE, TOKEN, KeptField, check_fields
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings, Reject, Split
from transforms.readers import ROWS
from transforms.readers.conll import OWN_COMMENTS
from transforms.readers.csv import csv_names
from transforms.readers.fields import (
    NAME_SHOWN,
    NAMES_SHOWN,
    RawRecord,
    fields_of,
    holds_lists,
    sentences_of,
)
from transforms.readers.kept import INTEGER, TWICE, fitted
from transforms.readers.parquet import parquet_names

SAMPLED_FILES = 16
SAMPLED_RECORDS = 1000  # of each
SAMPLED_CHARACTERS = 1 << 22  # of the records of each, about
MOST_KEYS = 64  # of an object; one of more is kept as a string of JSON
# What reads the names of a file's fields, of formats in which all records have the same.
NAMES = {"parquet": parquet_names, "csv": csv_names, "tsv": csv_names}
_CLASSES: Mapping[str, tuple[type, ...]] = {  # of values that are not text; the narrower type first
    "bool": (bool,), "int64": (int,), "float64": (int, float), "date": (date,), "timestamp": (date,),
}  # fmt: skip


def find_fields(
    splits: Sequence[Split],
    settings: ReadSettings,
    names: Mapping[str, str],
    *,
    types: Mapping[str, str] | None = None,
    every: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[KeptField, ...]:
    """The fields of these names, each under its new one, and with ``every`` all others that the sample has, with their types.

    ``types``: of fields (of a token's value, of a list a token) whose type is not left to the sample.
    ``splits`` begin with the beginning of their files. InputError for what can't be read, a name that no record of the sample
    has, and one that can't be a column's.
    """
    files = list({split.url: split for split in reversed(splits) if split.format in ROWS}.values())[
        ::-1
    ]
    n = min(len(files), SAMPLED_FILES)
    seen: dict[str, _Seen] = {}  # in the order in which the sample brings them
    own: set[str] = set()  # of records' text and ids
    for file in (files[round(i * (len(files) - 1) / max(1, n - 1))] for i in range(n)):
        with suppress(
            DamagedInputError
        ):  # the job looks at all files, and names all that are damaged
            for row in _first_rows(file, settings, storage_options, None if every else names):
                fields = row.fields or fields_of(row.values, settings)
                own |= {
                    fields.text,
                    fields.own_id or fields.text,
                    *(OWN_COMMENTS if row.fields else ()),
                }
                text = row.values.get(fields.text)
                sentences = sentences_of(text, is_document=fields.is_document)
                for name, value in row.values.items():
                    seen.setdefault(name, _Seen()).add(
                        value, sentences, of_document=holds_lists(text), spelt=row.spelt
                    )
    where = files[0].url if files else ""
    if unknown := [name for name in names if name not in seen]:
        known = ", ".join(repr(name[:NAME_SHOWN]) for name in list(seen)[:NAMES_SHOWN]) or "none"
        raise InputError(
            where,
            f"--keep-fields {unknown[0]}: no record of the sample has such a field; they have {known}",
        )
    others = [name for name in seen if every and name not in names and name not in own]
    kept = tuple(
        seen[name].field(names.get(name, name), name, (types or {}).get(name))
        for name in (*names, *others)
    )
    try:
        check_fields(kept)
    except ValueError as error:
        raise InputError(where, f"--keep-fields: {error}") from error
    return kept


def _first_rows(
    file: Split,
    settings: ReadSettings,
    storage_options: Mapping[str, Any] | None,
    wanted: Collection[str] | None,
) -> Iterator[RawRecord]:
    """Records from the beginning of a file. ``wanted``: of a table's columns, None for all."""
    source = ByteSource(
        replace(file, start=0, stop=-1), storage_options, encoding=settings.encoding
    )
    if wanted is None:
        wanted = NAMES[file.format](source, settings) if file.format in NAMES else ()
    settings = dataclasses.replace(
        settings, fields=tuple(KeptField(name, name, "string", SENTENCE) for name in wanted)
    )
    n_characters = 0
    rows = (row for row in ROWS[file.format](source, settings) if not isinstance(row, Reject))
    for row in islice(rows, SAMPLED_RECORDS):
        yield row
        n_characters += sum(len(str(value)) for value in row.values.values())
        if n_characters > SAMPLED_CHARACTERS:
            return


class _Seen:
    """What the sample says about a field."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._of_tokens: list[Any] = []
        self._per_token = True
        self._spelt = True

    def add(
        self, value: Any, sentences: list[list[str]] | None, *, of_document: bool, spelt: bool
    ) -> None:
        """``sentences``: of the record, their tokens, if it brings them; ``of_document``: ``value`` then has a list for each."""
        if value is None or value is TWICE:  # the record will be a reject
            return
        self._values.append(value)
        self._spelt = self._spelt and spelt
        lists = _token_lists(value if of_document else [value], sentences)
        self._per_token = self._per_token and lists is not None
        self._of_tokens += chain.from_iterable(lists or ())

    def field(self, name: str, source: str, kind: str | None) -> KeptField:
        per_token = self._per_token and bool(self._of_tokens)
        kind = kind or type_of(self._of_tokens if per_token else self._values, self._spelt)
        return KeptField(name, source, kind, TOKEN if per_token else SENTENCE)


def _token_lists(lists: Any, sentences: list[list[str]] | None) -> list[list[Any]] | None:
    """The values a token of each sentence; None where the field's are not such lists."""
    if sentences is None or not isinstance(lists, list) or len(lists) != len(sentences):
        return None
    fits = all(
        isinstance(own, list) and len(own) == len(tokens)
        for own, tokens in zip(lists, sentences, strict=True)
    )
    return lists if fits else None


def type_of(values: Iterable[Any], spelt: bool = False, depth: int = 0) -> Any:
    """The type that takes all of ``values``, "string" if no other does; ``spelt``: text may spell every plain type."""
    values = [value for value in values if value is not None and value is not TWICE]
    if values and depth < MOST_DEPTH and all(isinstance(value, list) for value in values):
        return [type_of(chain.from_iterable(values), spelt, depth + 1)]
    if values and depth < MOST_DEPTH and all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(chain.from_iterable(values))
        if 0 < len(names) <= MOST_KEYS:
            return {
                name: type_of([value.get(name) for value in values], spelt, depth + 1)
                for name in names
            }
    for kind, classes in _CLASSES.items():
        may_be = (*classes, str) if spelt or kind in ("date", "timestamp") else classes
        if values and all(isinstance(value, may_be) and _fits(value, kind) for value in values):
            return kind
    return "string"


def _fits(value: Any, kind: str) -> bool:
    whole = int(value) if isinstance(value, str) and INTEGER.fullmatch(value) else value
    if isinstance(whole, int) and not -(2**63) <= whole < 2**63:
        return False  # a long number is an id rather than a float
    try:
        fitted(value, kind)
    except (ValueError, OverflowError):
        return False
    return True
