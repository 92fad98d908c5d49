"""Sentences of a store as PyTorch batches: the right vectors, padding that is masked, and workers in processes of their own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import elmo_store
from elmo_store.torch import SentenceDataset, collate, layers_of_states
from tests.store.support import LENGTHS, Written, make_store

WITH_ROWS = [i for i, n in enumerate(LENGTHS) if n]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"))


def test_items_are_sentences_with_their_layers(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    assert data.indices == WITH_ROWS
    for item, sentence in enumerate(WITH_ROWS):
        got = data[item]
        assert (got["index"], got["tokens"]) == (sentence, tuple(written.tokens[sentence]))
        expected = layers_of_states(torch.from_numpy(written.states[written.rows(sentence)].astype(np.float32)))
        assert torch.equal(got["layers"], expected)


def test_a_batch_keeps_its_order_and_repeats(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    items = data.__getitems__([4, 0, 1, 4])
    assert [item["index"] for item in items] == [WITH_ROWS[i] for i in (4, 0, 1, 4)]
    for item in items:
        assert torch.equal(item["layers"], data[WITH_ROWS.index(item["index"])]["layers"])


def test_neighbours_are_read_together(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SentenceDataset(written.root.url(), indices=[0, 1, 3, 4])
    reads: list[slice] = []
    real = elmo_store.Store.read

    def counting(self: elmo_store.Store, states: object = None, rows: slice | None = None) -> object:
        reads.append(rows or slice(None))
        return real(self, states, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(elmo_store.Store, "read", counting)
    data.__getitems__([3, 2, 1, 0])
    assert len(reads) == 2


def test_chosen_states(written: Written) -> None:
    item = SentenceDataset(written.root.url(), states=["bwd2", "x"], indices=[1])[0]
    assert "layers" not in item
    np.testing.assert_array_equal(item["states"].numpy(), written.states[written.rows(1)][:, [4, 0]].astype(np.float32))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_through_a_data_loader(written: Written, workers: int) -> None:
    loader = DataLoader(
        SentenceDataset(written.root.url()), batch_size=4, collate_fn=collate, num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )  # fmt: skip
    seen = []
    for batch in loader:
        assert batch["layers"].shape[:2] == batch["mask"].shape
        assert batch["mask"].sum(1).tolist() == [LENGTHS[i] for i in batch["index"]]
        assert not batch["layers"][~batch["mask"]].any()
        seen += batch["index"]
    assert seen == WITH_ROWS
