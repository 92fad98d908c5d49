"""The types of the fields to keep, from a sample of the input's records that depends on the input alone.

Of values of several types the wider one is taken: of whole numbers and others float64, of dates and times timestamp, of
objects all their keys; otherwise string. In formats without types (CSV, TSV, CoNLL) text that spells numbers or booleans in all
of the sample is taken for these, in all formats text that spells dates or times. A list that is as long as the list of tokens in
every record has a value a token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import reduce
from typing import Any

from elmo_store.format.fields import MOST_DEPTH, SENTENCE, TOKEN, KeptField
from transforms.readers.kept import BOOLEANS, DATE, FLOAT, INTEGER, TIMESTAMP, fitted

MOST_KEYS = 64  # of an object; one of more is kept as a string of JSON
NULL = "null"  # of what no record has; a string in the end
_WIDER = {frozenset(("int64", "float64")): "float64", frozenset(("date", "timestamp")): "timestamp"}


@dataclass(frozen=True)
class SampledRecord:
    """A record of the sample.

    Attributes:
        values: of its fields.
        own: fields that hold its text and its id.
        sentences: its tokens where it brings them, a list a sentence; None where its text is a string.
        is_document: whether it is a list of sentences, and what a field has for tokens is too.
        spelt: whether all values are text.
    """

    values: Mapping[str, Any]
    own: frozenset[str] = frozenset()
    sentences: Sequence[Sequence[str]] | None = None
    is_document: bool = False
    spelt: bool = False


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

    def field(self, name: str, source: str) -> KeptField:
        if self.per_token and self.n_lists:
            return KeptField(name, source, settled(self.of_token), TOKEN)
        return KeptField(name, source, settled(self.kind), SENTENCE)


@dataclass
class FieldTypes:
    """Fields in the order in which the sample brings them."""

    own: set[str] = field(default_factory=set)
    seen: dict[str, _Seen] = field(default_factory=dict)

    def add(self, records: Iterable[SampledRecord]) -> None:
        """Take in records."""
        for record in records:
            self.own |= record.own
            for name, value in record.values.items():
                self.seen.setdefault(name, _Seen()).add(value, record)

    def chosen(self, names: Mapping[str, str], *, every: bool) -> Iterator[KeptField]:
        """The fields of these names, each under its new one; with ``every`` all others too, but for the text and the id.

        KeyError for a name that no record of the sample has.
        """
        others = [name for name in self.seen if every and name not in names and name not in self.own]
        for source in (*names, *others):
            yield self.seen[source].field(names.get(source, source), source)


def _token_lists(value: Any, record: SampledRecord) -> list[list[Any]] | None:
    """The values a token of each sentence; None where the field's are no such lists."""
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
