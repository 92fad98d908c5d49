"""Scans in blocks of whole batches."""

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import elmo_store
from elmo_store.errors import ShardMissingError
from elmo_store.format import layout
from elmo_store.reading import scan
from elmo_store.reading.sentence import read_batches
from tests.store.support import make_store

Int64 = npt.NDArray[np.int64]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("lengths", [(0,), (3, 0, 5, 40, 1, 7, 0, 0, 2, 19), (1,) * 50])
def test_every_sentence_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], mapped: bool
) -> None:
    written = make_store(
        str(tmp_path / "store"), lengths=lengths, parts=(len(lengths),), shard_rows=16
    )
    monkeypatch.setattr(scan, "BLOCK_BYTES", 10 * written.manifest.row_bytes)
    store = elmo_store.open(tmp_path / "store", mapped=mapped)
    for n_sentences in (1, 4, 100):
        for first in (0, 2):
            numbers = range(first, len(lengths))
            batches = list(read_batches(store._view, numbers, n_sentences))
            assert [number for batch in batches for number in batch.numbers] == list(numbers)
            for batch in batches:  # and still when all have been handed out, since they are held
                assert len(batch) <= n_sentences
                rows = written.states[batch.spans[0, 0] : batch.spans[-1, 1]]
                np.testing.assert_array_equal(batch.states, rows)


def test_an_error_of_reading_reaches_the_reader_and_threads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = make_store(str(tmp_path / "store"), lengths=(5,) * 100, parts=(100,), shard_rows=16)
    monkeypatch.setattr(scan, "BLOCK_BYTES", 10 * written.manifest.row_bytes)
    written.root.remove(layout.zarr_states_shard(20))
    before = threading.active_count()
    for mapped in (True, False):
        batches = elmo_store.open(tmp_path / "store", mapped=mapped).batches(1)
        assert len([next(batches) for _ in range(60)]) == 60
        with pytest.raises(ShardMissingError, match=layout.zarr_states_shard(20)):
            list(batches)
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [True, False])
def test_what_a_scan_holds_does_not_grow_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    def most_held(n_sentences: int) -> int:
        make_store(
            str(tmp_path / str(n_sentences)),
            lengths=(20,) * n_sentences,
            parts=(n_sentences,),
            shard_rows=1024,
        )
        store = elmo_store.open(tmp_path / str(n_sentences), mapped=mapped)
        store._view.spans(range(n_sentences))  # 8 bytes a sentence are kept
        tracemalloc.start()
        try:
            for batch in store.batches(16):
                batch.states.sum()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(scan, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(scan, "SPANS_AT_ONCE", 256)
    few, many = most_held(512), most_held(4096)
    assert many - few < 200_000  # of 5.7 MB more that are read
