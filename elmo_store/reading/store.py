"""`Store`: a store as its consumers see it.

Opening reads the manifest and nothing else. Everything later reads what was asked for: the rows and the states, no others.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_store.checking.verify import VerifyReport, verify
from elmo_store.errors import ShardMissingError, StoreError, StoreIncompleteError
from elmo_store.format import layout
from elmo_store.format.int8 import Empty, Int8Rows
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import marked_shards, read_marker
from elmo_store.forms.runs import cut
from elmo_store.forms.shards import RowReader, row_reader
from elmo_store.reading.rows import Array, Int64, Readable, Span
from elmo_store.reading.sentences import SentenceRecord, SentenceTable
from elmo_store.reading.text_index import Text, TextIndex, build
from elmo_store.reading.views import Selection
from elmo_store.reading.watched import StoreRoot, opened_store
from elmo_store.storage.filesystems import resolved_options
from elmo_store.storage.root import Root

if TYPE_CHECKING:
    import xarray

    from elmo_store.figures.plots import StorePlots


class _Readers:
    """What one process reads with: caches, locks and event loops don't survive a fork."""

    def __init__(self, root: Root, manifest: Manifest, form: str) -> None:
        self.pid = os.getpid()
        self.sentences = SentenceTable(root, manifest)
        self.rows: RowReader = row_reader(root, manifest, form)
        self.texts = TextIndex(root, manifest, self.sentences)
        self.marked: set[int] = set()  # shards of an unfinished store that were found to be written


class Store(Readable):
    """A store of states or of mixes, opened for reading. Use `elmo_store.open`.

    Safe for threads, picklable, and usable after a fork. What reads raises StoreReplacedError once another store was written in
    its place, as with ``--overwrite``: `elmo_store.reading.watched` tells why no row of the other one is given out.

    Attributes:
        root: its objects.
        manifest: what it says about itself.
        form: "zarr" or "parquet", the form that is read.
    """

    def __init__(self, root: Root, manifest: Manifest, form: str) -> None:
        self.root = root if isinstance(root, StoreRoot) else StoreRoot(root, manifest)
        self.manifest, self.form = manifest, form
        self.url = root.url()
        self.states, self.channels, self.boundaries = manifest.states, manifest.channels, manifest.boundaries
        self.dtype: np.dtype[Any] = np.dtype("float32" if manifest.is_int8 else manifest.dtype)
        self.is_int8 = manifest.is_int8
        self._readers: _Readers | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.root, self.manifest, self.form)

    def _repr_html_(self) -> str:
        from elmo_store.figures.notebook import store_html

        return store_html(self)

    @cached_property
    def plot(self) -> "StorePlots":
        """The report's pictures, one by one: ``store.plot.norms()``. Needs the extra ``plot``."""
        from elmo_store.figures.plots import StorePlots

        return StorePlots(self)

    def __repr__(self) -> str:
        counts = self.manifest.counts
        size = f"{counts.sentences} sentences, {counts.rows} rows" if counts else "still reading its input"
        return f"<Store {self.url}: {size}, {len(self.states)} × {self.channels} {self.manifest.dtype}, {self.form}>"

    @property
    def n_sentences(self) -> int:  # type: ignore[override]
        """Sentences, those without tokens too. StoreIncompleteError while they aren't known, of an unfinished store."""
        return self.manifest.sizes.sentences

    @property
    def n_tokens(self) -> int:  # type: ignore[override]
        """Tokens of the corpus."""
        return self.manifest.sizes.tokens

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """Rows: the tokens, and with boundaries BOS and EOS of every sentence that has tokens."""
        return self.manifest.sizes.rows

    @property
    def _now(self) -> _Readers:
        readers = self._readers
        if readers is None or readers.pid != os.getpid():
            readers = self._readers = _Readers(self.root, self.manifest, self.form)
        return readers

    def _span(self, number: int) -> Span:
        return self._now.sentences.span(number)

    def _spans(self, numbers: Sequence[int] | Int64) -> Int64:
        return self._now.sentences.rows(numbers)

    def _records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        return self._now.sentences.records(numbers)

    def _find(self, ids: Sequence[str]) -> list[int]:
        return self._now.sentences.find(ids)

    def _find_all(self, ids: Sequence[str]) -> list[list[int]]:
        """Numbers of all sentences that have each id, in order. SentenceNotFoundError naming the first id that none has."""
        return self._now.sentences.find_all(ids)

    def _find_text(self, texts: Sequence[Text]) -> list[int | None]:
        return self._now.texts.find(texts)

    def _read(self, states: Sequence[int], spans: Int64) -> Array:
        return self._rows_of(spans).read(states, spans)

    def _read_raw(self, states: Sequence[int], spans: Int64) -> Int8Rows:
        return self._rows_of(spans).read_raw(states, spans)

    def _read_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Array:
        return self._rows_of((first, stop)).read_span(states, first, stop, empty)

    def _read_raw_span(self, states: Sequence[int], first: int, stop: int, empty: Empty = np.empty) -> Int8Rows:
        return self._rows_of((first, stop)).read_raw_span(states, first, stop, empty)

    def _tokens(self, first: int, stop: int) -> list[str]:
        return self._rows_of((first, stop)).tokens(first, stop)

    def _rows_of(self, spans: Int64 | Span) -> RowReader:
        """The reader of rows. ShardMissingError for a shard of an unfinished store that has no marker, whatever else there is."""
        readers = self._now
        if not self.manifest.complete:
            self._check_marked(readers, np.array(spans, np.int64).reshape(-1, 2))
        return readers.rows

    def _check_marked(self, readers: _Readers, spans: Int64) -> None:
        for shard in set(cut(spans, self.manifest.shard_rows).of.tolist()) - readers.marked:
            if read_marker(self.root, shard) is None:
                raise ShardMissingError(
                    f"{self.root.url(layout.shard_marker(shard))} is missing: shard {shard} is not written yet; "
                    "run the job again to continue it"
                )
            readers.marked.add(shard)

    def index_texts(self, tell: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        """Write the index of sentences' texts beside the store, which must be complete, as `elmo-store index --by text` does.

        ``tell`` is called with the number of sentences done. Returns the index's facts.
        """
        readers = self._now
        facts = build(self.root, self.manifest, readers.sentences, tell)
        readers.texts = TextIndex(self.root, self.manifest, readers.sentences)
        return facts

    def slice(self, first: int = 0, stop: int | None = None) -> Selection:
        """Sentences ``first … stop`` as a view, numbered from 0; `Selection.write` makes it a store of its own."""
        return Selection(self, range(self.n_sentences)[first:stop])

    def select(self, numbers: Sequence[int]) -> Selection:
        """These sentences, in this order, as a view, numbered from 0. SentenceNotFoundError."""
        return Selection(self, numbers)

    def to_xarray(self, **options: Any) -> "xarray.Dataset":
        """The Zarr form as an xarray Dataset, nothing of its rows read yet; ``options`` are those of ``xarray.open_zarr``.

        ``chunks={}`` makes dask arrays of whole shards. Of an int8 store ``data.states * data.scale`` are the states. StoreError
        for a store without the Zarr form.
        """
        if "zarr" not in self.manifest.forms:
            raise StoreError(f"{self.url} has no Zarr form, which xarray reads: it has {' and '.join(self.manifest.forms)}")
        import xarray

        given = {"chunks": None, "storage_options": self.root.storage_options} | options
        given["storage_options"] = resolved_options(given["storage_options"]) or None
        return xarray.open_zarr(self.root.url(layout.ZARR), **given)

    def verify(self, *, deep: bool = False) -> VerifyReport:
        """Read every object of the store and compare it with its marker and manifest; with ``deep`` also with one another.

        ShardMissingError or ShardCorruptError naming what is wrong. `elmo_store.checking.verify.verify` gives a report instead.
        """
        report = verify(self, deep=deep)
        report.raise_faults(str(self.root))
        return report


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
        StoreVersionError, StoreFeatureError: of a newer format, or one that needs what this package does not know.
        ManifestError: a damaged manifest, naming the field.
    """
    root, manifest = opened_store(url, storage_options)
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
