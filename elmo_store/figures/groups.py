"""Groups of sentences and tokens by a kept field, from a bounded sample of a store."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elmo_store.format.fields import TOKEN, KeptField
from elmo_store.reading.store import StoreReader

BLOCK_SENTENCES = 1024  # that are read together
FEW = 12  # values of a field that are shown
GROUPED = ("string", "bool", "int64", "date")  # types of which a few values come again and again
NOTHING = "–"  # in place of null


@dataclass(frozen=True)
class FieldGroups:
    """What a field divides the sample into.

    Attributes:
        groups: value, sentences, tokens; those of most tokens first, some at most.
        n_values: how many there are. n_sentences: of the sample.
    """

    field: KeptField
    groups: tuple[tuple[str, int, int], ...]
    n_values: int
    n_sentences: int


def grouped_fields(store: StoreReader) -> list[KeptField]:
    """The fields that groups are made by."""
    return [field for field in store.fields.values() if isinstance(field.type, str) and field.type in GROUPED]


def field_groups(store: StoreReader, blocks: Sequence[int], n_groups: int = FEW) -> Iterator[FieldGroups]:
    """The groups of each field that divides sentences or tokens, in these blocks of `BLOCK_SENTENCES` sentences."""
    fields = grouped_fields(store)
    names = [field.name for field in fields]
    if not fields:
        return
    tables = [store.sentences(b * BLOCK_SENTENCES, (b + 1) * BLOCK_SENTENCES, columns=["n_tokens", *names]) for b in blocks]
    for field in fields:
        sentences, tokens = Counter[str](), Counter[str]()
        for table in tables:
            for value, n_tokens in zip(table[field.name].to_pylist(), table["n_tokens"].to_pylist(), strict=True):
                values = Counter(map(shown, value or ())) if field.per == TOKEN else Counter({shown(value): n_tokens})
                sentences.update(values.keys())
                tokens.update(values)
        commonest = sorted(tokens, key=lambda value: (-tokens[value], -sentences[value], value))[:n_groups]
        groups = tuple((value, sentences[value], tokens[value]) for value in commonest)
        yield FieldGroups(field, groups, len(tokens), sum(map(len, tables)))


def values_at(store: StoreReader, name: str, sentence: Sequence[int], position: Sequence[int]) -> list[str | None]:
    """The field's value of each token, None where it has none: of its sentence, or its own.

    ``position``: of its row in the sentence, BOS counted.
    """
    numbers, place = np.unique(np.asarray(sentence, np.int64), return_inverse=True)
    values, edge = store.table(numbers.tolist(), [name])[name].to_pylist(), int(store.boundaries)
    own = [values[at] for at in place.tolist()]
    if store.fields[name].per == TOKEN:
        tokens = [at - edge for at in position]
        own = [v[at] if v and 0 <= at < len(v) else None for v, at in zip(own, tokens, strict=True)]
    return [None if value is None else str(value) for value in own]


def shown(value: object) -> str:
    """A value as a group's name."""
    return NOTHING if value is None else str(value)
