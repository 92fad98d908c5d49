"""`Selection`: some sentences of a store as a view. Nothing is read or copied until rows are asked for."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import structs

from elmo_store.errors import SentenceNotFoundError
from elmo_store.format.numbers import Array, Empty
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
        return self.store.spans(self.numbers)

    def _own(self, numbers: Sequence[int] | Int64) -> list[int]:
        """Numbers in the store of the view's sentences. SentenceNotFoundError."""
        for number in numbers:
            if not 0 <= number < len(self):
                raise SentenceNotFoundError(f"no sentence {number} in this selection of {self.url}: it has {len(self)}")
        return [self.numbers[number] for number in numbers]

    def spans(self, numbers: Sequence[int] | Int64) -> Int64:
        """See `Readable.spans`."""
        self._own(numbers)
        spans: Int64 = self._edges[np.asarray(numbers, np.int64)[:, None] + np.arange(2)]
        return spans

    def records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        """See `Readable.records`."""
        records = self.store.records(self._own(numbers))
        return [
            structs.replace(record, index=number, first_row=int(self._edges[number]))
            for number, record in zip(numbers, records, strict=True)
        ]

    def table(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """See `Readable.table`."""
        table = self.store.table(self._own(numbers), columns)
        return renumbered(table, {"sentence": list(numbers), "first_row": self._edges[np.asarray(numbers, np.int64)]})

    def _find(self, ids: Sequence[str]) -> list[int]:
        own = []
        for sentence_id, numbers in zip(ids, self.store.find_ids(ids), strict=True):  # the selection may be without some
            indices = sorted(index for number in numbers if (index := self._index_of(number)) is not None)
            own.append(the_one(f"this selection of {self.url}", sentence_id, indices))
        return own

    def _index_of(self, number: int) -> int | None:
        """The first place in the view of one of the store's sentences; None if it is not in the view."""
        if isinstance(self.numbers, range):
            return self.numbers.index(number) if number in self.numbers else None
        return self._indices.get(number)

    @cached_property
    def _indices(self) -> dict[int, int]:
        return {number: index for index, number in reversed(list(enumerate(self.numbers)))}

    def find_text(self, texts: Sequence[Text]) -> list[int | None]:
        """See `Readable.find_text`."""
        return self._texts.find(hash_texts(texts, cut_bytes(self.store.manifest)))

    @cached_property
    def _texts(self) -> GatheredTexts:
        # The store's own index knows a text's first sentence alone, which the selection may be without.
        check_size(len(self), f"this selection of {self.url}")
        blocks = (range(start, min(start + 1024, len(self))) for start in range(0, len(self), 1024))
        lists = ((b.start, pa.array([record.tokens for record in self.records(b)], pa.list_(pa.string()))) for b in blocks)
        return GatheredTexts(lists, cut_bytes(self.store.manifest))

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        """See `Readable.read_spans`."""
        own = [part for first, stop in spans for part in self._in_store(int(first), int(stop))]
        return self.store.read_spans(states, own, raw, empty)

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `Readable.read_into`."""
        numbers = np.searchsorted(self._edges, spans[:, 0], "right") - 1
        moved = self._store_spans[numbers, 0] - self._edges[numbers]
        return self.store.read_into(states, spans + moved[:, None], places, out)

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
