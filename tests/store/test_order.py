"""An epoch's order, as numbers: every sentence once, in whole runs, the same for everybody, and split without gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.torch import order
from tests.examples import examples

COUNTS = st.lists(st.integers(0, 700), min_size=1, max_size=12)


def edges_of(counts: list[int]) -> order.Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])


def numbers_of(runs: list[order.Run]) -> list[int]:
    return [number for first, stop in runs for number in range(first, stop)]


@examples(60)
@given(
    counts=COUNTS,
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
    mixed=st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_every_sentence_is_in_one_run_of_its_shard(
    counts: list[int], seed: int, epoch: int, mixed: int, shuffle: bool
) -> None:
    edges = edges_of(counts)
    runs = order.epoch_runs(edges, shuffle=shuffle, seed=seed, epoch=epoch, mixed_shards=mixed)
    assert runs == order.epoch_runs(
        edges, shuffle=shuffle, seed=seed, epoch=epoch, mixed_shards=mixed
    )
    assert sorted(numbers_of(runs)) == list(range(edges[-1]))
    if not shuffle:
        assert numbers_of(runs) == list(range(edges[-1]))
    for first, stop in runs:
        assert 0 < stop - first <= order.RUN_SENTENCES
        assert np.searchsorted(edges, first, "right") == np.searchsorted(edges, stop - 1, "right")


@examples(80)
@given(
    counts=COUNTS,
    parts=st.integers(1, 7),
    uneven=st.sampled_from(["repeat", "drop", "keep"]),
    seed=st.integers(0, 5),
)
def test_parts_of_an_epoch(counts: list[int], parts: int, uneven: order.Uneven, seed: int) -> None:
    runs = order.epoch_runs(edges_of(counts), shuffle=True, seed=seed, epoch=0, mixed_shards=3)
    total = sum(counts)
    shares = [numbers_of(order.share(runs, part, parts, uneven)) for part in range(parts)]
    sizes = [len(one) for one in shares]
    row = numbers_of(runs)
    if uneven == "keep":
        assert [number for one in shares for number in one] == row
        assert max(sizes) - min(sizes) <= 1
    elif uneven == "drop":
        assert sizes == [total // parts] * parts
        assert [number for one in shares for number in one] == row[: total // parts * parts]
    else:
        assert sizes == [-(-total // parts)] * parts
        wanted = -(-total // parts) * parts
        assert [number for one in shares for number in one] == (
            row * (wanted // max(total, 1) + 1)
        )[:wanted]


def test_epochs_and_seeds_differ_and_mix_shards() -> None:
    edges = edges_of([300] * 8)
    orders = [
        tuple(order.epoch_runs(edges, shuffle=True, seed=seed, epoch=epoch, mixed_shards=4))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    first_half = {first // 300 for first, _ in orders[0][:8]}
    assert len(first_half) == 4  # a window's runs, of four shards
    assert [first // 300 for first, _ in orders[0][:8]] != sorted(
        first // 300 for first, _ in orders[0][:8]
    )


@examples(60)
@given(counts=COUNTS, size=st.integers(1, 900))
def test_pools_are_the_row_cut(counts: list[int], size: int) -> None:
    runs = order.epoch_runs(edges_of(counts), shuffle=True, seed=0, epoch=0, mixed_shards=2)
    pools = list(order.pools(runs, size))
    assert [number for pool in pools for number in pool.tolist()] == numbers_of(runs)
    assert all(len(pool) == size for pool in pools[:-1])


@examples(80)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=0, max_size=60),
    sentences=st.integers(1, 9),
    bucket=st.booleans(),
    seed=st.none() | st.integers(0, 5),
)
def test_batches_hold_every_sentence_within_their_bounds(
    lengths: list[int], sentences: int, bucket: bool, seed: int | None
) -> None:
    random = None if seed is None else order.generator(seed, 0)
    made = order.batches(np.array(lengths, np.int64), random, sentences=sentences, bucket=bucket)
    places = [place for batch in made for place in batch.tolist()]
    assert sorted(places) == list(range(len(lengths)))
    for batch in made:
        assert 1 <= len(batch) <= sentences
    if seed is None and not bucket:
        assert places == list(range(len(lengths)))


def test_buckets_save_padding() -> None:
    lengths = order.generator(0, 0).integers(1, 60, 512)

    def padded(bucket: bool) -> int:
        made = order.batches(lengths, order.generator(1, 0), sentences=16, bucket=bucket)
        return sum(len(batch) * int(lengths[batch].max()) for batch in made)

    assert padded(True) < 1.1 * lengths.sum() < 1.5 * lengths.sum() < padded(False)


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="part 2 of 2"):
        order.share([(0, 3)], 2, 2, "keep")
