"""Which sentences a view has: runs of consecutive sentences of one or more stores.

This is index algebra over NumPy arrays and reads nothing. A view of two stores may look like this:

    sentence of the view     0    1    2 │  3    4 │  5
    run                      0           │  1      │  2
    store of the run         0           │  1      │  0
    sentence of that store   10   11  12 │  0    1 │  3
    row of that store        80   84  91 │  0    7 │  20   (one more row for each token)

so ``store_of`` is [0, 1, 0], ``firsts`` is [10, 0, 3] and ``edges`` is [0, 3, 5, 6].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of consecutive sentences, in the order of the view. No run is empty.

    Attributes:
        store_of: int64 [n]. The index of the store that each run belongs to.
        firsts: int64 [n]. The number that each run's first sentence has in its store.
        edges: int64 [n + 1]. The number that each run's first sentence has in the view; the last
            entry is the number of sentences.
    """

    store_of: Int64
    firsts: Int64
    edges: Int64

    @classmethod
    def of(cls, store_of: Int64, firsts: Int64, counts: Int64) -> "Runs":
        """Return runs of ``counts`` sentences each, without those that are empty. All are [n]."""
        filled = counts > 0
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[filled])])
        return cls(store_of[filled], firsts[filled], edges)

    @classmethod
    def whole(cls, n_sentences: Sequence[int]) -> "Runs":
        """Return one run for all sentences of each store, given how many each store has."""
        counts = np.array(n_sentences, np.int64)
        return cls.of(np.arange(len(counts)), np.zeros(len(counts), np.int64), counts)

    @classmethod
    def concat(cls, parts: Iterable[tuple["Runs", int]]) -> "Runs":
        """Return all runs of ``parts`` in order.

        Args:
            parts: runs, each with the number that is added to the indices of their stores.
        """
        store_of, firsts, counts = [], [], []
        for runs, first_store in parts:
            store_of.append(runs.store_of + first_store)
            firsts.append(runs.firsts)
            counts.append(runs.counts)
        return cls.of(np.concatenate(store_of), np.concatenate(firsts), np.concatenate(counts))

    @property
    def counts(self) -> Int64:
        """int64 [n]. The number of sentences in each run."""
        return np.diff(self.edges)

    @property
    def n_sentences(self) -> int:
        """The number of sentences in the view."""
        return int(self.edges[-1])

    def locate(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the run of each sentence [n] and the sentence's number in its store [n]."""
        run = np.searchsorted(self.edges, numbers, "right") - 1
        return run, numbers - self.edges[run] + self.firsts[run]

    def take(self, numbers: range | Int64) -> "Runs":
        """Return the runs of these sentences, in this order; neighbours are joined again.

        Args:
            numbers: numbers of sentences of the view, each from 0 to ``n_sentences - 1``.
        """
        if isinstance(numbers, range) and numbers.step == 1:
            return self._between(numbers.start, max(numbers.start, numbers.stop))
        run, sentences = self.locate(np.asarray(numbers, np.int64))
        store_of = self.store_of[run]
        begins = np.ones(len(sentences), bool)
        begins[1:] = (store_of[1:] != store_of[:-1]) | (sentences[1:] != sentences[:-1] + 1)
        starts = np.flatnonzero(begins)
        counts = np.diff(np.append(starts, len(sentences)))
        return Runs.of(store_of[starts], sentences[starts], counts)

    def _between(self, first: int, stop: int) -> "Runs":
        """Return the runs of sentences ``first`` to ``stop - 1``, without a look at each sentence."""
        low = np.maximum(self.edges[:-1], first)
        high = np.minimum(self.edges[1:], stop)
        overlapping = np.flatnonzero(low < high)
        firsts = self.firsts[overlapping] + (low - self.edges[:-1])[overlapping]
        return Runs.of(self.store_of[overlapping], firsts, (high - low)[overlapping])

    def by_store(self, run: Int64) -> list[tuple[int, Int64]]:
        """Group runs by their stores.

        Args:
            run: runs, one for each of some sentences [n]; a run may come several times.

        Returns:
            For each store that occurs its index, and the positions in ``run`` that belong to it,
            in order.
        """
        if not len(run):
            return []
        store_of = self.store_of[run]
        order = np.argsort(store_of, kind="stable")
        boundaries = np.flatnonzero(np.diff(store_of[order])) + 1
        return [(int(store_of[own[0]]), own) for own in np.split(order, boundaries)]

    def occurrences(self, store: int, sentences: Int64) -> tuple[Int64, Int64]:
        """Find where sentences of a store stand in the view: nowhere, once, or several times.

        Args:
            store: the store's index.
            sentences: numbers of the store's sentences [n].

        Returns:
            Two arrays [m], sorted by the second: positions in ``sentences``, and the numbers that
            these sentences have in the view.
        """
        firsts, counts, edges, are_apart = self._of_store.get(store, _NO_RUNS)
        if are_apart:
            run = np.searchsorted(firsts, sentences, "right") - 1
            run = np.where(run < 0, 0, run)
            found = np.flatnonzero(_inside(sentences, firsts[run], counts[run]))
            run = run[found]
        else:  # a sentence may be in several runs
            pairs = [
                np.flatnonzero(_inside(sentence, firsts, counts)) for sentence in sentences.tolist()
            ]
            found = np.repeat(np.arange(len(sentences)), list(map(len, pairs)))
            run = np.concatenate([np.zeros(0, np.int64), *pairs])
        numbers = edges[run] + sentences[found] - firsts[run]
        order = np.argsort(numbers, kind="stable")
        return found[order], numbers[order]

    @cached_property
    def _of_store(self) -> dict[int, tuple[Int64, Int64, Int64, bool]]:
        """For each store: firsts, counts and edges of its runs by first sentence; do they overlap?"""
        runs_of = {}
        for store, positions in self.by_store(np.arange(len(self.firsts))):
            order = positions[np.argsort(self.firsts[positions], kind="stable")]
            firsts, counts = self.firsts[order], self.counts[order]
            are_apart = bool((firsts[1:] >= firsts[:-1] + counts[:-1]).all())
            runs_of[store] = firsts, counts, self.edges[:-1][order], are_apart
        return runs_of


_NONE = np.zeros(0, np.int64)
_NO_RUNS = (_NONE, _NONE, _NONE, False)


def _inside(sentences: Int64 | int, firsts: Int64, counts: Int64) -> npt.NDArray[np.bool_]:
    """Return whether each sentence is in the run beside it."""
    return (sentences >= firsts) & (sentences < firsts + counts)


@dataclass(frozen=True, eq=False)
class RowRuns:
    """The rows of `Runs`, run by run.

    Attributes:
        firsts: int64 [n]. The row that each run begins with in its store.
        edges: int64 [n + 1]. The row that each run begins with in the view; the last entry is the
            number of rows.
    """

    firsts: Int64
    edges: Int64

    @classmethod
    def of(cls, firsts: Int64, counts: Int64) -> "RowRuns":
        """Return the rows of runs that have ``counts`` rows each. Both are [n]."""
        return cls(firsts, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))

    @property
    def shifts(self) -> Int64:
        """int64 [n]. What is added to a row of the store to make it a row of the view."""
        return self.edges[:-1] - self.firsts
