"""A row's states side by side: whatever reads a store gives the same bits as of the layout that has state after state."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import elmo_store
from elmo_store.exports import export
from elmo_store.torch import Elmo, SentenceDataset, SentenceStream, collate
from tests.store.support import LENGTHS, make_store

Arrays = Iterator[Any]
ORDER = [4, 0, 2, 1, 4, 3]


@pytest.fixture(scope="module", params=[{}, {"dtype": "int8"}, {"compression": "zstd"}], ids=["float16", "int8", "zstd"])
def stores(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[elmo_store.Store, ...]:
    """The same rows in both layouts."""
    folder = tmp_path_factory.mktemp("layouts")
    settings = {"boundaries": True, "store_forms": ("zarr",), **request.param}
    for name in ("states", "rows"):
        make_store(str(folder / name), layout=name, **settings)
    return tuple(elmo_store.open(folder / name) for name in ("states", "rows"))


def views(store: elmo_store.Store, folder: Path) -> Arrays:
    yield store.select([3, 1]).read(("bwd2", "x"))
    yield elmo_store.concat([store, store]).read(rows=slice(store.n_rows - 5, store.n_rows + 5))
    yield elmo_store.cached(store, folder / store.manifest.layout, max_bytes=1 << 20).read()
    written = store.slice().write(folder / f"{store.manifest.layout}-written")
    assert written.manifest.layout == store.manifest.layout
    yield written.read()
    yield store.slice().write(folder / f"{store.manifest.layout}-parquet", store_forms=("parquet",)).read()


def datasets(store: elmo_store.Store, folder: Path) -> Arrays:
    for states in (None, ["fwd1"], ["bwd2", "x"]):
        for raw in {False, store.is_int8}:
            data = SentenceDataset(store, states=states, raw=raw)
            batch = collate(data.__getitems__(ORDER))
            yield from (batch["states"], *([batch["scale"]] if raw else []))
            yield from (data[number]["states"] for number in ORDER)
    for batch in DataLoader(SentenceDataset(store), 3, collate_fn=collate):
        yield batch["states"]


def streams(store: elmo_store.Store, folder: Path) -> Arrays:
    for states in (None, ["bwd2", "x"]):
        for batch in SentenceStream(store, states=states, batch_sentences=3, seed=1):
            yield batch["states"]


def mixes(store: elmo_store.Store, folder: Path) -> Arrays:
    yield elmo_store.ScalarMix([0.1, 0.2, -0.3], gamma=1.5)(states=store.read())
    elmo = Elmo(store, num_output_representations=2, do_layer_norm=True, dropout=0.0)
    yield from elmo([0, 3, 1])["elmo_representations"]


def files(store: elmo_store.Store, folder: Path) -> Arrays:
    yield store.to_xarray().states[3:9].values
    export(store, folder / f"{store.manifest.layout}.hdf5", "allennlp")
    yield np.fromfile(folder / f"{store.manifest.layout}.hdf5", np.uint8)


@pytest.mark.parametrize("read", [views, datasets, streams, mixes, files], ids=lambda read: read.__name__)
def test_the_same_of_both_layouts(
    stores: tuple[elmo_store.Store, ...], tmp_path: Path, read: Callable[[elmo_store.Store, Path], Arrays]
) -> None:
    of_states, of_rows = ([torch.as_tensor(values).detach() for values in read(store, tmp_path)] for store in stores)
    assert len(of_states) == len(of_rows) > 0
    assert all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(of_states, of_rows, strict=True))


def test_stores_of_both_layouts_are_one(stores: tuple[elmo_store.Store, ...]) -> None:
    both = elmo_store.concat(stores)
    n = len(LENGTHS)
    data = SentenceDataset(both)
    for number in (1, n + 1):
        np.testing.assert_array_equal(both.sentence(number).read(), stores[0].sentence(1).read())
        assert torch.equal(data[number]["states"], data[1]["states"])
    batch = collate(data.__getitems__([3, n + 3, 1]))
    assert torch.equal(batch["states"][0], batch["states"][1])
