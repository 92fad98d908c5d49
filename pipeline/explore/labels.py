"""What a word's occurrences are grouped by, beside the clusters found: fields that the store keeps, and labels from a file.

The file is checked against the store before anything is shown. Columns stand between tabs; the first line names them: ``id`` (a
sentence's id) or ``sentence`` (its number), then ``token`` (its number in the sentence, from 0) where tokens are labelled, then
one label or more. Nothing is quoted; an empty label is none.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import VectorSample
from elmo_store.figures.groups import grouped_fields, values_at
from elmo_store.store import Store
from pipeline.cli.label_files import LabelError, lines_of

Int = npt.NDArray[np.int64]
SENTENCE_COLUMNS, TOKEN_COLUMN = ("id", "sentence"), "token"
MOST_GROUPS = 9  # of labels: there is a colour for each; unlabelled occurrences are one more


@dataclass(frozen=True)
class Grouping:
    """Occurrences by their labels.

    Attributes:
        labels: [n] each one's, None without. names: of the groups, those of most occurrences first. group: [n] each one's.
        others: the group of all labels that have none of their own; unlabelled: that of occurrences without a label. None where
            there are none.
    """

    labels: Sequence[str | None]
    names: Sequence[str]
    group: Int
    others: int | None
    unlabelled: int | None

    def labelled(self) -> tuple[Int, Int]:
        """Which occurrences have a label [m], and a number for each one's [m]; all labels count, not the groups."""
        rows = np.array([i for i, label in enumerate(self.labels) if label is not None], np.int64)
        return rows, np.unique([str(self.labels[i]) for i in rows], return_inverse=True)[1].astype(np.int64)


def grouped(labels: Sequence[str | None], most: int = MOST_GROUPS) -> Grouping:
    """A group of each label, of at most ``most`` of them the last for all other labels; one more without a label."""
    commonest = [label for label, _ in Counter(sorted(label for label in labels if label is not None)).most_common()]
    rest = len(commonest) - most + 1 if len(commonest) > most else 0
    names = [*commonest[: most - 1], f"{rest} others"] if rest else commonest
    others = most - 1 if rest else None
    place: dict[str | None, int] = {label: min(i, most - 1) for i, label in enumerate(commonest)}
    place[None] = len(names)
    unlabelled = len(names) if None in labels else None
    names = names if unlabelled is None else [*names, "unlabelled"]
    return Grouping(labels, names, np.array([place[label] for label in labels], np.int64), others, unlabelled)


@dataclass(frozen=True)
class Labels:
    """What a file says of sentences or tokens.

    Attributes:
        places: a token's sentence and number in it, which is 0 where sentences are labelled → its place in `values`.
        of_tokens: whether tokens are. values: the labels by name.
    """

    places: Mapping[tuple[int, int], int]
    of_tokens: bool
    values: Mapping[str, Sequence[str]]

    def at(self, name: str, sentence: Sequence[int], token: Sequence[int]) -> list[str | None]:
        """The label of each token, None where it has none."""
        keys = zip(sentence, token if self.of_tokens else [0] * len(sentence), strict=True)
        places, values = map(self.places.get, keys), self.values[name]
        return [None if place is None else values[place] or None for place in places]


class Groupings:
    """What occurrences are grouped by, beside the clusters found: the fields that the store keeps, and labels from a file.

    Attributes:
        names: of them.
    """

    def __init__(self, store: Store, labels: Labels | None) -> None:
        self._store, self._labels = store, labels
        self.names = [field.name for field in grouped_fields(store)] + list(labels.values if labels else ())
        self._last: tuple[tuple[str, str], Grouping] = (("", ""), grouped(()))

    def of(self, name: str, word: str, text: VectorSample, indices: Int) -> Grouping:
        """A word's occurrences, these rows of the sample, by one of `names`; the one asked for last is kept."""
        if self._last[0] != (word, name):
            labels = self.values(name, text.sentence[indices].tolist(), text.position[indices].tolist())
            self._last = ((word, name), grouped(labels))
        return self._last[1]

    def values(self, name: str, sentence: Sequence[int], position: Sequence[int]) -> list[str | None]:
        """The label of each token, None where it has none. ``position``: of its row in the sentence, BOS counted."""
        if self._labels is not None and name in self._labels.values:
            edge = int(self._store.boundaries)
            return self._labels.at(name, sentence, [at - edge for at in position])
        return values_at(self._store, name, sentence, position)


def read_labels(url: str, store: Store, storage_options: Mapping[str, Any] | None = None) -> Labels:
    """The labels of a file, which may be compressed and on any fsspec URL. LabelError, OSError."""
    lines = ((number, line.split("\t")) for number, line in lines_of(url, storage_options) if line.strip())
    columns = next(lines, (0, [""]))[1]
    names = _label_names(url, columns, store)
    of_tokens = len(columns) - len(names) == 2
    numbers, rows = [], []
    for number, cells in lines:
        if len(cells) != len(columns):
            raise LabelError(f"{url}, line {number}: {len(cells)} columns between tabs, the first line names {len(columns)}")
        numbers.append(number)
        rows.append(cells)
    if not rows:
        raise LabelError(f"{url}: there are no labels after the first line, which names the columns")
    where = [f"{url}, line {number}" for number in numbers]
    sentence = _sentences(columns[0], [cells[0] for cells in rows], where, store)
    token = _tokens(sentence, [cells[1] for cells in rows], where, store) if of_tokens else [0] * len(rows)
    places: dict[tuple[int, int], int] = {}
    for place, key in enumerate(zip(sentence, token, strict=True)):
        if key in places:
            raise LabelError(f"{where[place]}: labelled before, by line {numbers[places[key]]}: keep one of them")
        places[key] = place
    first = len(columns) - len(names)
    values = {name: [sys.intern(cells[first + k]) for cells in rows] for k, name in enumerate(names)}
    return Labels(places, of_tokens, values)


def _label_names(url: str, columns: Sequence[str], store: Store) -> Sequence[str]:
    names = columns[2:] if columns[1:2] == [TOKEN_COLUMN] else columns[1:]
    if columns[0] not in SENTENCE_COLUMNS or not names:
        raise LabelError(
            f"{url}, line 1: it must name the columns: id or sentence, then token where tokens are labelled, then a label or "
            f"more, with tabs between them; it says {' '.join(columns)[:80]!r}"
        )
    for i, name in enumerate(names):
        if not name.strip():
            raise LabelError(f"{url}, line 1: column {len(columns) - len(names) + i + 1} has no name")
        if name in names[:i] or name in store.fields:
            other = "a field that the store keeps" if name in store.fields else "another column"
            raise LabelError(f"{url}, line 1: {name!r} is the name of {other}, too: name it differently")
    return names


def _sentences(kind: str, cells: Sequence[str], where: Sequence[str], store: Store) -> list[int]:
    """The numbers of the sentences that the cells name."""
    if kind == "sentence":
        return _whole(cells, [store.n_sentences] * len(cells), where, "a sentence's number")
    ids = list(dict.fromkeys(cells))
    known = dict(zip(ids, store.find_ids(ids), strict=True))
    for cell, line in zip(cells, where, strict=True):
        if len(known[cell]) != 1:
            many = f"{len(known[cell])} sentences have the id {cell[:80]!r}: name them by number, in a column sentence"
            raise LabelError(f"{line}: {many if known[cell] else f'no sentence of {store.url} has the id {cell[:80]!r}'}")
    return [known[cell][0] for cell in cells]


def _tokens(sentence: Sequence[int], cells: Sequence[str], where: Sequence[str], store: Store) -> list[int]:
    numbers, place = np.unique(sentence, return_inverse=True)
    lengths = store.table(numbers.tolist(), ["n_tokens"])["n_tokens"].to_numpy()
    return _whole(cells, lengths[place].tolist(), where, "a token's number in this sentence")


def _whole(cells: Sequence[str], below: Sequence[int], where: Sequence[str], what: str) -> list[int]:
    """Cells as whole numbers under these."""
    for cell, most, line in zip(cells, below, where, strict=True):
        if not (cell.isascii() and cell.isdecimal() and len(cell) < 19 and int(cell) < most):
            raise LabelError(f"{line}: {cell[:40]!r} is not {what}: a whole number from 0 to {most - 1:,}")
    return [int(cell) for cell in cells]
