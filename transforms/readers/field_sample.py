"""The fields to keep and their types, from a sample of the input: the first records of some of its files.

It depends on the input alone: not on how files are cut into splits, nor on who reads them. Of values of several types the wider
one is taken: of whole numbers and others float64, of dates and times timestamp, of objects all their keys; otherwise string. In
formats without types (CSV, TSV, CoNLL) text that spells numbers or booleans in all of the sample is taken for these, in all
formats text that spells dates or times. A list that is as long as the list of tokens in every record has a value a token.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from itertools import islice
from typing import Any

from elmo_store.format.fields import MOST_DEPTH, SENTENCE, TOKEN, KeptField, check_fields
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings, Reject, Split, WholeFile, split_as
from transforms.readers import ROWS
from transforms.readers.conll import sampled_words
from transforms.readers.fields import NAME_SHOWN, NAMES_SHOWN, sampled
from transforms.readers.kept import BOOLEANS, DATE, FLOAT, INTEGER, TIMESTAMP, SampledRecord, fitted
from transforms.readers.parquet import parquet_names, parquet_rows

SAMPLED_FILES = 16
SAMPLED_RECORDS = 1000  # of each
SAMPLED_CHARACTERS = 1 << 22  # of the records of each, about
WORD_FORMATS = ("conllu", "conll")
SPELT_FORMATS = ("csv", "tsv")  # whose values are all text
MOST_KEYS = 64  # of an object; one of more is kept as a string of JSON
NULL = "null"  # of what no record has; a string in the end
_WIDER = {frozenset(("int64", "float64")): "float64", frozenset(("date", "timestamp")): "timestamp"}


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
    files = list({split.url: split for split in reversed(splits) if split.format in (*ROWS, *WORD_FORMATS)}.values())[::-1]
    n = min(len(files), SAMPLED_FILES)
    seen: dict[str, _Seen] = {}  # in the order in which the sample brings them
    own: set[str] = set()  # of records' text and ids
    for file in (files[round(i * (len(files) - 1) / max(1, n - 1))] for i in range(n)):
        with suppress(DamagedInputError):  # the job looks at all files, and names all that are damaged
            for record in _first_records(split_as(WholeFile, file), settings, storage_options, None if every else names):
                own |= record.own
                for name, value in record.values.items():
                    seen.setdefault(name, _Seen()).add(value, record)
    where = files[0].url if files else ""
    if unknown := [name for name in names if name not in seen]:
        known = ", ".join(repr(name[:NAME_SHOWN]) for name in list(seen)[:NAMES_SHOWN]) or "none"
        raise InputError(where, f"--keep-fields {unknown[0]}: no record of the sample has such a field; they have {known}")
    others = [name for name in seen if every and name not in names and name not in own]
    fields = tuple(seen[name].field(names.get(name, name), name, (types or {}).get(name)) for name in (*names, *others))
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


@dataclass
class _Seen:
    """What the sample says about a field."""

    kind: Any = NULL
    of_token: Any = NULL
    per_token: bool = True
    n_lists: int = 0

    def add(self, value: Any, record: SampledRecord) -> None:
        if value is None:
            return
        self.kind = wider(self.kind, type_of(value, record.spelt))
        lists = _token_lists(value, record)
        self.per_token = self.per_token and lists is not None
        for values in lists or ():
            self.n_lists += bool(values)
            self.of_token = reduce(wider, (type_of(inner, record.spelt) for inner in values), self.of_token)

    def field(self, name: str, source: str, kind: str | None) -> KeptField:
        if self.per_token and self.n_lists:
            return KeptField(name, source, kind or settled(self.of_token), TOKEN)
        return KeptField(name, source, kind or settled(self.kind), SENTENCE)


def _token_lists(value: Any, record: SampledRecord) -> list[list[Any]] | None:
    """The values a token of each sentence; None where the field's are not such lists."""
    lists = value if record.is_document else [value]
    if record.sentences is None or not isinstance(lists, list) or len(lists) != len(record.sentences):
        return None
    fits = all(isinstance(own, list) and len(own) == len(tokens) for own, tokens in zip(lists, record.sentences, strict=True))
    return lists if fits else None


def type_of(value: Any, spelt: bool = False, depth: int = 0) -> Any:
    """The type of one value."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return _spelt_type(value, spelt)
    if isinstance(value, list) and depth < MOST_DEPTH:
        return [reduce(wider, (type_of(inner, spelt, depth + 1) for inner in value), NULL)]
    if isinstance(value, dict) and depth < MOST_DEPTH:
        return _object({name: type_of(inner, spelt, depth + 1) for name, inner in value.items()})
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return "string"
    for kind, name in ((bool, "bool"), (int, "int64"), (float, "float64"), (datetime, "timestamp"), (date, "date")):
        if isinstance(value, kind):
            return name
    return "string"


def _spelt_type(text: str, spelt: bool) -> str:
    spellings: list[tuple[str, Any]] = [("date", DATE.fullmatch), ("timestamp", TIMESTAMP.fullmatch)]
    if spelt:
        spellings += [("bool", BOOLEANS.__contains__), ("int64", INTEGER.fullmatch), ("float64", FLOAT.fullmatch)]
    for name, matches in spellings:
        if matches(text):
            try:
                fitted(text, name)
            except (ValueError, OverflowError):
                continue
            return name
    return "string"


def wider(one: Any, other: Any) -> Any:
    """The type that takes values of both."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if isinstance(one, list) and isinstance(other, list):
        return [wider(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        return _object({name: wider(one.get(name, NULL), other.get(name, NULL)) for name in {**one, **other}})
    if isinstance(one, str) and isinstance(other, str):
        return _WIDER.get(frozenset((one, other)), "string")
    return "string"


def _object(kinds: dict[str, Any]) -> Any:
    return (kinds or NULL) if len(kinds) <= MOST_KEYS else "string"


def settled(kind: Any) -> Any:
    """A type without `NULL` in it."""
    if isinstance(kind, list):
        return [settled(kind[0])]
    if isinstance(kind, dict):
        return {name: settled(inner) for name, inner in kind.items()}
    return "string" if kind == NULL else kind
