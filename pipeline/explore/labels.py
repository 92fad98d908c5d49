"""Groups of a word's occurrences by their labels, which are the values of a field that the store keeps."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from elmo_store.figures.vectors import Int
from elmo_store.format.fields import TOKEN
from elmo_store.store import Store

GROUPED = (
    "string",
    "bool",
    "int64",
    "date",
)  # types of fields of which a few values come again and again
Labels = Sequence[str | None]  # of occurrences, None without one
MOST_GROUPS = 9  # of labels: there is a colour for each; unlabelled occurrences are one more


def grouping_fields(store: Store) -> list[str]:
    """The names of the fields whose values can be labels."""
    return [
        field.name
        for field in store.fields.values()
        if isinstance(field.type, str) and field.type in GROUPED
    ]


def values_at(
    store: Store, name: str, sentence: Sequence[int] | Int, position: Sequence[int] | Int
) -> list[str | None]:
    """A column's value for each token, by its sentence and its position there; None where it has none, and for BOS and EOS."""
    numbers, place = np.unique(np.asarray(sentence, np.int64), return_inverse=True)
    values = store.table([name], numbers)[name].to_pylist()
    own = [values[at] for at in place.tolist()]
    if name in store.fields and store.fields[name].per == TOKEN:
        own = [
            v[at] if v and 0 <= at < len(v) else None for v, at in zip(own, position, strict=True)
        ]
    return [None if value is None else str(value) for value in own]


def grouped(labels: Labels, most: int = MOST_GROUPS) -> dict[str, Any]:
    """A group of each label, of at most ``most`` of them the last for all other labels; one more without a label.

    ``groups`` are their names, those of most occurrences first, ``group`` has each occurrence's, ``others`` and ``unlabelled``
    are the groups of other labels and of none, None where there are none.
    """
    commonest = [
        label
        for label, _ in Counter(
            sorted(label for label in labels if label is not None)
        ).most_common()
    ]
    rest = len(commonest) - most + 1 if len(commonest) > most else 0
    names = [*commonest[: most - 1], f"{rest} others"] if rest else commonest
    unlabelled = len(names) if None in labels else None
    place: dict[str | None, int] = {label: min(i, most - 1) for i, label in enumerate(commonest)}
    return {
        "groups": names if unlabelled is None else [*names, "unlabelled"],
        "group": [place.get(label, len(names)) for label in labels],
        "others": most - 1 if rest else None,
        "unlabelled": unlabelled,
    }


def labelled(labels: Labels) -> tuple[Int, Int]:
    """Which occurrences have a label [m], and a number for each one's [m]; all labels count, not the groups."""
    rows = np.array([i for i, label in enumerate(labels) if label is not None], np.int64)
    return rows, np.unique([str(labels[i]) for i in rows], return_inverse=True)[1].astype(np.int64)
