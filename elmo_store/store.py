"""`Store`: stored sentences and their states as users hold them; `open` and `concat`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import (
    SentenceNotFoundError,
    StoreError,
    StoreIncompleteError,
    StoreNotFoundError,
)
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.fields import KeptField
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import marked
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.format.texts import Text, words
from elmo_store.format.version import Version
from elmo_store.reading.index import (
    Index,
    as_names,
    check_one_axis,
    resolve_index,
    resolve_number,
    resolve_numbers,
)
from elmo_store.reading.opening import opened_store
from elmo_store.reading.sentence import (
    Batch,
    Sentence,
    StateView,
    read_batches,
    read_rows,
    tokens_of_rows,
)
from elmo_store.reading.store import StoreReader
from elmo_store.reading.view import View
from elmo_store.storage.root import Root
from elmo_store.writer import ViewSettings, write_view

if TYPE_CHECKING:
    import xarray

    from elmo_store.checking.verify import VerifyReport
    from elmo_store.exports.job import Report

ROWS_OF_TEXT_AT_ONCE = 1024  # sentences whose text is read together
COLUMNS_AT_ONCE = 1 << 16  # sentences whose columns are read together


class Store:
    """Sentences in order, each with its rows; rows without gaps, each with its states.

    A store on a disk or in a bucket, a version of a collection, some sentences of either
    (`select`), and several of them together (`concat`) are all of this class, so everything that
    takes one takes the others. A store is a sequence of its sentences:

        store[7], store[-1]          one sentence
        store[10:20], store[[3, 1]]  some sentences, as a store; also store[mask]
        store["fwd1"]                one state of all rows, read when it is indexed

    Indices follow NumPy's rules everywhere. Nothing is read before it is asked for. Arrays that are
    returned belong to the caller and may be written to, except where a method says that it returns
    views of what is stored; those are read-only.

    Safe for threads, picklable, and usable after a fork. Reading raises StoreReplacedError once
    another store was written in this one's place, as with ``--overwrite``.

    Get one by `open`, `concat` or `select`.
    """

    def __init__(self, view: View) -> None:
        """Make a store of what this package reads. Use `open`."""
        self._view = view

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._view,)

    def __repr__(self) -> str:
        view = self._view
        parts = []
        if view.version is not None:
            n_members = len(view.version.members)
            members = "1 member" if n_members == 1 else f"{n_members} members"
            parts.append(f"version {view.version.number}, {members}")
        if view.root is None:
            parts.append("a view")
        if view.stores[0].manifest.counts is None:
            parts.append("still reading its input")
        else:
            parts.append(f"{view.n_sentences:,} sentences, {view.n_rows:,} rows")
        parts.append(f"{len(view.states)} × {view.channels} {view.stores[0].manifest.dtype}")
        parts.append(self.form)
        return f"<Store {view.url}: {', '.join(parts)}>"

    # What a store is.

    @property
    def url(self) -> str:
        """Where the store lies; of a view, where its sentences come from."""
        return self._view.url

    @property
    def manifest(self) -> Manifest:
        """What the store says about itself; of a view, what describes it as one store."""
        return self._view.manifest

    @property
    def version(self) -> Version | None:
        """The version of a collection that was opened; None for anything else."""
        return self._view.version

    @property
    def urls(self) -> list[str]:
        """Where the stores lie that the sentences come from, in order.

        Programs that read stores without this package read these. In a collection they still hold
        sentences that were removed.
        """
        return [store.url for store in self._view.stores]

    @property
    def form(self) -> str:
        """The form that is read: "zarr" or "parquet"."""
        return self._view.stores[0].form

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states, such as x, fwd1, bwd1; of a mixed store, of its weight sets."""
        return self._view.states

    @property
    def channels(self) -> int:
        """How many numbers one state of one row has."""
        return self._view.channels

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is read: float16, or float32, also of what is stored in 8 bits."""
        return self._view.dtype

    @property
    def is_int8(self) -> bool:
        """Whether states are stored in 8 bits with scales; they are read as float32."""
        return self._view.is_int8

    @property
    def boundaries(self) -> bool:
        """Whether each sentence has a row for BOS and one for EOS."""
        return self._view.boundaries

    @property
    def fields(self) -> Mapping[str, KeptField]:
        """What sentences keep of their records: column → its type, of a sentence or each token."""
        return self._view.fields

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `table`."""
        return self._view.columns

    @property
    def n_sentences(self) -> int:
        """How many sentences there are, with those that have no tokens."""
        return self._view.n_sentences

    @property
    def n_tokens(self) -> int:
        """How many tokens all sentences have."""
        return self._view.n_tokens

    @property
    def n_rows(self) -> int:
        """How many rows there are: the tokens, and with boundaries BOS and EOS of sentences."""
        return self._view.n_rows

    def __len__(self) -> int:
        return self._view.n_sentences

    def __iter__(self) -> Iterator[Sentence]:
        return self.sentences()

    def __contains__(self, state: object) -> bool:
        return state in self._view.states

    # Sentences.

    @overload
    def __getitem__(self, key: str) -> StateView: ...
    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Sentence: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[Any]) -> "Store": ...
    def __getitem__(self, key: str | Index) -> "StateView | Sentence | Store":
        """Return one state of all rows, one sentence, or some sentences as a store.

        Raises:
            StateNotFoundError: there is no such state.
            SentenceNotFoundError: there is no such sentence.
            TypeError: ``key`` is no index.
        """
        view = self._view
        if isinstance(key, str):
            view.state_indices((key,))
            return StateView(view, key)
        check_one_axis(key)
        chosen = resolve_index(key, view.n_sentences, "sentence", view.url)
        if isinstance(chosen, int):
            return Sentence(view, chosen, view.starts.span(chosen))
        return Store(view.select(chosen))

    def select(self, numbers: Index) -> "Store":
        """Return some sentences as a store, in the order of ``numbers`` and numbered from 0.

        Args:
            numbers: integers (negative ones count from the end), a slice, or a boolean mask with a
                value for each sentence. A number may come several times.

        Raises:
            SentenceNotFoundError: there is no such sentence.
            TypeError: ``numbers`` are something else.
        """
        return Store(self._view.select(numbers))

    def sentence(
        self,
        index: int | np.integer[Any] | None = None,
        *,
        id: str | None = None,
        text: Text | None = None,
    ) -> Sentence:
        """Return one sentence: by number, by id, or the first that has a text.

        Args:
            index: its number; negative ones count from the end.
            id: its id.
            text: its tokens, as of `find_text`.

        Raises:
            SentenceNotFoundError: there is none.
            AmbiguousIdError: several sentences have the id.
            TypeError: not exactly one of the three is given, or it is of another type.
        """
        view = self._view
        if type(index) is int and index >= 0 and id is None and text is None:  # the usual case
            return Sentence(view, index, view.starts.span(index))
        if (index is not None) + (id is not None) + (text is not None) != 1:
            raise TypeError("pass a sentence's number, or id=…, or text=…, and one of them only")
        if index is not None:
            number = resolve_number(index, view.n_sentences, "sentence", view.url)
            return Sentence(view, number, view.span(number))
        if id is not None:
            (number,) = view.numbers_of_ids(as_names(id))
            return Sentence(view, number, view.span(number))
        (found,) = view.find_texts([text] if text is not None else [])
        if found is None:
            shown = " ".join(map(str, words(text or "")))
            raise SentenceNotFoundError(f"no sentence of {view.url} has the tokens {shown!r}")
        view.check_row_count(found, len(words(text or "")))
        return Sentence(view, found, view.span(found))

    def sentence_at(self, row: int | np.integer[Any]) -> Sentence:
        """Return the sentence that a row belongs to. IndexError if there is no such row."""
        number = self._view.sentence_at(
            resolve_number(row, self._view.n_rows, "row", self._view.url)
        )
        return Sentence(self._view, number, self._view.span(number))

    def find_text(self, texts: Sequence[Text] | str) -> list[int | None]:
        """Return the number of the first sentence that has each text, None if none has it.

        At most three requests are made, whatever the size of the store.

        Args:
            texts: each a sequence of tokens (str, or bytes in UTF-8), or one string of tokens with
                single spaces between them; nothing is tokenised. Tokens are compared as the model
                reads them, so what it cuts off a long word (48 bytes are read) does not count.
                One string in place of a sequence of texts is one text.
        """
        return self._view.find_texts([texts] if isinstance(texts, str) else texts)

    def sentences(self, numbers: Index | None = None) -> Iterator[Sentence]:
        """Iterate over sentences with their text, in order; their states are not read.

        Args:
            numbers: which sentences, as of `select`; all by default.
        """
        view = self._view
        chosen = self._numbers(numbers)
        for start in range(0, len(chosen), ROWS_OF_TEXT_AT_ONCE):
            for record in view.records(chosen[start : start + ROWS_OF_TEXT_AT_ONCE]):
                span = record.first_row, record.first_row + record.n_rows
                yield Sentence(view, record.index, span, record)

    def table(
        self, columns: Sequence[str] | str | None = None, numbers: Index | None = None
    ) -> pa.Table:
        """Return columns of the sentence table as a PyArrow table with a row for each sentence.

        Args:
            columns: names, or one name, of `columns`, kept fields among them; all by default.
            numbers: which sentences, as of `select`; all by default.

        Raises:
            StoreError: there is no such column.
        """
        names = self.columns if columns is None else as_names(columns)
        chosen = self._numbers(numbers)
        starts = range(0, len(chosen), COLUMNS_AT_ONCE) or (0,)
        return pa.concat_tables(
            self._view.table(chosen[start : start + COLUMNS_AT_ONCE], names) for start in starts
        )

    def _numbers(self, numbers: Index | None) -> range | npt.NDArray[np.int64]:
        n_sentences = self._view.n_sentences
        if numbers is None:
            return range(n_sentences)
        return resolve_numbers(numbers, n_sentences, "sentence", self._view.url)

    # States.

    @overload
    def read(
        self,
        states: Sequence[str] | str | None = None,
        rows: Index | None = None,
        *,
        raw: Literal[False] = False,
    ) -> Array: ...
    @overload
    def read(
        self,
        states: Sequence[str] | str | None = None,
        rows: Index | None = None,
        *,
        raw: Literal[True],
    ) -> Int8Rows: ...
    def read(
        self,
        states: Sequence[str] | str | None = None,
        rows: Index | None = None,
        *,
        raw: bool = False,
    ) -> Array | Int8Rows:
        """Read rows of the named states, in the order named.

        Args:
            states: names of states, or one name; all by default.
            rows: integers, a slice or a mask along the rows, as of NumPy. All by default, so mind
                the memory.
            raw: return what a store in 8 bits holds: int8 [rows, len(states), channels] and scales
                [rows, len(states)], whose product is what is read otherwise.

        Returns:
            [rows, len(states), channels] in the store's dtype; of one row [len(states), channels].

        Raises:
            StateNotFoundError: there is no such state.
            IndexError: there is no such row.
            StoreError: ``raw`` of a store that is not in 8 bits.
            ShardMissingError, ShardCorruptError: naming the object.
        """
        read: Array | Int8Rows = read_rows(self._view, states, rows, raw=raw)
        return read

    def tokens(self, rows: Index | None = None) -> list[str]:
        """Return the token of each row, as its sentence has it.

        Args:
            rows: as of `read`; one row gives a list of one token.

        Returns:
            Tokens, with boundaries "<S>" and "</S>" for BOS and EOS.
        """
        return tokens_of_rows(self._view, rows)

    def read_sentences(
        self,
        numbers: Index | None = None,
        *,
        ids: Sequence[str] | str | None = None,
        states: Sequence[str] | str | None = None,
        boundaries: bool = True,
        raw: bool = False,
    ) -> Batch:
        """Read sentences by number or by id, all of them at once.

        Args:
            numbers: as of `select`.
            ids: ids in place of numbers, or one id.
            states: names of states, or one name; all by default.
            boundaries: False leaves out the rows of BOS and EOS.
            raw: see `Batch`; of a store in 8 bits.

        Raises:
            SentenceNotFoundError: there is no such sentence.
            AmbiguousIdError: several sentences have the id.
        """
        if (numbers is None) == (ids is None):
            raise TypeError("pass the sentences' numbers, or ids=…, and not both")
        view = self._view
        index: Any = numbers if ids is None else view.numbers_of_ids(as_names(ids))
        wanted = view.starts.numbers(index)
        view.check_raw(raw)
        spans = view.spans(wanted)
        kept = spans if boundaries else view.inner_spans(spans)
        rows = view.read_spans(view.state_indices(states), kept, raw)
        return Batch(view, wanted.tolist(), spans, kept, *(rows if raw else (rows,)))

    def batches(
        self,
        n_sentences: int = 32,
        states: Sequence[str] | str | None = None,
        *,
        boundaries: bool = True,
        raw: bool = False,
    ) -> Iterator[Batch]:
        """Read all sentences in order, some at a time, in bounded memory.

        Where rows are mapped, a batch is a read-only view of them, which stays valid as long as it
        lives. Elsewhere rows are fetched in large blocks, the next ones while this one is used.
        The process's resident memory may count mapped pages, which the system takes back.

        Args:
            n_sentences: sentences of a batch.
            states: names of states, or one name; all by default.
            boundaries: False leaves out the rows of BOS and EOS.
            raw: see `Batch`; of a store in 8 bits.

        Raises:
            ValueError: a batch would have no sentence.
        """
        if n_sentences < 1:
            raise ValueError(f"batches of {n_sentences} sentences are not possible: pass 1 or more")
        numbers = range(self._view.n_sentences)
        yield from read_batches(
            self._view, numbers, n_sentences, states, boundaries=boundaries, raw=raw
        )

    # What is made of a store.

    def write(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "Store":
        """Write these sentences as a store of its own, and open it.

        Args:
            url: an empty place: a folder, or a URL of an object store.
            storage_options: what the URL's filesystem takes.
            settings: fields of `elmo_store.writer.ViewSettings`: shard_rows, dtype, store_forms,
                compression.

        Raises:
            StoreError: something else is at ``url``, or another process writes there.
            OverlapError: ``url`` overlaps a store that the sentences come from.
        """
        root, manifest = write_view(self._view, url, ViewSettings(**settings), storage_options)
        return Store(View.of_store(StoreReader(root, manifest, manifest.forms[0])))

    def export(self, output: str | os.PathLike[str], format: str, **settings: Any) -> "Report":
        """Write the vectors as files of another program; see `elmo_store.exports.export`."""
        from elmo_store.exports.job import export

        return export(self, output, format, **settings)

    def to_xarray(self, **options: Any) -> "xarray.Dataset":
        """Return the Zarr form as an xarray Dataset, of which nothing is read yet.

        Of an int8 store ``data.states * data.scale`` are the states.

        Args:
            options: those of ``xarray.open_zarr``. ``chunks={}`` and ``chunks="auto"`` make dask
                arrays of whole shards; of a dictionary, axes that are left out, or "auto", are
                those of whole shards.

        Raises:
            StoreError: the store has no Zarr form.
        """
        from elmo_store.reading.to_xarray import dataset_of

        return dataset_of(self._view, options)

    def verify(self, *, quick: bool = False) -> "VerifyReport":
        """Compare every object with its recorded size and checksum, and return what was found.

        Args:
            quick: compare a listing with the records instead: sizes, and ETags or times.

        Raises:
            StoreError: the store is not complete.
        """
        from elmo_store.checking.verify import verify

        return verify(self._view, quick=quick)

    # A store holds nothing that has to be given back; mapped files go with the last array.

    def close(self) -> None:
        """Forget what was read and mapped. A store that is read again opens it again."""
        self._view = self._view.fresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(
    url: str | os.PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    incomplete_ok: bool = False,
    form: str | None = None,
    mapped: bool = True,
) -> Store:
    """Open the store or collection at ``url``: one small read, and for a collection a listing.

    Args:
        url: a folder or any fsspec URL.
        version: of a collection, by default the newest; a store has none.
        storage_options: what the URL's filesystem takes.
        incomplete_ok: also open a store whose job has not finished. Rows that aren't there yet
            raise ShardMissingError.
        form: "zarr" or "parquet", of a store that has both (Zarr by default).
        mapped: whether files of a local disk are mapped, which is fastest. False reads them by
            ranges, for network disks whose files may go away, or be cut, under a reader.

    Raises:
        StoreNotFoundError: no store is there, or no such version.
        StoreIncompleteError: its job has not finished.
        StoreVersionError, StoreFeatureError: it is of a newer format, or needs what this package
            does not know.
        ManifestError: a damaged manifest, naming the field.
    """
    try:
        root, manifest = opened_store(url, storage_options)
    except StoreNotFoundError:
        collection = Root(url, storage_options)
        if version is None:
            found = versions.newest(collection)
        else:
            found = versions.read_version(collection, version)
        if found is None:
            raise
        chosen = _chosen_form(collection, found.store, form)
        return Store(View.of_version(collection, found, chosen, mapped=mapped))
    if version is not None:
        raise StoreError(f"{root} is a store, which has no versions: leave version={version} out")
    if not manifest.complete and not incomplete_ok:
        error = StoreIncompleteError(
            f"the store at {root} is not complete ({_progress(root, manifest)}): run the command "
            "that started it again to continue it"
        )
        error.add_note(
            "With incomplete_ok=True it opens as it is; rows that are not there yet raise errors."
        )
        raise error
    chosen = _chosen_form(root, manifest, form)
    return Store(View.of_store(StoreReader(root, manifest, chosen, mapped=mapped)))


def concat(stores: Sequence[Store]) -> Store:
    """Return several stores of one model as one; nothing is copied.

    The sentences and rows of the second follow those of the first, and so on. An id that different
    sentences have is ambiguous in the whole, as in any store.

    Raises:
        StoreError: they differ in model, start state, states, channels, dtype or boundaries.
    """
    return Store(View.concat([store._view for store in stores]))


def view_of(store: Store | str | os.PathLike[str]) -> View:
    """Return what this package reads of a store that is open, or of one at a URL."""
    return (store if isinstance(store, Store) else open(store))._view


def _progress(root: Root, manifest: Manifest) -> str:
    if manifest.counts is None:
        return "its input is being read"
    done = len(marked(root, layout.SHARDS))
    return f"{done} of {manifest.counts.shards} shards are written"


def _chosen_form(root: Root, manifest: Manifest, form: str | None) -> str:
    chosen = form or ("zarr" if "zarr" in manifest.forms else "parquet")
    if chosen not in manifest.forms:
        has = " and ".join(manifest.forms)
        raise StoreError(f"the store at {root} has no {chosen} form: it has {has}")
    return chosen
