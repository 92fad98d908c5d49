"""What every readable thing of this package offers: sentences and rows of states as NumPy.

`Readable` is what a store and the views over stores share; a subclass says where the rows and the sentences come from.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import (
    AmbiguousIdError,
    SentenceNotFoundError,
    StateNotFoundError,
    StoreError,
)
from elmo_store.format import layout
from elmo_store.format.fields import KeptField
from elmo_store.format.ids import UInt64, hashes
from elmo_store.format.numbers import Array, Int8Rows, row_block
from elmo_store.format.texts import Text, hash_texts, words
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.reading import scan
from elmo_store.reading.index import Index, resolve_index, resolve_number, resolve_numbers
from elmo_store.reading.row_readers import Job, Stored, all_states, copied
from elmo_store.reading.sentences import Int64, SentenceRecord, Starts, check_row_count

Span = tuple[int, int]  # first row, and the row after the last
Spans = Int64 | Sequence[Span]  # [n, 2]
WORDS_SHOWN = 6  # of a sentence, where it is printed
COLUMNS_AT_ONCE = 1 << 16  # sentences whose columns are read together


class Sentence(msgspec.Struct, eq=False, gc=False):
    """A sentence: its place and its rows are known, its text and its states are read when they are asked for.

    ``sentence["fwd1"]`` is [n_rows, channels]. With boundaries the first row is BOS and the last EOS; a sentence without
    tokens has no rows.

    Attributes:
        index: its number in the store.
        span: its first row in the store and the row after its last.
    """

    _store: "Readable"
    index: int
    span: Span
    _record: SentenceRecord | None = None

    def __repr__(self) -> str:
        words = self.tokens
        text = " ".join(words[:WORDS_SHOWN]) + (" …" if len(words) > WORDS_SHOWN else "")
        return f"<Sentence {self.index:,} of {self._store.url}: {text!r}, rows {self.span[0]:,} … {self.span[1]:,}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sentence):
            return NotImplemented
        return self._store is other._store and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self._store), self.index))

    @property
    def first_row(self) -> int:
        """Its first row in the store."""
        return self.span[0]

    @property
    def n_rows(self) -> int:
        """How many rows it has."""
        return self.span[1] - self.span[0]

    @property
    def record(self) -> SentenceRecord:
        """Number, id, source, position, rows and tokens."""
        if self._record is None:
            self._record = self._store.records([self.index])[0]
        return self._record

    @property
    def id(self) -> str:
        """Its id."""
        return self.record.id

    @property
    def source(self) -> str:
        """Full name of the file it came from."""
        return self.record.source

    @property
    def position(self) -> int:
        """Where it stands there, from 0."""
        return self.record.position

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its tokens, without BOS and EOS."""
        return self.record.tokens

    @property
    def fields(self) -> dict[str, Any]:
        """What it keeps of its record's fields, by column (`--keep-fields`); a field of its tokens is a list of so many."""
        return self._columns(list(self._store.fields))

    @property
    def document(self) -> str:
        """The document that it stands in. StoreError of a store from before there was such a column."""
        return str(self._columns(["document"])["document"])

    @property
    def document_sentence(self) -> int:
        """Its number in its document, from 0. StoreError as of `document`."""
        return int(self._columns(["document_sentence"])["document_sentence"])

    def _columns(self, names: Sequence[str]) -> dict[str, Any]:
        values: dict[str, Any] = (
            self._store.table([self.index], names).to_pylist()[0] if names else {}
        )
        return values

    def read(
        self,
        states: Sequence[str] | str | None = None,
        *,
        boundaries: bool = True,
        copy: bool = True,
    ) -> Array:
        """Its rows of the named states (all by default): [n_rows, len(states), channels] in the store's dtype.

        ``boundaries=False`` leaves out the rows of BOS and EOS, where the store has them. ``copy=False`` gives a read-only array,
        which is a view of the shard's mapped file where that is possible. The view stays valid as long as it or an array made of
        it lives, also when the store is closed or replaced.
        """
        store = self._store
        first, stop = self.span if boundaries else store.without_boundaries(self.span)
        places = store.all_places if states is None else store.state_indices(states)
        view = None if store.is_int8 else store.view(places, first, stop)
        if view is None:
            rows: Array = store.read_span(places, first, stop, False, copy)
            return rows
        return view.copy("K") if copy else view

    def __getitem__(self, state: str) -> Array:
        return self.read((state,))[:, 0]

    def layers(self, *, boundaries: bool = True) -> Array:
        """The L+1 layers that a scalar mix weighs: [n_rows, L+1, 2 × channels]; layer 0 is [x; x]."""
        return layers_of_states(self.read(boundaries=boundaries))


@dataclass(eq=False)
class Batch:
    """Sentences and all their rows.

    Attributes:
        store: what they were read from.
        numbers: the sentences' numbers in it, in the order asked for.
        spans: int64 [len(numbers), 2], first row in the store of each sentence and the row after its last.
        kept: the spans that are read, without the rows of BOS and EOS where they are left out.
        states: [rows, states asked for, channels] in the store's dtype, int8 if ``raw`` was asked for; no padding. It may be a
            read-only view of mapped rows, or of a larger array.
        scale: float32 [rows, states asked for] with ``raw``: ``states × scale`` are the states. None otherwise.
    """

    store: "Readable"
    numbers: Sequence[int]
    spans: Int64
    kept: Int64
    states: Array
    scale: Array | None = None

    @cached_property
    def offsets(self) -> Int64:
        """int64 [len(numbers) + 1]; rows ``offsets[i] … offsets[i + 1]`` of ``states`` are those of sentence i."""
        return offsets_of(self.kept)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences, in the order asked for; made when they are asked for, so that a scan of vectors doesn't pay for them."""
        return tuple(self.store._sentences(self.numbers, self.spans))

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"<Batch of {len(self):,} sentences, {self.offsets[-1]:,} rows of {self.states.shape[1]} × {self.states.shape[2]}>"

    def __iter__(self) -> Iterator[tuple[Sentence, Array]]:
        """Each sentence with its rows [n_rows, states asked for, channels]."""
        edges = self.offsets.tolist()
        for i, sentence in enumerate(self.sentences):
            yield sentence, self.states[edges[i] : edges[i + 1]]


class StateView:
    """One state of every row, as an array that reads when it is indexed: ``store["fwd1"][100:200]`` is [100, channels]."""

    def __init__(self, store: "Readable", name: str) -> None:
        self._store, self.name = store, name
        self.shape = (store.n_rows, store.channels)
        self.dtype = store.dtype
        self.ndim = 2

    def __repr__(self) -> str:
        return f"<StateView {self.name} of {self._store.url}: {self.shape[0]:,} × {self.shape[1]} {self.dtype}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Index) -> Array:
        _check_one_axis(rows)
        return self._store.read((self.name,), rows)[..., 0, :]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                "a view of a store can't become an array without reading it: copy=False is not possible"
            )
        return np.asarray(self[:], dtype)


class Readable(ABC):
    """Sentences in order, each with its rows; rows numbered without gaps, each with its states."""

    url: str
    states: tuple[
        str, ...
    ]  # names of the states (of the weight sets, in a store of kind "mix"), in stored order
    channels: int  # numbers of one state of one row
    dtype: np.dtype[Any]  # of what is read: float16 or float32
    is_int8: bool = False  # whether it is stored in 8 bits, which are read as float32
    boundaries: bool  # whether BOS and EOS have rows
    n_sentences: int  # those without tokens too
    n_tokens: int
    n_rows: int  # the tokens, and with boundaries BOS and EOS of every sentence that has tokens
    fields: Mapping[str, KeptField]  # what sentences keep of their records' fields, by column
    cut_bytes: int | None  # that the model reads of a token, None where its options don't say

    _starts: Starts  # where its sentences' rows are

    def spans(self, numbers: Index) -> Int64:
        """Rows of each sentence, first and the one after the last: int64 [n, 2]. SentenceNotFoundError."""
        return self._starts.spans(numbers)

    def span(self, number: int | np.integer[Any]) -> Span:
        """Rows of one sentence. SentenceNotFoundError."""
        return self._starts.span(number)

    @abstractmethod
    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Everything about each sentence. SentenceNotFoundError."""

    @abstractmethod
    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """Id and tokens of each sentence; nothing else of them is read. SentenceNotFoundError."""

    @abstractmethod
    def table(self, numbers: Index, columns: Sequence[str] | str) -> pa.Table:
        """These columns of ``sentences/``, a row a sentence, in the order of ``numbers``. SentenceNotFoundError, StoreError."""

    @abstractmethod
    def find(self, pairs: UInt64, *, texts: bool = False) -> list[list[int]]:
        """Numbers of all sentences whose id, or with ``texts`` whose text, has each hash [n, 2], in order."""

    def find_ids(self, ids: Sequence[str] | str) -> list[list[int]]:
        """Return the numbers of all sentences that have each id, in order; none for an id of no sentence.

        One string is one id. TypeError for an id that is not a string.
        """
        names = as_names(ids)
        return self.find(hashes(names)) if names else []

    def find_text(self, texts: Sequence[Text] | str) -> list[int | None]:
        """The number of the first sentence that has each text, None where none has it; at most three requests at any size.

        A text is a sequence of tokens (str, or bytes in UTF-8), or one string of tokens with single spaces between them; nothing
        is tokenised. One string in place of ``texts`` is one text. Tokens are compared as the model reads them, so what it
        cuts off a long word (48 bytes are read) does not count.
        """
        listed = [texts] if isinstance(texts, str) else texts
        hits = self.find(hash_texts(listed, self.cut_bytes), texts=True) if len(listed) else []
        return [min(own, default=None) for own in hits]

    def _shown(self) -> str:
        """What errors call it."""
        return self.url

    def _find(self, ids: Sequence[str]) -> list[int]:
        """Number of the sentence that has each id. SentenceNotFoundError, AmbiguousIdError."""
        return [
            the_one(self._shown(), sentence_id, own)
            for sentence_id, own in zip(ids, self.find_ids(ids), strict=True)
        ]

    @abstractmethod
    def fill(self, states: Sequence[int], jobs: Sequence[Job], rows: Stored) -> None:
        """Read rows of the states at these places of `states` to where in ``rows`` the jobs say, all of them at once."""

    @abstractmethod
    def view(self, states: Sequence[int], first: int, stop: int) -> Stored | None:
        """Rows without a copy, read-only, as they are stored; None where that can't be."""

    @abstractmethod
    def views(self, states: Sequence[int], spans: Int64) -> list[Stored] | None:
        """`view` of each of the spans [n, 2], of one that lies in several shards a copy; None where rows are not mapped."""

    def read_span(
        self, states: Sequence[int], first: int, stop: int, raw: bool = False, copy: bool = True
    ) -> Any:
        """`read_spans` of one span; with ``copy`` False read-only, and without a copy where that can be."""
        rows = self.view(states, first, stop)
        if rows is not None and not self.is_int8:
            return rows.copy("K") if copy else rows
        if rows is not None and raw:
            return copied(rows) if copy else rows
        if rows is None:
            rows = self._fetched(states, [(first, stop)])
        read = rows.floats() if self.is_int8 and not raw else rows
        if not copy:
            for array in read if raw else (read,):
                array.flags.writeable = False
        return read

    def plain_views(self, states: Sequence[int], spans: Int64) -> list[Array] | None:
        """`views` of what is read as it is stored; None where rows are not mapped, or in 8 bits."""
        return None if self.is_int8 else self.views(states, spans)

    def rows_of(self, states: Sequence[int], spans: Int64, runs: Int64) -> list[Array]:
        """Rows of each of the spans [n, 2] in the store's dtype, views where they can be; ``runs``: the same in fewer spans."""
        views = self.plain_views(states, spans)
        if views is not None:
            return views
        rows, edges = self.read_spans(states, runs), offsets_of(spans).tolist()
        return [rows[first:stop] for first, stop in pairwise(edges)]

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False) -> Any:
        """Rows of the states at these places of `states`, span after span [n, 2]: [rows, len(states), channels].

        ``raw``: of what is stored in 8 bits, `Int8Rows`. In memory it is one state after the other.
        """
        wanted = np.asarray(spans, np.int64).reshape(-1, 2)
        views = self.views(states, wanted)
        if views:
            rows = self._block(len(states), int((wanted[:, 1] - wanted[:, 0]).sum()))
            if self.is_int8:
                np.concatenate([own.values for own in views], out=rows.values)
                np.concatenate([own.scale for own in views], out=rows.scale)
            else:
                np.concatenate(views, out=rows)
        else:
            rows = self._fetched(states, wanted.tolist())
        return rows.floats() if self.is_int8 and not raw else rows

    def _fetched(self, states: Sequence[int], spans: Iterable[Sequence[int]]) -> Stored:
        jobs, n_rows = list[Job](), 0
        for first, stop in spans:
            jobs.append((first, stop, n_rows))
            n_rows += stop - first
        rows = self._block(len(states), n_rows)
        self.fill(states, jobs, rows)
        return rows

    def _block(self, n_states: int, n_rows: int) -> Stored:
        return row_block(n_states, n_rows, self.channels, np.int8 if self.is_int8 else self.dtype)

    def check_raw(self, raw: bool = True) -> None:
        """StoreError if ``raw`` rows are wanted of what is not stored in 8 bits."""
        if raw and not self.is_int8:
            raise StoreError(
                f"{self.url} holds {self.dtype}, no int8 with scales: read its numbers as they are"
            )

    def _is_as(self, store: "Readable") -> None:
        """Take over what a view of ``store`` has in common with it."""
        self.url, self.states, self.channels, self.dtype = (
            store.url,
            store.states,
            store.channels,
            store.dtype,
        )
        self.is_int8, self.boundaries, self.fields = store.is_int8, store.boundaries, store.fields
        self.cut_bytes = store.cut_bytes

    def __len__(self) -> int:
        return self.n_sentences

    def __iter__(self) -> Iterator[Sentence]:
        return self.sentences()

    def __contains__(self, state: object) -> bool:
        return state in self.states

    @overload
    def __getitem__(self, key: str) -> StateView: ...
    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Sentence: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[Any]) -> list[Sentence]: ...
    def __getitem__(self, key: str | Index) -> StateView | Sentence | list[Sentence]:
        """``["fwd1"]`` is a state of all rows; ``[7]``, ``[-1]`` a sentence; ``[10:20]``, ``[[3, 1]]`` lists of sentences."""
        if isinstance(key, str):
            self.state_indices((key,))
            return StateView(self, key)
        _check_one_axis(key)
        chosen = resolve_index(key, self.n_sentences, "sentence", self.url)
        if isinstance(chosen, int):
            return Sentence(self, chosen, self.span(chosen))
        numbers = chosen if isinstance(chosen, range) else chosen.tolist()
        return self._sentences(numbers, self.spans(chosen))

    def _sentences(self, numbers: Sequence[int], spans: Int64) -> list[Sentence]:
        return [
            Sentence(self, number, (first, stop))
            for number, (first, stop) in zip(numbers, spans.tolist(), strict=True)
        ]

    def sentence(
        self,
        index: int | np.integer[Any] | None = None,
        *,
        id: str | None = None,
        text: Text | None = None,
    ) -> Sentence:
        """Sentence number ``index`` (from 0), or the one that has ``id``, or the first that has ``text`` as `find_text` takes it.

        A negative number counts from the end. SentenceNotFoundError if there is none; AmbiguousIdError if several
        sentences have the id; TypeError for an index that is no integer.
        """
        if type(index) is int and index >= 0 and id is None and text is None:  # the usual case
            return Sentence(self, index, self._starts.span(index))
        if (index is not None) + (id is not None) + (text is not None) != 1:
            raise TypeError("give a sentence's number, or id=…, or text=…, and one of them only")
        if index is not None:
            found: int | None = resolve_number(index, self.n_sentences, "sentence", self.url)
        else:
            found = self._find([str(id)])[0] if text is None else self.find_text([text])[0]
        if found is None:
            raise SentenceNotFoundError(
                f"no sentence of {self.url} has the tokens {' '.join(map(str, words(text or '')))!r}"
            )
        if text is not None:
            self.check_row_count(found, len(words(text)))
        return Sentence(self, found, self.span(found))

    def sentence_at(self, row: int | np.integer[Any]) -> Sentence:
        """Return the sentence that row ``row`` belongs to, found by bisection. Raises as `resolve_number`."""
        row = resolve_number(row, self.n_rows, "row", self.url)
        low, high = 0, self.n_sentences
        while low < high:  # the first sentence that ends after the row
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.span(middle)[1] <= row else (low, middle)
        return Sentence(self, low, self.span(low))

    @overload
    def sentences(self, first: int | None = 0, stop: int | None = None) -> Iterator[Sentence]: ...
    @overload
    def sentences(
        self, first: int | None = 0, stop: int | None = None, *, columns: Sequence[str] | str
    ) -> pa.Table: ...
    def sentences(
        self,
        first: int | None = 0,
        stop: int | None = None,
        *,
        columns: Sequence[str] | str | None = None,
    ) -> Iterator[Sentence] | pa.Table:
        """Sentences ``first … stop`` in order, with their text; their states are not read.

        ``first`` and ``stop`` are those of a slice. With ``columns`` a PyArrow table of these columns of ``sentences/``
        alone, kept fields (`fields`) among them.
        """
        numbers = self._slice_of_sentences(first, stop)
        if columns is None:
            return self._each_sentence(numbers.start, numbers.stop)
        starts = numbers[::COLUMNS_AT_ONCE] or (numbers.start,)  # a table without rows has columns
        return pa.concat_tables(
            self.table(range(start, min(start + COLUMNS_AT_ONCE, numbers.stop)), columns)
            for start in starts
        )

    def _slice_of_sentences(self, first: int | None, stop: int | None) -> range:
        numbers = resolve_index(slice(first, stop), self.n_sentences, "sentence", self.url)
        assert isinstance(numbers, range)
        return numbers

    def _each_sentence(self, first: int, stop: int) -> Iterator[Sentence]:
        for start in range(first, stop, 1024):
            for record in self.records(range(start, min(start + 1024, stop))):
                yield Sentence(
                    self, record.index, (record.first_row, record.first_row + record.n_rows), record
                )

    def state_indices(self, states: Sequence[str] | str | None = None) -> Sequence[int]:
        """Places of the named states (all by default) among `states`. StateNotFoundError naming the first that isn't there."""
        if states is None:
            return self.all_places
        names = (states,) if isinstance(states, str) else states
        for name in names:
            if name not in self.states:
                raise StateNotFoundError(
                    f"{self.url} has no state {name!r}: it has {', '.join(self.states)}"
                )
        return [self.states.index(name) for name in names]

    @cached_property
    def all_places(self) -> range:
        """The places of all states."""
        return all_states(len(self.states))

    def check_row_count(self, number: int, n_tokens: int) -> None:
        """Raise ShardCorruptError unless a sentence of ``n_tokens`` tokens has as many rows as these ask for."""
        span = self.span(number)
        check_row_count(self.url, number, span, n_tokens, boundaries=self.boundaries)

    def without_boundaries(self, span: Span) -> Span:
        """A sentence's rows without those of BOS and EOS, where the store has them."""
        first, stop = span
        return (first + 1, stop - 1) if self.boundaries and stop > first else span

    def read(self, states: Sequence[str] | str | None = None, rows: Index | None = None) -> Array:
        """Rows of the named states, in the order named: [rows, len(states), channels] in the store's dtype.

        ``states``: names, or one name; all by default. ``rows``: what NumPy takes along one axis: a slice, a list or array of
        numbers (negative ones count from the end), a mask of all rows, or one number, which gives [len(states), channels].
        All by default, so mind the memory.

        Raises:
            StateNotFoundError: the store has no state of that name.
            IndexError: no such row.
            ShardMissingError, ShardCorruptError: naming the object.
        """
        return self._read_rows(states, rows, raw=False)

    def read_raw(
        self, states: Sequence[str] | str | None = None, rows: Index | None = None
    ) -> Int8Rows:
        """`read` of an int8 store, as it stores them: int8 [rows, len(states), channels] and their scales [rows, len(states)].

        ``read_raw(…).floats()`` is what `read` gives. Raises what `read` does; StoreError of a store in another dtype.
        """
        self.check_raw()
        return self._read_rows(states, rows, raw=True)

    def _read_rows(self, states: Sequence[str] | str | None, rows: Index | None, raw: bool) -> Any:
        indices = self.state_indices(states)
        index = slice(None) if rows is None else rows
        chosen = resolve_index(index, self.n_rows, "row", self.url)
        if isinstance(chosen, int):
            return self.read_spans(indices, [(chosen, chosen + 1)], raw)[0]
        if isinstance(chosen, range) and chosen.step < 0:
            return self.read_spans(indices, _row_spans(chosen[::-1]), raw)[::-1]
        return self.read_spans(indices, _row_spans(chosen), raw)

    def tokens(self, rows: Index | None = None) -> list[str]:
        """Return the token of each row, all by default, as its sentence has it.

        With boundaries the tokens of BOS and EOS are "<S>" and "</S>". ``rows`` are as of `read`; one row gives a list of one.
        """
        index = slice(None) if rows is None else rows
        chosen = resolve_numbers(index, self.n_rows, "row", self.url)
        if isinstance(chosen, range) and chosen:  # read at once, also where rows are left out
            first, last = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
            return text_of_rows(self, first, last + 1)[0][:: chosen.step]
        spans = _row_spans(chosen).tolist()
        return [token for span in spans for token in text_of_rows(self, *span)[0]]

    def read_sentences(
        self,
        numbers: Index | None = None,
        *,
        ids: Sequence[str] | str | None = None,
        states: Sequence[str] | str | None = None,
        boundaries: bool = True,
        raw: bool = False,
    ) -> Batch:
        """Sentences by number or by id, in any order, with their rows of the named states; all of them fetched at once.

        ``numbers`` are as NumPy takes them, as of `Store.select`; one string in place of ``ids`` is one id.
        ``boundaries=False`` leaves out the rows of BOS and EOS, where the store has them; ``raw=True`` gives what an int8 store
        stores, see `Batch`. SentenceNotFoundError, AmbiguousIdError.
        """
        if (numbers is None) == (ids is None):
            raise TypeError("give the sentences' numbers, or ids=…, and not both")
        index: Any = numbers if ids is None else self._find(as_names(ids))
        wanted = self._starts.numbers(index)
        spans = self.spans(wanted)
        kept = spans if boundaries else self.inner_spans(spans)
        self.check_raw(raw)
        rows = self.read_spans(self.state_indices(states), kept, raw)
        return Batch(self, wanted.tolist(), spans, kept, *(rows if raw else (rows,)))

    def batches(
        self,
        n_sentences: int = 32,
        states: Sequence[str] | str | None = None,
        *,
        first: int | None = 0,
        stop: int | None = None,
        boundaries: bool = True,
        raw: bool = False,
    ) -> Iterator[Batch]:
        """Sentences ``first … stop`` in order, ``n_sentences`` at a time, with their rows of the named states.

        ``first`` and ``stop`` are those of a slice, ``boundaries`` and ``raw`` as of `read_sentences`. Where rows are mapped, a
        batch is a read-only view of them, which stays valid as long as it lives; elsewhere rows are fetched in large blocks,
        the next ones while this one is used. What the process owns does not grow with the store; its resident memory may count
        mapped pages, which the system takes back.
        """
        if n_sentences < 1:
            raise ValueError(f"batches of {n_sentences} sentences: give 1 or more")
        chosen = self._slice_of_sentences(first, stop)
        if not chosen:
            return
        self.check_raw(raw)
        for numbers, spans, rows in scan.batches(
            self, chosen, n_sentences, self.state_indices(states), raw
        ):
            kept = spans
            if self.boundaries and not boundaries:
                kept, base = self.inner_spans(spans), int(spans[0, 0])
                rows = rows[
                    np.concatenate([np.arange(a - base, b - base) for a, b in kept.tolist()])
                ]
            yield Batch(self, numbers, spans, kept, *(rows if raw else (rows,)))

    def inner_spans(self, spans: Int64) -> Int64:
        """`without_boundaries` of each of the spans [n, 2]."""
        filled = spans[:, 1] > spans[:, 0]
        return spans + (filled[:, None] * np.array([1, -1]) if self.boundaries else 0)


def offsets_of(spans: Int64) -> Int64:
    """Where the rows of each of the spans [n, 2] begin if they follow each other, and at last how many there are: [n + 1]."""
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    return offsets


def text_of_rows(
    store: Readable, first: int, stop: int
) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Token, sentence and place in its sentence of rows ``first … stop``, as the sentences say (not the rows' own tokens)."""
    tokens: list[str] = []
    numbers: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    positions: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    if first < stop:
        for record in store.records(
            range(store.sentence_at(first).index, store.sentence_at(stop - 1).index + 1)
        ):
            lo, hi = max(first - record.first_row, 0), min(stop - record.first_row, record.n_rows)
            shown = (
                [layout.BOS_TOKEN, *record.tokens, layout.EOS_TOKEN]
                if store.boundaries and record.n_rows
                else record.tokens
            )
            tokens += shown[lo:hi]
            numbers.append(np.full(max(0, hi - lo), record.index, np.int64))
            positions.append(np.arange(lo, max(lo, hi), dtype=np.int32))
    return tokens, np.concatenate(numbers), np.concatenate(positions)


def the_one(where: str, sentence_id: str, numbers: Sequence[int]) -> int:
    """The number of the sentence that has this id. SentenceNotFoundError if there is none, AmbiguousIdError for several."""
    if not numbers:
        raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {where}")
    if len(numbers) > 1:
        raise AmbiguousIdError(where, sentence_id, numbers)
    return numbers[0]


def as_names(names: Sequence[str] | str) -> list[str]:
    """Return names, of ids or columns, as a list: one string is one name. TypeError for what is no string."""
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(
                f"{name!r} ({type(name).__name__}) is not a string: pass names as strings"
            )
    return listed


def _check_one_axis(index: Any) -> None:
    if isinstance(index, tuple):
        raise TypeError(f"an index of one axis is wanted, got {index!r}: pass numbers as a list")


def _row_spans(rows: Sequence[int] | Int64) -> Int64:
    """Rows in order as spans of consecutive ones: [n, 2]."""
    if isinstance(rows, range) and rows.step == 1:
        return np.array([[rows.start, max(rows.start, rows.stop)]], np.int64)
    wanted = np.asarray(rows, np.int64)
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    firsts, lasts = np.concatenate([[0], breaks]), np.concatenate([breaks - 1, [-1]])
    return (
        np.stack([wanted[firsts], wanted[lasts] + 1], axis=1)
        if len(wanted)
        else np.zeros((0, 2), np.int64)
    )
