"""`Store`: a store as its consumers see it, sentences and rows of states as NumPy. Imports the other modules of this package.

Opening reads the manifest and nothing else. Everything later reads what was asked for: the rows and the states, no others.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store import layout
from elmo_store.errors import StateNotFoundError, StoreError, StoreIncompleteError
from elmo_store.manifest import Manifest, read_manifest
from elmo_store.markers import marked_shards
from elmo_store.mix import layers_of_states
from elmo_store.row_readers import RowReader, row_reader
from elmo_store.sentences import SentenceIndex, SentenceRecord
from elmo_store.storage import Root
from elmo_store.verify import VerifyReport, verify

Array = npt.NDArray[Any]
BLOCK_ROWS = 8192  # rows that iteration fetches at a time


@dataclass(frozen=True)
class Sentence(SentenceRecord):
    """A sentence of a store; its states are read when they are asked for.

    ``sentence["fwd1"]`` is [n_rows, channels]. With boundaries the first row is BOS and the last EOS; a sentence without
    tokens has no rows.
    """

    store: "Store" = field(repr=False, compare=False)

    def read(self, states: Sequence[str] | str | None = None) -> Array:
        """Its rows of the named states (all by default): [n_rows, len(states), channels] in the store's dtype."""
        return self.store.read(states, slice(self.first_row, self.first_row + self.n_rows))

    def __getitem__(self, state: str) -> Array:
        return self.read((state,))[:, 0]

    def layers(self) -> Array:
        """The L+1 layers that a scalar mix weighs: [n_rows, L+1, 2 × channels]; layer 0 is [x; x]."""
        return layers_of_states(self.read())


@dataclass(frozen=True)
class Batch:
    """Consecutive sentences and all their rows.

    Attributes:
        sentences: in order.
        offsets: int64 [len(sentences) + 1]; rows ``offsets[i] … offsets[i + 1]`` of ``states`` are those of sentence i.
        states: [rows, states asked for, channels] in the store's dtype; no padding.
    """

    sentences: tuple[Sentence, ...]
    offsets: npt.NDArray[np.int64]
    states: Array

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[tuple[Sentence, Array]]:
        """Each sentence with its rows [n_rows, states asked for, channels]."""
        for i, sentence in enumerate(self.sentences):
            yield sentence, self.states[self.offsets[i] : self.offsets[i + 1]]


class StateView:
    """One state of every row, as an array that reads when it is sliced: ``store["fwd1"][100:200]`` is [100, channels]."""

    def __init__(self, store: "Store", name: str) -> None:
        self._store, self.name = store, name
        self.shape = (store.n_rows, store.channels)
        self.dtype = store.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> Array:
        if isinstance(rows, slice):
            return self._store.read((self.name,), rows)[:, 0]
        row = rows + len(self) if rows < 0 else rows
        if not 0 <= row < len(self):
            raise IndexError(f"row {rows} of {len(self)} rows in {self._store.url}")
        return self._store.read((self.name,), slice(row, row + 1))[0, 0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a view of a store can't become an array without reading it: copy=False is not possible")
        return np.asarray(self[:], dtype)


class Store:
    """A store of states or of mixes, opened for reading. Use `elmo_store.open`; picklable, and usable after a fork."""

    def __init__(self, root: Root, manifest: Manifest, form: str) -> None:
        self._root, self._manifest, self._form = root, manifest, form
        self._sentences = SentenceIndex(root, manifest)
        self._rows: RowReader = row_reader(root, manifest, form)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._root, self._manifest, self._form)

    def __repr__(self) -> str:
        counts = self._manifest.counts
        size = f"{counts.sentences} sentences, {counts.rows} rows" if counts else "still reading its input"
        return f"<Store {self.url}: {size}, {len(self.states)} × {self.channels} {self.dtype}, {self._form}>"

    @property
    def url(self) -> str:
        """Where it is."""
        return self._root.url()

    @property
    def root(self) -> Root:
        """Its objects."""
        return self._root

    @property
    def manifest(self) -> Manifest:
        """What it says about itself."""
        return self._manifest

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states (of the weight sets, in a store of kind "mix"), in stored order."""
        return self._manifest.states

    @property
    def channels(self) -> int:
        """Numbers of one state of one row."""
        return self._manifest.channels

    @property
    def dtype(self) -> np.dtype[Any]:
        """float16 or float32."""
        return np.dtype(self._manifest.dtype)

    @property
    def n_sentences(self) -> int:
        """Sentences, those without tokens too."""
        return self._manifest.sizes.sentences

    @property
    def n_tokens(self) -> int:
        """Tokens of the corpus."""
        return self._manifest.sizes.tokens

    @property
    def n_rows(self) -> int:
        """Rows: the tokens, and with boundaries BOS and EOS of every sentence that has tokens."""
        return self._manifest.sizes.rows

    def __len__(self) -> int:
        return self.n_sentences

    def __iter__(self) -> Iterator[Sentence]:
        return self.sentences()

    def __contains__(self, state: object) -> bool:
        return state in self.states

    def __getitem__(self, state: str) -> StateView:
        self._indices((state,))
        return StateView(self, state)

    def sentence(self, index: int | None = None, *, id: str | None = None) -> Sentence:
        """Sentence number ``index`` (from 0), or the first one that has ``id``. SentenceNotFoundError if there is none."""
        if (index is None) == (id is None):
            raise TypeError("give a sentence's number, or id=…, and not both")
        record = self._sentences.by_number(index) if index is not None else self._sentences.by_id(str(id))
        return Sentence(**vars(record), store=self)

    def sentences(self, first: int = 0, stop: int | None = None) -> Iterator[Sentence]:
        """Sentences ``first … stop`` in order; their states are not read."""
        last = self.n_sentences if stop is None else min(stop, self.n_sentences)
        return (Sentence(**vars(record), store=self) for record in self._sentences.records(max(first, 0), last))

    def read(self, states: Sequence[str] | str | None = None, rows: slice | None = None) -> Array:
        """Rows of the named states, in the order named: [rows, len(states), channels] in the store's dtype.

        ``states``: names, or one name; all by default. ``rows``: a slice of the rows; all by default, so mind the memory.

        Raises:
            StateNotFoundError: the store has no state of that name.
            ShardMissingError, ShardCorruptError: naming the object.
        """
        indices = self._indices(states)
        first, stop, step = (rows or slice(None)).indices(self.n_rows)
        if step < 0:
            chosen = range(first, stop, step)
            return self.read(states, slice(chosen[-1], first + 1))[::step] if chosen else self.read(states, slice(0, 0))
        found = self._rows.read(indices, first, max(first, stop))
        return found if step == 1 else found[::step]

    def tokens(self, rows: slice | None = None) -> list[str]:
        """The token of each row; with boundaries "<S>" and "</S>" for BOS and EOS."""
        first, stop, step = (rows or slice(None)).indices(self.n_rows)
        if step != 1:
            raise ValueError(f"tokens of every {step}th row: read them all, and slice the list")
        return self._rows.tokens(first, max(first, stop))

    def batches(
        self,
        n_sentences: int = 32,
        states: Sequence[str] | str | None = None,
        *,
        first: int = 0,
        stop: int | None = None,
    ) -> Iterator[Batch]:
        """Sentences ``first … stop`` in order, ``n_sentences`` at a time, with their rows of the named states.

        Rows are fetched in blocks of 8,192 or one batch, whichever is more; memory does not grow with the store.
        """
        if n_sentences < 1:
            raise ValueError(f"batches of {n_sentences} sentences: give 1 or more")
        blocks = _Blocks(self._rows, self._indices(states), self.n_rows)
        held: list[Sentence] = []
        for sentence in self.sentences(first, stop):
            held.append(sentence)
            if len(held) == n_sentences:
                yield blocks.batch(held)
                held = []
        if held:
            yield blocks.batch(held)

    def verify(self) -> VerifyReport:
        """Read the whole store and compare it with its markers and manifest. ShardMissingError or ShardCorruptError."""
        return verify(self._root, self._manifest)

    def _indices(self, states: Sequence[str] | str | None) -> list[int]:
        names = self.states if states is None else (states,) if isinstance(states, str) else states
        for name in names:
            if name not in self.states:
                raise StateNotFoundError(f"{self.url} has no state {name!r}: it has {', '.join(self.states)}")
        return [self.states.index(name) for name in names]


class _Blocks:
    """Rows in ascending order, fetched in large pieces and handed out in small ones."""

    def __init__(self, rows: RowReader, states: Sequence[int], n_rows: int) -> None:
        self._rows, self._states, self._n_rows = rows, states, n_rows
        self._first = self._stop = 0
        self._block: Array | None = None

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        lengths = [sentence.n_rows for sentence in sentences]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        first = sentences[0].first_row
        return Batch(tuple(sentences), offsets, self._read(first, first + int(offsets[-1])))

    def _read(self, first: int, stop: int) -> Array:
        if self._block is None or first < self._first or stop > self._stop:
            # To the end of an inner chunk, so that none is fetched twice but the one that `first` lies in.
            end = -(-max(stop, first + BLOCK_ROWS) // layout.CHUNK_ROWS) * layout.CHUNK_ROWS
            self._first, self._stop = first, max(stop, min(end, self._n_rows))
            self._block = self._rows.read(self._states, self._first, self._stop)
        return self._block[first - self._first : stop - self._first].copy()


def open(  # `elmo_store.open`
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    incomplete_ok: bool = False,
    form: str | None = None,
) -> Store:
    """Open the store at ``url``: one small read, of its manifest.

    Args:
        url: a folder or any fsspec URL.
        storage_options: what the URL's filesystem takes.
        incomplete_ok: also open a store whose job has not finished; rows that aren't there yet raise ShardMissingError.
        form: "zarr" or "parquet", of a store that has both (Zarr by default).

    Raises:
        StoreNotFoundError: no store there.
        StoreIncompleteError: its job has not finished.
        StoreVersionError: of a newer format.
        ManifestError: a damaged manifest, naming the field.
    """
    root = Root(url, storage_options)
    manifest = read_manifest(root)
    if not manifest.complete and not incomplete_ok:
        done = len(marked_shards(root))
        of = f"{done} of {manifest.counts.shards} shards are written" if manifest.counts else "its input is being read"
        raise StoreIncompleteError(
            f"the store at {root} is not complete ({of}): run the command that started it again to continue it, "
            "or open it with incomplete_ok=True"
        )
    chosen = form or ("zarr" if "zarr" in manifest.forms else "parquet")
    if chosen not in manifest.forms:
        raise StoreError(f"the store at {root} has no {chosen} form: it has {' and '.join(manifest.forms)}")
    return Store(root, manifest, chosen)
