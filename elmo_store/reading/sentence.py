"""What reading returns: a sentence, a batch of sentences, one state of all rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from elmo_store.format.fields import KeptField
from elmo_store.format.numbers import Array
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.reading import scan
from elmo_store.reading.index import Index, check_one_axis, resolve_index, resolve_numbers
from elmo_store.reading.runs import Int64
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.store import Span
from elmo_store.reading.view import View, offsets_of, text_of_rows

WORDS_SHOWN = 6  # of a sentence, in its repr


class SentenceSource(Protocol):
    """Where a sentence's text and rows come from: a `View`, or sentences computed in memory."""

    url: str
    states: tuple[str, ...]
    is_int8: bool
    fields: dict[str, KeptField]

    @property
    def all_places(self) -> range:
        """The indices of all states."""

    def state_indices(self, states: Sequence[str] | str | None = None) -> Sequence[int]:
        """Return the indices of the named states. StateNotFoundError."""

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Return everything about each sentence but its states."""

    def table(self, numbers: Index, columns: Sequence[str]) -> pa.Table:
        """Return columns of the sentence table. StoreError for a column that is not there."""

    def inner_span(self, span: Span) -> Span:
        """Return a sentence's rows without those of BOS and EOS."""

    @property
    def map_span(self) -> Callable[[Sequence[int], int, int], Any]:
        """What returns rows without a copy, read-only, or None if that is impossible."""

    def read_span(
        self, states: Sequence[int], first: int, stop: int, raw: bool = False, copy: bool = True
    ) -> Any:
        """Return rows of states: [rows, len(states), channels]."""


class Sentence(msgspec.Struct, eq=False, gc=False):
    """A sentence of a store: its number and rows are known, text and states are read when asked for.

    ``len(sentence)`` is its number of tokens, ``sentence["fwd1"]`` one state of its rows:
    [n_rows, channels]. With boundaries the first row is BOS and the last one EOS. A sentence
    without tokens has no rows.

    Attributes:
        index: its number in the store.
        span: its first row in the store, and the row after its last.
    """

    _view: SentenceSource
    index: int
    span: Span
    _record: SentenceRecord | None = None

    def __repr__(self) -> str:
        words = self.tokens
        text = " ".join(words[:WORDS_SHOWN]) + (" …" if len(words) > WORDS_SHOWN else "")
        first, stop = self.span
        return f"<Sentence {self.index:,} of {self._view.url}: {text!r}, rows {first:,} … {stop:,}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sentence):
            return NotImplemented
        return self._view is other._view and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self._view), self.index))

    def __len__(self) -> int:
        first, stop = self._view.inner_span(self.span)
        return stop - first

    def __bool__(self) -> bool:
        return True  # a sentence without tokens is one, too

    @property
    def first_row(self) -> int:
        """Its first row in the store."""
        return self.span[0]

    @property
    def n_rows(self) -> int:
        """How many rows it has: its tokens, and with boundaries BOS and EOS."""
        return self.span[1] - self.span[0]

    @property
    def record(self) -> SentenceRecord:
        """Number, id, source, position, rows and tokens."""
        if self._record is None:
            self._record = self._view.records([self.index])[0]
        return self._record

    @property
    def id(self) -> str:
        """Its id."""
        return self.record.id

    @property
    def source(self) -> str:
        """Full name of the file that it came from."""
        return self.record.source

    @property
    def position(self) -> int:
        """Its position in that file, from 0."""
        return self.record.position

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its tokens, without BOS and EOS."""
        return self.record.tokens

    @property
    def states(self) -> tuple[str, ...]:
        """Names of its states."""
        return self._view.states

    @property
    def fields(self) -> dict[str, Any]:
        """What it keeps of its record, by column; a field of its tokens is a list of as many."""
        return self._columns(list(self._view.fields))

    @property
    def document(self) -> str:
        """The id of the document that it belongs to."""
        return str(self._columns(["document"])["document"])

    @property
    def document_sentence(self) -> int:
        """Its number in its document, from 0."""
        return int(self._columns(["document_sentence"])["document_sentence"])

    def _columns(self, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        values: dict[str, Any] = self._view.table([self.index], names).to_pylist()[0]
        return values

    def read(
        self,
        states: Sequence[str] | str | None = None,
        *,
        boundaries: bool = True,
        copy: bool = True,
    ) -> Array:
        """Return its rows of the named states, all by default.

        Args:
            states: names of states, or one name.
            boundaries: False leaves out the rows of BOS and EOS.
            copy: False returns a read-only array, which is a view of the shard's mapped file where
                that is possible. It stays valid as long as it lives, also when the store is closed
                or replaced. True returns an array of the caller's own.

        Returns:
            [n_rows, len(states), channels] in the store's dtype.

        Raises:
            StateNotFoundError: there is no such state.
            ShardMissingError, ShardCorruptError: naming the object.
        """
        view = self._view
        first, stop = self.span if boundaries else view.inner_span(self.span)
        places = view.all_places if states is None else view.state_indices(states)
        mapped = None if view.is_int8 else view.map_span(places, first, stop)
        if mapped is None:
            rows: Array = view.read_span(places, first, stop, False, copy)
            return rows
        return mapped.copy("K") if copy else mapped

    def __getitem__(self, state: str) -> Array:
        """Return one state of its rows: [n_rows, channels]. StateNotFoundError."""
        return self.read((state,))[:, 0]

    def layers(self, *, boundaries: bool = True) -> Array:
        """Return the layers that a scalar mix weighs: [n_rows, L+1, 2 × channels].

        Layer 0 is [x; x], layer j is [fwd j; bwd j].
        """
        return layers_of_states(self.read(boundaries=boundaries))


@dataclass(eq=False)
class Batch:
    """Sentences and all their rows.

    Attributes:
        numbers: the sentences' numbers in the store, in the order asked for.
        spans: int64 [len(numbers), 2], first row in the store of each sentence and the row after
            its last.
        kept: the spans that were read, without the rows of BOS and EOS if they were left out.
        states: [rows, states asked for, channels] in the store's dtype, int8 if ``raw`` was asked
            for; no padding. It may be a read-only view of mapped rows, or of a larger array.
        scale: float32 [rows, states asked for] with ``raw``: ``states × scale`` are the states.
            None otherwise.
    """

    _view: View
    numbers: Sequence[int]
    spans: Int64
    kept: Int64
    states: Array
    scale: Array | None = None

    @cached_property
    def offsets(self) -> Int64:
        """int64 [len(numbers) + 1]; sentence i has rows ``offsets[i] … offsets[i + 1]``."""
        return offsets_of(self.kept)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences, in the order asked for.

        They are made when they are asked for, so that a scan of vectors doesn't pay for them.
        """
        return tuple(sentences_of(self._view, self.numbers, self.spans))

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        _, n_states, channels = self.states.shape
        n_rows = int(self.offsets[-1])
        return f"<Batch of {len(self):,} sentences, {n_rows:,} rows of {n_states} × {channels}>"

    def __iter__(self) -> Iterator[tuple[Sentence, Array]]:
        """Iterate over the sentences, each with its rows [n_rows, states asked for, channels]."""
        edges = self.offsets.tolist()
        for i, sentence in enumerate(self.sentences):
            yield sentence, self.states[edges[i] : edges[i + 1]]


class StateView:
    """One state of every row: ``store["fwd1"][100:200]`` reads rows [100, channels]."""

    def __init__(self, view: View, name: str) -> None:
        """Describe a state that the view has; nothing is read."""
        self._view, self.name = view, name
        self.shape = (view.n_rows, view.channels)
        self.dtype = view.dtype
        self.ndim = 2

    def __repr__(self) -> str:
        n_rows, channels = self.shape
        return f"<StateView {self.name} of {self._view.url}: {n_rows:,} × {channels} {self.dtype}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Index) -> Array:
        """Return rows [n, channels]; of one number [channels]."""
        check_one_axis(rows)
        read: Array = read_rows(self._view, (self.name,), rows)[..., 0, :]
        return read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                f"{self!r} can't become an array without being read: copy=False is not possible"
            )
        return np.asarray(self[:], dtype)


def sentences_of(view: View, numbers: Sequence[int], spans: Int64) -> list[Sentence]:
    """Return sentences whose numbers and spans [n, 2] are known."""
    return [
        Sentence(view, number, (first, stop))
        for number, (first, stop) in zip(numbers, spans.tolist(), strict=True)
    ]


def read_batches(
    view: View,
    numbers: range,
    n_sentences: int,
    states: Sequence[str] | str | None = None,
    *,
    boundaries: bool = True,
    raw: bool = False,
) -> Iterator[Batch]:
    """Read consecutive sentences in batches, as of `elmo_store.Store.batches`.

    Args:
        view: what is read.
        numbers: the sentences' numbers, with a step of 1.
        n_sentences: sentences of a batch.
        states: names of states, or one name; all by default.
        boundaries: False leaves out the rows of BOS and EOS.
        raw: read `Int8Rows` as they are stored.
    """
    view.check_raw(raw)
    places = view.state_indices(states)
    for of_batch, spans, read in scan.batches(view, numbers, n_sentences, places, raw):
        kept, rows = spans, read
        if view.boundaries and not boundaries:
            kept, first_row = view.inner_spans(spans), int(spans[0, 0])
            inner = [np.arange(first, stop) - first_row for first, stop in kept.tolist()]
            rows = rows[np.concatenate(inner)]
        yield Batch(view, of_batch, spans, kept, *(rows if raw else (rows,)))


def read_rows(
    view: View,
    states: Sequence[str] | str | None = None,
    rows: Index | None = None,
    *,
    raw: bool = False,
) -> Any:
    """Read rows of the named states, by an index along the rows.

    Args:
        view: what is read.
        states: names of states, or one name; all by default.
        rows: as of `resolve_index`; all rows by default.
        raw: return `Int8Rows` as they are stored; StoreError unless the store is in 8 bits.

    Returns:
        [rows, len(states), channels]; of one number [len(states), channels].
    """
    view.check_raw(raw)
    places = view.state_indices(states)
    chosen = (
        range(view.n_rows) if rows is None else resolve_index(rows, view.n_rows, "row", view.url)
    )
    if isinstance(chosen, int):
        return view.read_spans(places, [(chosen, chosen + 1)], raw)[0]
    if isinstance(chosen, range) and chosen.step < 0:
        return view.read_spans(places, _row_spans(chosen[::-1]), raw)[::-1]
    return view.read_spans(places, _row_spans(chosen), raw)


def tokens_of_rows(view: View, rows: Index | None = None) -> list[str]:
    """Return the token of each row, as of `elmo_store.Store.tokens`."""
    index = slice(None) if rows is None else rows
    chosen = resolve_numbers(index, view.n_rows, "row", view.url)
    if isinstance(chosen, range) and chosen:  # read at once, also where rows are left out
        first, last = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
        return text_of_rows(view, first, last + 1)[0][:: chosen.step]
    spans = _row_spans(chosen).tolist()
    return [token for span in spans for token in text_of_rows(view, *span)[0]]


def _row_spans(rows: range | Int64) -> Int64:
    """Return rows in order as spans of consecutive ones: [n, 2]."""
    if isinstance(rows, range) and rows.step == 1:
        return np.array([[rows.start, max(rows.start, rows.stop)]], np.int64)
    wanted = np.asarray(rows, np.int64)
    if not len(wanted):
        return np.zeros((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    firsts = wanted[np.concatenate([[0], breaks])]
    lasts = wanted[np.concatenate([breaks - 1, [-1]])]
    return np.stack([firsts, lasts + 1], axis=1)
