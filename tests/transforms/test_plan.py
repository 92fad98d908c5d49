"""The plan against a brute-force oracle that lays out every row one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.inputs.records import FileIdentity, ReadSettings, ReadTask, ScratchPart, TaskResult, WholeFile
from transforms.stages.plan import (
    PartCounts,
    PlanError,
    cut,
    grouped,
    make_plan,
    part_counts,
    row_starts,
    sentence_rows,
    shards_per_call,
    shards_per_task,
)

PARTS = st.lists(st.lists(st.integers(0, 7), max_size=6), max_size=6)  # tokens of each sentence of each part


def counts(lengths: list[int], number: int = 0) -> PartCounts:
    return PartCounts(
        scratch=f"_work/parts/{number:05d}-00000.parquet",
        rejects="",
        n_sentences=len(lengths),
        n_tokens=sum(lengths),
        n_nonempty=sum(n > 0 for n in lengths),
        n_rejected=0,
        n_words_cut=0,
        position_offset=0,
        ordinal_offset=0,
        sha256="",
    )


def all_rows(parts: list[list[int]], boundaries: bool) -> list[tuple[int, int, int]]:
    """Every row of the token axis as (part, sentence within the part, row within the sentence)."""
    rows = []
    for part, lengths in enumerate(parts):
        for sentence, n in enumerate(lengths):
            n_rows = 0 if n == 0 else n + 2 * boundaries
            rows += [(part, sentence, row) for row in range(n_rows)]
    return rows


@given(PARTS, st.integers(1, 9), st.booleans())
def test_shards_hold_every_row_exactly_once_and_in_order(parts: list[list[int]], shard_rows: int, boundaries: bool) -> None:
    plan = make_plan([counts(p, i) for i, p in enumerate(parts)], shard_rows=shard_rows, boundaries=boundaries)
    expected = all_rows(parts, boundaries)
    assert plan.n_rows == len(expected)
    assert plan.n_sentences == sum(map(len, parts))
    assert plan.n_tokens == sum(map(sum, parts))
    seen = []
    for k, task in enumerate(plan.shard_tasks()):
        assert task.shard == k
        assert task.first_row == k * shard_rows
        got = []
        for piece in task.slices:
            rows = sentence_rows(np.array(parts[piece.part], np.int64), boundaries)
            for index, lo, hi in zip(*cut(rows, piece.first_row, task.first_row, task.first_row + task.n_rows), strict=True):
                got += [(piece.part, int(index), row) for row in range(int(lo), int(hi))]
        assert len(got) == task.n_rows
        seen += got
    assert seen == expected


@given(PARTS, st.booleans())
def test_sentences_are_numbered_as_if_counted_one_by_one(parts: list[list[int]], boundaries: bool) -> None:
    plan = make_plan([counts(p, i) for i, p in enumerate(parts)], shard_rows=4, boundaries=boundaries)
    sentence = row = 0
    for part, lengths in zip(plan.parts, parts, strict=True):
        starts = row_starts(sentence_rows(np.array(lengths, np.int64), boundaries), part.first_row)
        assert part.first_sentence == sentence
        for start, n in zip(starts, lengths, strict=True):
            assert start == row
            row += 0 if n == 0 else n + 2 * boundaries
            sentence += 1


@given(PARTS, st.integers(1, 5), st.sets(st.integers(0, 20)))
def test_skipped_shards_change_no_other(parts: list[list[int]], shard_rows: int, skip: set[int]) -> None:
    plan = make_plan([counts(p, i) for i, p in enumerate(parts)], shard_rows=shard_rows, boundaries=False)
    assert list(plan.shard_tasks(skip)) == [task for task in plan.shard_tasks() if task.shard not in skip]


@given(st.integers(0, 30), st.integers(1, 7))
def test_groups_keep_order_and_lose_nothing(n_rows: int, size: int) -> None:
    plan = make_plan([counts([n_rows])], shard_rows=2, boundaries=False)
    groups = list(grouped(plan.shard_tasks(), size))
    assert [task for group in groups for task in group] == list(plan.shard_tasks())
    assert all(len(group) == size for group in groups[:-1])


@pytest.mark.parametrize(("n_shards", "expected"), [(0, 1), (31, 1), (32, 1), (64, 2), (10_000, 8)])
def test_small_jobs_are_spread_and_large_ones_bundled(n_shards: int, expected: int) -> None:
    assert shards_per_task(n_shards, most=8) == expected


def test_every_worker_gets_a_task() -> None:
    assert shards_per_task(40, most=32, workers=1) == 20  # two tasks, as long as each other
    assert shards_per_task(40, most=32, workers=2) == 20
    assert shards_per_task(49, most=32, workers=2) == 25
    assert shards_per_task(1, most=32, workers=2) == 1


@pytest.mark.parametrize(("row_bytes", "expected"), [(160, 4), (5120, 3), (10_240, 1), (10**9, 1)])
def test_a_call_is_bounded_in_rows_and_in_bytes(row_bytes: int, expected: int) -> None:
    assert shards_per_call(16_384, row_bytes, most_rows=65_536, most_bytes=256 << 20, most=32) == expected


def test_a_shard_size_of_zero_is_refused_with_the_remedy() -> None:
    with pytest.raises(PlanError, match="--shard-rows of 1 or more"):
        make_plan([], shard_rows=0, boundaries=False)


def test_counts_that_cannot_be_are_refused_by_name() -> None:
    broken = PartCounts("_work/parts/x", "", 1, 0, 1, 0, 0, 0, 0, "")
    with pytest.raises(PlanError, match="_work/parts/x"):
        make_plan([broken], shard_rows=4, boundaries=False)


def result(index: int, url: str, n_positions: int, n_parts: int) -> TaskResult:
    split = WholeFile(index, url, "lines", FileIdentity(1, "v"))
    parts = tuple(ScratchPart(f"p{index}-{k}", "", 1, 2, 1, 0, 0, 9, "00") for k in range(n_parts))
    return TaskResult(ReadTask(index, (split,)), ReadSettings(), parts, n_positions, n_positions // 2, 1, "whitespace")


def test_positions_go_on_through_the_pieces_of_a_file_and_begin_anew_in_the_next() -> None:
    results = [result(2, "b", 5, 1), result(0, "a", 10, 2), result(1, "a", 7, 1)]  # any order: workers finish in any
    counted = part_counts(results)
    assert [part.scratch for part in counted] == ["p0-0", "p0-1", "p1-0", "p2-0"]
    assert [part.position_offset for part in counted] == [0, 0, 10, 0]
    assert [part.ordinal_offset for part in counted] == [0, 0, 5, 0]
