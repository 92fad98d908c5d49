"""A view as an xarray Dataset, of which nothing is read yet."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.reading.store import StoreReader
from elmo_store.reading.view import View
from elmo_store.storage.filesystems import resolved_options


def dataset_of(view: View, options: Mapping[str, Any]) -> xarray.Dataset:
    """Return the rows of a view, as of `elmo_store.Store.to_xarray`."""
    if view.whole_store is not None:
        return _dataset_of_store(view.whole_store, options)
    datasets = [
        _dataset_of_store(member.store, options).drop_vars("sentence_start")
        for member in view.opened_stores()
    ]
    rows = view.row_runs
    counts = np.diff(rows.edges)
    parts = [
        datasets[store].isel(row=slice(first, first + n_rows))
        for store, first, n_rows in zip(
            view.runs.store_of.tolist(), rows.firsts.tolist(), counts.tolist(), strict=True
        )
        if n_rows
    ]
    whole = xarray.concat(parts, "row") if parts else datasets[0].isel(row=slice(0))
    starts = view.spans(np.arange(view.n_sentences))[:, 0]
    return whole.assign(sentence_start=("sentence_edge", np.append(starts, view.n_rows)))


def _dataset_of_store(store: StoreReader, options: Mapping[str, Any]) -> xarray.Dataset:
    if "zarr" not in store.manifest.forms:
        has = " and ".join(store.manifest.forms)
        raise StoreError(f"{store.url} has no Zarr form, which xarray reads: it has {has}")
    settings = {"chunks": None, "storage_options": store.root.storage_options, **options}
    settings["storage_options"] = resolved_options(settings["storage_options"]) or None
    settings["chunks"] = _dask_chunks(store, settings["chunks"])
    return xarray.open_zarr(store.root.url(layout.ZARR), **settings)


def _dask_chunks(store: StoreReader, chunks: Any) -> Any:
    """Return ``chunks`` of xarray.open_zarr, with whole shards where the choice is left to xarray.

    xarray would take the inner chunks of shards, one state of 128 rows each, and "auto" fails for
    tokens.
    """
    if chunks == "auto":
        chunks = {}
    if not isinstance(chunks, Mapping):
        return chunks
    manifest = store.manifest
    shard = {
        "row": manifest.shard_rows,
        "state": len(manifest.states),
        "channel": manifest.channels,
    }
    return shard | {axis: size for axis, size in chunks.items() if size != "auto"}
