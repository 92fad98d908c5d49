"""Views over stores: some sentences of one, or several stores as one. Nothing is read or copied until rows are asked for."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import SentenceNotFoundError, StoreError
from elmo_store.format.numbers import Array, Empty, joined
from elmo_store.forms.runs import Places
from elmo_store.reading.rows import Int64, Readable, Span, Spans, the_one
from elmo_store.reading.sentences import SentenceRecord, renumbered
from elmo_store.reading.store import StoreReader
from elmo_store.reading.text_index import GatheredTexts, Text, check_size, cut_bytes, hash_texts
from elmo_store.reading.writer import ViewSettings, write_view

S = TypeVar("S", bound=StoreReader)


class Selection(Readable, Generic[S]):
    """Some sentences of a store, in any order, numbered from 0; their rows follow each other as the sentences do.

    Attributes:
        store: the store.
        numbers: the sentences' numbers in it.
    """

    def __init__(self, store: S, numbers: Sequence[int]) -> None:
        self.store = store
        self.numbers = numbers if isinstance(numbers, range) else [int(number) for number in numbers]
        for number in [*self.numbers[:1], *self.numbers[-1:]] if isinstance(self.numbers, range) else self.numbers:
            if not 0 <= number < len(store):
                raise SentenceNotFoundError(f"no sentence {number} in {store.url}: it has {len(store)}, counted from 0")
        self._is_as(store)
        self.n_sentences = len(self.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.store, self.numbers)

    def __repr__(self) -> str:
        return f"<Selection of {self.n_sentences:,} sentences of {self.url}>"

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """Rows of the view."""
        return int(self._edges[-1])

    @property
    def n_tokens(self) -> int:  # type: ignore[override]
        """Tokens of the view."""
        lengths = np.diff(self._edges)
        return int(lengths.sum() - (2 * np.count_nonzero(lengths) if self.boundaries else 0))

    @cached_property
    def _edges(self) -> Int64:
        """First row in the view of each sentence, and at last the number of rows [n + 1]."""
        lengths = self._store_spans[:, 1] - self._store_spans[:, 0]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    @cached_property
    def _store_spans(self) -> Int64:
        return self.store._spans(self.numbers)

    def _own(self, numbers: Sequence[int] | Int64) -> list[int]:
        """Numbers in the store of the view's sentences. SentenceNotFoundError."""
        for number in numbers:
            if not 0 <= number < len(self):
                raise SentenceNotFoundError(f"no sentence {number} in this selection of {self.url}: it has {len(self)}")
        return [self.numbers[number] for number in numbers]

    def _spans(self, numbers: Sequence[int] | Int64) -> Int64:
        self._own(numbers)
        spans: Int64 = self._edges[np.asarray(numbers, np.int64)[:, None] + np.arange(2)]
        return spans

    def _records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        records = self.store._records(self._own(numbers))
        return [
            replace(record, index=number, first_row=int(self._edges[number]))
            for number, record in zip(numbers, records, strict=True)
        ]

    def _columns(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        table = self.store._columns(self._own(numbers), names)
        return renumbered(table, {"sentence": list(numbers), "first_row": self._edges[np.asarray(numbers, np.int64)]})

    def _find(self, ids: Sequence[str]) -> list[int]:
        own, here = [], f"this selection of {self.url}"
        for sentence_id, numbers in zip(ids, self.store._find_all(ids), strict=True):  # the selection may be without some
            indices = sorted(index for number in numbers if (index := self._index_of(number)) is not None)
            if not indices:
                raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {here}")
            own.append(the_one(here, sentence_id, indices))
        return own

    def _index_of(self, number: int) -> int | None:
        """The first place in the view of one of the store's sentences; None if it is not in the view."""
        if isinstance(self.numbers, range):
            return self.numbers.index(number) if number in self.numbers else None
        return self._indices.get(number)

    @cached_property
    def _indices(self) -> dict[int, int]:
        return {number: index for index, number in reversed(list(enumerate(self.numbers)))}

    def _find_text(self, texts: Sequence[Text]) -> list[int | None]:
        return self._texts.find(hash_texts(texts, cut_bytes(self.store.manifest)))

    @cached_property
    def _texts(self) -> GatheredTexts:
        # The store's own index knows a text's first sentence alone, which the selection may be without.
        check_size(len(self), f"this selection of {self.url}")
        blocks = (range(start, min(start + 1024, len(self))) for start in range(0, len(self), 1024))
        lists = ((b.start, pa.array([record.tokens for record in self._records(b)], pa.list_(pa.string()))) for b in blocks)
        return GatheredTexts(lists, cut_bytes(self.store.manifest))

    def _read(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        own = [part for first, stop in spans for part in self._in_store(int(first), int(stop))]
        return self.store._read(states, own, raw, empty)

    def _read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        numbers = np.searchsorted(self._edges, spans[:, 0], "right") - 1
        moved = self._store_spans[numbers, 0] - self._edges[numbers]
        return self.store._read_into(states, spans + moved[:, None], places, out)

    def _tokens(self, first: int, stop: int) -> list[str]:
        return [token for span in self._in_store(first, stop) for token in self.store._tokens(*span)]

    def _in_store(self, first: int, stop: int) -> list[Span]:
        """Rows of the view as spans of the store's; those that follow each other there are one."""
        spans: list[Span] = []
        number = int(np.searchsorted(self._edges, first, "right")) - 1
        while first < stop:
            end = min(stop, int(self._edges[number + 1]))
            if end > first:
                start = int(self._store_spans[number, 0] + first - self._edges[number])
                begin = spans.pop()[0] if spans and spans[-1][1] == start else start
                spans.append((begin, start + end - first))
            first, number = end, number + 1
        return spans

    def write(self, url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None, **settings: Any) -> S:
        """Write the view as a store of its own and open it; ``settings`` as of `elmo_store.reading.writer.ViewSettings`."""
        root, manifest = write_view(self, self.numbers, self.store, url, ViewSettings(**settings), storage_options)
        written: S = self.store._opened(root, manifest)
        return written


class Concatenation(Readable):
    """Several stores of one model, one after the other. Use `concat`."""

    def __init__(self, stores: Sequence[StoreReader]) -> None:
        if not stores:
            raise ValueError("no store to concatenate: give one or more")
        first = stores[0]
        for other in stores[1:]:
            refused = f"{other.url} can't follow {first.url}"
            for name in ("states", "channels", "dtype", "is_int8", "boundaries"):
                if getattr(other, name) != getattr(first, name):
                    raise StoreError(f"{refused}: its {name} is {getattr(other, name)}, not {getattr(first, name)}")
            if other.manifest.model.fingerprint != first.manifest.model.fingerprint:
                raise StoreError(f"{refused}: they are of different models")
            if other.manifest.start_state != first.manifest.start_state:
                raise StoreError(f"{refused}: their sentences start from different states")
        self.stores = tuple(stores)
        self._is_as(first)
        self.fields = {
            name: field
            for name, field in first.fields.items()
            if all(str(store.fields.get(name)) == str(field) for store in stores)
        }
        self.url = " + ".join(store.url for store in stores)
        *self._first_sentences, self.n_sentences = accumulate((store.n_sentences for store in stores), initial=0)
        *self._first_rows, self.n_rows = accumulate((store.n_rows for store in stores), initial=0)
        self.n_tokens = sum(store.n_tokens for store in stores)

    def __reduce__(self) -> tuple[Any, ...]:
        return Concatenation, (self.stores,)

    def __repr__(self) -> str:
        return f"<Concatenation of {len(self.stores)} stores: {self.n_sentences:,} sentences, {self.n_rows:,} rows>"

    def _by_store(self, numbers: Sequence[int] | Int64) -> Iterator[tuple[int, npt.NDArray[np.intp], list[int]]]:
        """Each store that holds some of the sentences: its place, theirs in ``numbers``, their numbers in it."""
        wanted = np.asarray(numbers, np.int64)
        outside = wanted[(wanted < 0) | (wanted >= len(self))]
        if len(outside):
            raise SentenceNotFoundError(f"no sentence {outside[0]} in {self.url}: they have {len(self)}, counted from 0")
        holding = np.searchsorted(self._first_sentences, wanted, "right") - 1
        for index in np.unique(holding).tolist():
            own = np.flatnonzero(holding == index)
            yield index, own, (wanted[own] - self._first_sentences[index]).tolist()

    def _spans(self, numbers: Sequence[int] | Int64) -> Int64:
        spans = np.empty((len(numbers), 2), np.int64)
        for index, own, in_store in self._by_store(numbers):
            spans[own] = self.stores[index]._spans(in_store) + self._first_rows[index]
        return spans

    def _records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        records: dict[int, SentenceRecord] = {}
        for index, own, in_store in self._by_store(numbers):
            for i, record in zip(own.tolist(), self.stores[index]._records(in_store), strict=True):
                records[i] = replace(record, index=int(numbers[i]), first_row=record.first_row + self._first_rows[index])
        return [records[i] for i in range(len(numbers))]

    def _columns(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        tables, places = [self.stores[0]._columns([], names)], [np.zeros(0, np.int64)]
        for index, own, in_store in self._by_store(numbers):
            table = self.stores[index]._columns(in_store, names)
            rows = np.array(in_store, np.int64) + self._first_sentences[index]
            firsts = table["first_row"].to_numpy() + self._first_rows[index] if "first_row" in names else rows
            tables.append(renumbered(table, {"sentence": rows, "first_row": firsts}))
            places.append(own)
        return pa.concat_tables(tables).take(np.argsort(np.concatenate(places)))

    def _find(self, ids: Sequence[str]) -> list[int]:
        return [self._find_id(sentence_id) for sentence_id in ids]

    def _find_id(self, sentence_id: str) -> int:
        for first, store in zip(self._first_sentences, self.stores, strict=True):
            with suppress(SentenceNotFoundError):
                return first + store._find([sentence_id])[0]
        raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {self.url}")

    def _find_text(self, texts: Sequence[Text]) -> list[int | None]:
        matches: list[int | None] = [None] * len(texts)
        for first, store in zip(self._first_sentences, self.stores, strict=True):
            left = [index for index, number in enumerate(matches) if number is None]
            for index, number in zip(left, store._find_text([texts[index] for index in left]), strict=True):
                matches[index] = None if number is None else first + number
        return matches

    def _read(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        pieces = [piece for first, stop in spans for piece in self._in_stores(int(first), int(stop))]
        if len({index for index, _ in pieces}) < 2:  # the usual case: no copy
            return self.stores[pieces[0][0] if pieces else 0]._read(states, [span for _, span in pieces], raw, empty)
        rows = [self.stores[index]._read(states, [span], raw) for index, span in pieces]
        return joined(rows) if raw else np.concatenate(rows)

    def _read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        holding = np.searchsorted(self._first_rows, spans[:, 0], "right") - 1
        for index in np.unique(holding).tolist():
            own = holding == index
            to = Places(places.first[own], places.step[own])
            if not self.stores[index]._read_into(states, spans[own] - self._first_rows[index], to, out):
                return False
        return True

    def _tokens(self, first: int, stop: int) -> list[str]:
        return [token for index, span in self._in_stores(first, stop) for token in self.stores[index]._tokens(*span)]

    def _in_stores(self, first: int, stop: int) -> list[tuple[int, Span]]:
        """Rows cut at the borders of the stores: (place of the store, its rows)."""
        edges = enumerate(zip(self._first_rows, self.stores, strict=True))
        cut = [(index, (max(first - base, 0), min(stop - base, store.n_rows))) for index, (base, store) in edges]
        return [(index, span) for index, span in cut if span[0] < span[1]]


def concat(stores: Sequence[StoreReader]) -> Concatenation:
    """Stores of one model as one: sentences and rows of the second follow those of the first, and so on; nothing is copied.

    StoreError if they differ in model, start state, states, channels, dtype or boundaries. An id is found in the first store
    that has it.
    """
    return Concatenation(stores)
