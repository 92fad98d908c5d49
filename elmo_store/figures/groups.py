"""Groups of sentences and tokens by a kept field."""

from collections.abc import Sequence

import numpy as np

from elmo_store.format.fields import TOKEN, KeptField
from elmo_store.reading.store import StoreReader

GROUPED = ("string", "bool", "int64", "date")  # types of which a few values come again and again


def grouped_fields(store: StoreReader) -> list[KeptField]:
    """The fields that groups are made by."""
    return [field for field in store.fields.values() if isinstance(field.type, str) and field.type in GROUPED]


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
