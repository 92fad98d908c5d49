"""The plan against a brute-force oracle that lays out every row one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs.embed_job import (
    CPU_BYTES_AT_ONCE,
    CPU_ROWS_AT_ONCE,
    CUDA_BYTES_AT_ONCE,
    CUDA_ROWS_AT_ONCE,
    SHARDS_PER_TASK,
)
from pipeline.runners.beam_options import UNKNOWN_WORKERS
from transforms.inputs.records import (
    FileIdentity,
    ReadSettings,
    ReadTask,
    ScratchPart,
    Split,
    TaskResult,
)
from transforms.stages.plan import (
    CorpusPlan,
    ShardTask,
    cut,
    grouped,
    make_plan,
    row_starts,
    sentence_rows,
    shard_tasks,
    shards_per_call,
    shards_per_task,
)

PARTS = st.lists(
    st.lists(st.integers(0, 7), max_size=6), max_size=6
)  # tokens of each sentence of each part


def result(index: int, url: str, parts: list[list[int]], n_positions: int = 0) -> TaskResult:
    """What a task comes to whose parts hold sentences of so many tokens."""
    split = Split(index, url, "lines", FileIdentity(1, "v"))
    scratch = tuple(
        ScratchPart(
            f"p{index}-{k}",
            "",
            len(lengths),
            sum(lengths),
            sum(n > 0 for n in lengths),
            0,
            0,
            9,
            "00",
        )
        for k, lengths in enumerate(parts)
    )
    return TaskResult(
        ReadTask(index, (split,)),
        ReadSettings(),
        scratch,
        n_positions,
        n_positions // 2,
        "whitespace",
    )


def planned(parts: list[list[int]], shard_rows: int, boundaries: bool) -> CorpusPlan:
    return make_plan(
        [result(i, "a", [part]) for i, part in enumerate(parts)],
        shard_rows=shard_rows,
        boundaries=boundaries,
    )


def tasks_of(plan: CorpusPlan, shard_rows: int) -> list[ShardTask]:
    return list(
        shard_tasks(
            [(part.scratch.path, part.range) for part in plan.parts], plan.counts.rows, shard_rows
        )
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
def test_shards_hold_every_row_exactly_once_and_in_order(
    parts: list[list[int]], shard_rows: int, boundaries: bool
) -> None:
    plan = planned(parts, shard_rows, boundaries)
    expected = all_rows(parts, boundaries)
    assert plan.counts.rows == len(expected)
    assert plan.counts.sentences == sum(map(len, parts))
    assert plan.counts.tokens == sum(map(sum, parts))
    tasks = tasks_of(plan, shard_rows)
    assert plan.counts.shards == len(tasks)
    seen = []
    for k, task in enumerate(tasks):
        assert task.shard == k
        assert task.first_row == k * shard_rows
        got = []
        for path, part in task.parts:
            assert path == f"p{part.part}-0"
            rows = sentence_rows(np.array(parts[part.part], np.int64), boundaries)
            for index, lo, hi in zip(
                *cut(rows, part.first_row, task.first_row, task.first_row + task.n_rows),
                strict=True,
            ):
                got += [(part.part, int(index), row) for row in range(int(lo), int(hi))]
        assert len(got) == task.n_rows
        seen += got
    assert seen == expected


@given(PARTS, st.booleans())
def test_sentences_are_numbered_as_if_counted_one_by_one(
    parts: list[list[int]], boundaries: bool
) -> None:
    plan = planned(parts, 4, boundaries)
    sentence = row = 0
    for part, lengths in zip(plan.parts, parts, strict=True):
        starts = row_starts(
            sentence_rows(np.array(lengths, np.int64), boundaries), part.range.first_row
        )
        assert part.range.first_sentence == sentence
        for start, n in zip(starts, lengths, strict=True):
            assert start == row
            row += 0 if n == 0 else n + 2 * boundaries
            sentence += 1


@given(st.integers(0, 30), st.integers(1, 7))
def test_groups_keep_order_and_lose_nothing(n_rows: int, size: int) -> None:
    tasks = tasks_of(planned([[n_rows]], 2, False), 2)
    groups = list(grouped(iter(tasks), size))
    assert [task for group in groups for task in group] == tasks
    assert all(len(group) == size for group in groups[:-1])


@pytest.mark.parametrize(("n_shards", "expected"), [(0, 1), (31, 1), (32, 1), (64, 2), (10_000, 8)])
def test_small_jobs_are_spread_and_large_ones_bundled(n_shards: int, expected: int) -> None:
    assert shards_per_task(n_shards, most=8) == expected


def test_every_worker_gets_a_task() -> None:
    assert shards_per_task(40, most=32, workers=1) == 20  # two tasks, as long as each other
    assert shards_per_task(40, most=32, workers=2) == 20
    assert shards_per_task(49, most=32, workers=2) == 25
    assert shards_per_task(1, most=32, workers=2) == 1


@pytest.mark.parametrize(
    ("rows_at_once", "bytes_at_once", "n_tasks"),
    [(CUDA_ROWS_AT_ONCE, CUDA_BYTES_AT_ONCE, 1197), (CPU_ROWS_AT_ONCE, CPU_BYTES_AT_ONCE, 20_346)],
)
def test_a_billion_tokens_are_work_for_a_thousand_workers_that_nobody_told_of(
    rows_at_once: int, bytes_at_once: int, n_tasks: int
) -> None:
    n_shards, row_bytes = -(-(10**9) // 16_384), 5 * 512 * 2
    most = shards_per_call(
        16_384, row_bytes, most_rows=rows_at_once, most_bytes=bytes_at_once, most=SHARDS_PER_TASK
    )
    assert -(-n_shards // shards_per_task(n_shards, most=most, workers=UNKNOWN_WORKERS)) == n_tasks


@pytest.mark.parametrize(("row_bytes", "expected"), [(160, 4), (5120, 3), (10_240, 1), (10**9, 1)])
def test_a_call_is_bounded_in_rows_and_in_bytes(row_bytes: int, expected: int) -> None:
    assert (
        shards_per_call(16_384, row_bytes, most_rows=65_536, most_bytes=256 << 20, most=32)
        == expected
    )


def test_positions_go_on_through_the_pieces_of_a_file_and_begin_anew_in_the_next() -> None:
    part = [2]
    results = [
        result(2, "b", [part], 5),
        result(0, "a", [part, part], 10),
        result(1, "a", [part], 7),
    ]  # workers finish in any order
    parts = make_plan(results, shard_rows=4, boundaries=False).parts
    assert [part.scratch.path for part in parts] == ["p0-0", "p0-1", "p1-0", "p2-0"]
    assert [part.position_offset for part in parts] == [0, 0, 10, 0]
    assert [part.ordinal_offset for part in parts] == [0, 0, 5, 0]
