"""A view of a store: some of its sentences, in any order, which can be written as a store of its own."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from elmo_store.format.ids import UInt64
from elmo_store.reading.index import Index, resolve_numbers
from elmo_store.reading.joined import STARTS_AT_ONCE, Joined
from elmo_store.reading.rows import Int64
from elmo_store.reading.store import Runs, StoreReader
from elmo_store.writer import ViewSettings, write_view

S = TypeVar("S", bound=StoreReader)


class Selection(Joined, Generic[S]):
    """Some sentences of a store, in any order, numbered from 0; their rows follow each other as the sentences do.

    Attributes:
        store: the store.
        numbers: the sentences' numbers in it.
    """

    def __init__(self, store: S, numbers: Index) -> None:
        self.store = store
        chosen = resolve_numbers(numbers, len(store), "sentence", store.url)
        self.numbers: Sequence[int] = chosen if isinstance(chosen, range) else chosen.tolist()
        self._is_as(store)
        self.n_sentences = len(self.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.store, self.numbers)

    def __repr__(self) -> str:
        return f"<Selection of {self.n_sentences:,} sentences of {self.url}>"

    def _make_runs(self) -> Runs:
        wanted = self.store._starts.numbers(self.numbers)
        of_store = self.store.runs
        run, own = of_store.own(wanted)
        new = np.ones(len(wanted), bool)
        new[1:] = (run[1:] != run[:-1]) | (own[1:] != own[:-1] + 1)
        firsts = np.flatnonzero(new)
        sizes = np.stack(
            [
                np.diff(np.append(firsts, len(wanted))),
                np.diff(np.append(self._edges[firsts], self._edges[-1])),
            ]
        )
        run = run[firsts]
        own_rows = self._store_spans[firsts, 0] - of_store.rows[run] + of_store.own_rows[run]
        return Runs.of(
            of_store.stores, of_store.store_of[run], np.stack([own[firsts], own_rows]), sizes
        )

    @cached_property
    def _store_spans(self) -> Int64:
        return self.store.spans(self.numbers)

    @cached_property
    def _edges(self) -> Int64:
        """First row in the view of each sentence, and at last the number of rows [n + 1]."""
        return np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self._store_spans[:, 1] - self._store_spans[:, 0])]
        )

    def _begins(self, chunk: int) -> Int64:
        return self._edges[chunk * STARTS_AT_ONCE : (chunk + 1) * STARTS_AT_ONCE]

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
    def _places(self) -> dict[int, int]:
        """The first place in the view of each of the store's sentences."""
        return {number: index for index, number in reversed(list(enumerate(self.numbers)))}

    def _shown(self) -> str:
        return f"this selection of {self.url}"

    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """First places in the view of the sentences that have each hash, in order."""
        of_store = self.store.find(pairs, texts=texts)  # the view may be without some
        return [
            sorted(self._places[number] for number in numbers if number in self._places)
            for numbers in of_store
        ]

    def write(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> S:
        """Write the view as a store of its own and open it; ``settings`` as of `elmo_store.writer.ViewSettings`.

        An interrupted call is finished by the same call. Errors are those of `elmo_store.writer.write_view`.
        """
        root, manifest = write_view(
            self, self.numbers, self.store, url, ViewSettings(**settings), storage_options
        )
        written: S = self.store._opened(root, manifest)
        return written
