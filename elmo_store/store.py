"""`Store`: a store as its consumers see it, and `open`."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from elmo_store.errors import StoreError, StoreIncompleteError, StoreNotFoundError
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import marked
from elmo_store.reading.collection import CollectionReader
from elmo_store.reading.index import Index
from elmo_store.reading.opening import opened_store
from elmo_store.reading.store import StoreReader
from elmo_store.selection import Selection
from elmo_store.storage.filesystems import resolved_options
from elmo_store.storage.root import Root

if TYPE_CHECKING:
    import xarray

    from elmo_store.checking.verify import VerifyReport


class Store(StoreReader):
    """A store of states or of mixes, opened for reading. Use `open`.

    Safe for threads, picklable, and usable after a fork. What reads raises StoreReplacedError once another store was written in
    its place, as with ``--overwrite``.

    Attributes:
        root: its objects.
        manifest: what it says about itself.
        form: "zarr" or "parquet", the form that is read.
    """

    def slice(self, first: int | None = 0, stop: int | None = None) -> Selection[Self]:
        """Return sentences ``first … stop`` as a view, numbered from 0.

        ``first`` and ``stop`` are those of a Python slice. `Selection.write` makes the view a store of its own.
        """
        return Selection(self, slice(first, stop))

    def select(self, numbers: Index) -> Selection[Self]:
        """Return these sentences as a view, in this order and numbered from 0.

        Args:
            numbers: as NumPy takes them: integers (negative ones count from the end), a slice, or a mask with
                a value for each sentence.

        Raises:
            SentenceNotFoundError: no sentence has that number.
            TypeError: ``numbers`` are something else.
        """
        return Selection(self, numbers)

    def to_xarray(self, **options: Any) -> "xarray.Dataset":
        """The Zarr form as an xarray Dataset, nothing of its rows read yet; ``options`` are those of ``xarray.open_zarr``.

        ``chunks={}`` and ``chunks="auto"`` make dask arrays of whole shards; of a dictionary, axes that are left out, or "auto",
        are those of whole shards. Of an int8 store ``data.states * data.scale`` are the states. StoreError for a store
        without the Zarr form.
        """
        if "zarr" not in self.manifest.forms:
            raise StoreError(
                f"{self.url} has no Zarr form, which xarray reads: it has {' and '.join(self.manifest.forms)}"
            )
        import xarray

        settings = {"chunks": None, "storage_options": self.root.storage_options} | options
        settings["storage_options"] = resolved_options(settings["storage_options"]) or None
        settings["chunks"] = self._dask_chunks(settings["chunks"])
        return xarray.open_zarr(self.root.url(layout.ZARR), **settings)

    def _dask_chunks(self, chunks: Any) -> Any:
        """Return ``chunks`` of xarray.open_zarr, with whole shards where the choice is left to xarray.

        xarray would take the inner chunks of shards, one state of 128 rows each, and "auto" fails for tokens.
        """
        if chunks == "auto":
            chunks = {}
        if not isinstance(chunks, Mapping):
            return chunks
        manifest = self.manifest
        shard = {
            "row": manifest.shard_rows,
            "state": len(manifest.states),
            "channel": manifest.channels,
        }
        return shard | {axis: size for axis, size in chunks.items() if size != "auto"}

    def verify(self) -> "VerifyReport":
        """Read every object of the store and compare it with its marker and manifest.

        ShardMissingError or ShardCorruptError naming what is wrong. `elmo_store.checking.verify.verify` gives a report instead.
        """
        from elmo_store.checking.verify import verify

        report = verify(self)
        report.raise_faults(str(self.root))
        return report


class Collection(CollectionReader, Store):
    """A version of a collection, as one store: what its members hold, one after the other, without what was removed.

    Everything that takes a store takes it. A new version does not change one that is open. Use `open`.

    Attributes:
        root: the collection's folder.
        version: `elmo_store.format.version.Version`: its number, its members.
        manifest: what it says about itself as one store.
        form: "zarr" or "parquet", the form that is read.
    """

    def __repr__(self) -> str:
        members = f"version {self.version.number}, {len(self.version.members)} members"
        return super().__repr__().replace(f"{self.url}: ", f"{self.url}: {members}, ", 1)

    @property
    def urls(self) -> list[str]:
        """Its members, in order, for programs that read stores without this package; removed sentences are in them still."""
        return [self.root.url(layout.member(member.name)) for member in self.version.members]

    def to_xarray(self, **options: Any) -> "xarray.Dataset":
        """`Store.to_xarray` of the members, by xarray.concat along ``row``; rows of removed sentences are left out."""
        import xarray

        stores = [
            Store(held.store.root, held.store.manifest, "zarr").to_xarray(**options)
            for held in self.held()
        ]
        runs = self.runs
        rows = zip(
            runs.store_of.tolist(), runs.own_rows.tolist(), np.diff(runs.rows).tolist(), strict=True
        )
        parts = [
            stores[member].drop_vars("sentence_start").isel(row=slice(first, first + n_rows))
            for member, first, n_rows in rows
        ]
        whole = (
            xarray.concat(parts, "row")
            if parts
            else stores[0].drop_vars("sentence_start").isel(row=slice(0))
        )
        starts = (
            self.spans(range(self.n_sentences))[:, 0] if self.n_sentences else np.zeros(0, np.int64)
        )
        return whole.assign(sentence_start=("sentence_edge", np.append(starts, self.n_rows)))

    def _opened(self, root: Root, manifest: Manifest) -> Store:
        return Store(root, manifest, manifest.forms[0])


def open(
    url: str | os.PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    incomplete_ok: bool = False,
    form: str | None = None,
    mapped: bool = True,
) -> Store:
    """Open the store at ``url``: one small read, of its manifest. Or a collection: a listing more.

    Args:
        url: a folder or any fsspec URL.
        version: of a collection, by default the newest; a store has none.
        storage_options: what the URL's filesystem takes.
        incomplete_ok: also open a store whose job has not finished; rows that aren't there yet raise ShardMissingError.
        form: "zarr" or "parquet", of a store that has both (Zarr by default).
        mapped: whether files of a local disk are mapped, which is fastest. False reads them by ranges, for network disks whose
            files may go away, or be cut, under a reader.

    Raises:
        StoreNotFoundError: no store there, or no such version.
        StoreIncompleteError: its job has not finished.
        StoreVersionError, StoreFeatureError: of a newer format, or one that needs what this package does not know.
        ManifestError: a damaged manifest, naming the field.
    """
    try:
        root, manifest = opened_store(url, storage_options)
    except StoreNotFoundError:
        collection = Root(url, storage_options)
        found = (
            versions.newest(collection)
            if version is None
            else versions.read_version(collection, version)
        )
        if found is None:
            raise
        return Collection(collection, found, _chosen(collection, found.store, form), mapped=mapped)
    if version is not None:
        raise StoreError(f"{root} is a store, which has no versions: leave version={version} out")
    if not manifest.complete and not incomplete_ok:
        done = len(marked(root, layout.SHARDS))
        of = (
            f"{done} of {manifest.counts.shards} shards are written"
            if manifest.counts
            else "its input is being read"
        )
        error = StoreIncompleteError(
            f"the store at {root} is not complete ({of}): run the command that started it again to continue it"
        )
        error.add_note(
            "With incomplete_ok=True it opens as it is; rows that are not there yet raise errors."
        )
        raise error
    return Store(root, manifest, _chosen(root, manifest, form), mapped=mapped)


def _chosen(root: Root, manifest: Manifest, form: str | None) -> str:
    chosen = form or ("zarr" if "zarr" in manifest.forms else "parquet")
    if chosen not in manifest.forms:
        raise StoreError(
            f"the store at {root} has no {chosen} form: it has {' and '.join(manifest.forms)}"
        )
    return chosen
