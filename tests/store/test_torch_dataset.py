"""Sentences of a store as PyTorch batches: the right vectors, padding that is masked, and workers in processes of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

import elmo_store
from elmo_store.format import layout
from elmo_store.reading.row_readers import Mapped, Stored
from elmo_store.torch import Elmo, SentenceDataset, SentenceStream, collate
from tests.store.support import LENGTHS, Written, make_store

ALL = list(range(len(LENGTHS)))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"))


def test_items_are_sentences_with_their_states(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    assert len(data) == len(LENGTHS)
    for sentence in ALL:  # those without tokens too
        got = data[sentence]
        assert (got["index"], got["tokens"]) == (sentence, tuple(written.tokens[sentence]))
        expected = torch.from_numpy(written.states[written.rows(sentence)])
        assert (got["states"].dtype, got["states"].shape) == (
            torch.float16,
            (LENGTHS[sentence], 5, 8),
        )
        assert torch.equal(got["states"], expected)


def test_a_batch_keeps_its_order_and_repeats(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    items = data.__getitems__([4, 0, 2, 1, 4])
    assert [item["index"] for item in items] == [4, 0, 2, 1, 4]
    for item in items:
        assert torch.equal(item["states"], data[item["index"]]["states"])
        assert item["id"] == f"doc.txt:{item['index']}"


def test_a_batch_is_one_read(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SentenceDataset(written.root.url(), indices=[0, 1, 3, 4])
    reads: list[int] = []
    real = Mapped.map_spans

    def counting(self: Mapped, states: Sequence[int], spans: npt.NDArray[np.int64]) -> list[Stored]:
        reads.append(len(spans))
        return real(self, states, spans)

    monkeypatch.setattr(Mapped, "map_spans", counting)
    data.__getitems__([3, 2, 1, 0])
    assert reads == [4]


KINDS: dict[str, dict[str, Any]] = {
    "zarr": {},
    "float32": {"dtype": "float32"},
    "parquet": {"forms": ("parquet",)},
    "int8": {"dtype": "int8"},
    "int8 parquet": {"dtype": "int8", "forms": ("parquet",)},
    "blosc": {"compression": "blosc"},
    "checked": {"checksum": "crc32c", "forms": ("parquet",)},
    "boundaries": {"boundaries": True},
}
LONG = (3, 0, 40, 7, 7, 0, 1, 25, 90, 2, 0, 11)  # shards have 64 rows: two sentences lie in several


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    """Sentences in any order, repeated, without tokens, over the borders of shards; some states; views; batches that are kept."""
    written = make_store(
        str(tmp_path / "store"),
        lengths=LONG,
        parts=(5, 7),
        shard_rows=64,
        chunk_rows=32,
        **KINDS[kind],
    )
    store = elmo_store.open(written.root.url())
    assert store.manifest.sizes.shards > 2
    other = make_store(
        str(tmp_path / "other"),
        lengths=LONG,
        parts=(5, 7),
        shard_rows=64,
        chunk_rows=32,
        **KINDS[kind],
    )
    sources: dict[str, tuple[Any, list[npt.NDArray[Any]]]] = {}
    rows = [written.states[written.rows(i)] for i in range(len(LONG))]
    sources["store"] = store, rows
    sources["selection"] = store.select([8, 1, 2, 2, 0]), [rows[i] for i in (8, 1, 2, 2, 0)]
    sources["concatenation"] = (
        elmo_store.concat([store, elmo_store.open(other.root.url())]),
        rows + rows,
    )
    kept = []
    for source, expected in sources.values():
        numbers = [*reversed(range(len(expected))), 2, 2]
        for states, columns in ((None, slice(None)), (["fwd2", "x"], [3, 0])):
            data = SentenceDataset(source, states=states, text=False)
            wanted = [expected[number][:, columns] for number in numbers]
            kept += [
                (collate(data.__getitems__(numbers)), wanted),
                (collate(data.__getitems__([1])), [expected[1][:, columns]]),
            ]
            stream = SentenceStream(
                source, states=states, text=False, batch_sentences=3, pool_sentences=6
            )
            for bucket in (True, False):
                stream.bucket = bucket
                kept += [
                    (batch, [expected[number][:, columns] for number in batch["index"]])
                    for batch in stream
                ]
    for batch, wanted in kept:  # at last: nothing that was given may be written again
        lengths = [len(own) for own in wanted]
        assert batch["mask"].sum(1).tolist() == lengths
        assert batch["states"].shape[1] == batch["mask"].shape[1] == max(lengths)
        assert not batch["states"][~batch["mask"]].any()
        for own, padded in zip(wanted, batch["states"], strict=True):
            np.testing.assert_array_equal(padded[: len(own)].numpy(), own)


def test_a_batch_of_a_shard_that_is_not_written(tmp_path: Path) -> None:
    written = make_store(
        str(tmp_path / "store"),
        lengths=LONG,
        parts=(5, 7),
        shard_rows=64,
        chunk_rows=32,
        complete=False,
    )
    written.root.remove(layout.shard_marker(1))
    data = SentenceDataset(elmo_store.open(written.root.url(), incomplete_ok=True), text=False)
    assert len(data.__getitems__([0, 3])) == 2
    with pytest.raises(elmo_store.errors.ShardMissingError, match="shard 1 is not written yet"):
        data.__getitems__([0, 8])


def test_items_of_a_batch_make_a_list(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    items = list(data.__getitems__([3, 0, 2]))
    items[0] = data[1]
    items.append(data[4])
    items.insert(1, data[2])
    assert [item["index"] for item in items] == [1, 2, 0, 2, 4]
    assert collate(items)["mask"].sum(1).tolist() == [LENGTHS[i] for i in (1, 2, 0, 2, 4)]
    assert list(data.__getitems__([])) == []


def test_a_dataset_reads_nothing_to_be_made(written: Written) -> None:
    store = elmo_store.open(written.root.url())
    for name in ("states.zarr", "states", "sentences"):
        written.root.remove_tree(name)
    assert len(SentenceDataset(store)) == len(LENGTHS)


def test_vectors_without_text(written: Written) -> None:
    written.root.remove_tree("sentences")
    item = SentenceDataset(written.root.url(), text=False)[3]
    assert sorted(item) == ["index", "states"]
    assert torch.equal(item["states"], torch.from_numpy(written.states[written.rows(3)]))


def test_a_store_of_some_states(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "some"), states=("x", "fwd2"))
    item = SentenceDataset(written.root.url())[1]
    np.testing.assert_array_equal(item["states"].numpy(), written.states[written.rows(1)])


def test_chosen_states(written: Written) -> None:
    item = SentenceDataset(written.root.url(), states=["bwd2", "x"], indices=[1])[0]
    np.testing.assert_array_equal(
        item["states"].numpy(), written.states[written.rows(1)][:, [4, 0]]
    )


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_through_a_data_loader(written: Written, workers: int) -> None:
    loader = DataLoader(
        SentenceDataset(written.root.url()), batch_size=4, collate_fn=collate, num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )  # fmt: skip
    seen = []
    for batch in loader:
        assert batch["states"].shape[:2] == batch["mask"].shape
        assert batch["mask"].sum(1).tolist() == [LENGTHS[i] for i in batch["index"]]
        assert not batch["states"][~batch["mask"]].any()
        seen += batch["index"]
    assert seen == ALL


def test_an_int8_store_gives_float32(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "int8"), dtype="int8")
    url = written.root.url()
    batch = collate(SentenceDataset(url).__getitems__([3, 0, 2]))
    assert batch["states"].dtype == torch.float32
    elmo = Elmo(url, 1, dropout=0.0)
    found = [elmo(inputs)["elmo_representations"][0] for inputs in (batch, [3, 0, 2])]
    assert torch.equal(found[0], found[1])
    with pytest.raises(elmo_store.errors.StoreError, match="holds float16, no int8"):
        elmo_store.open(make_store(str(tmp_path / "halves")).root.url()).read("x", raw=True)


def test_items_that_were_changed_are_padded_anew(written: Written) -> None:
    items = SentenceDataset(written.root.url()).__getitems__([3, 0, 2])
    whole = collate(items)
    assert whole["states"].data_ptr() == items[0]["states"].data_ptr()  # no copy
    for item in items:
        item["label"] = item["index"] + 1
    assert collate(items)["label"] == [4, 1, 3]
    assert torch.equal(collate(list(items))["states"], whole["states"])
    items[1]["states"] = items[1]["states"] + 1
    changed = collate(items)["states"]
    assert torch.equal(changed[1, : LENGTHS[0]], whole["states"][1, : LENGTHS[0]] + 1)
    assert torch.equal(changed[0], whole["states"][0])
    assert torch.equal(collate(items[::2])["states"], whole["states"][[0, 2]])
