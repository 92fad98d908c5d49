"""A task into scratch parts: sizes, rejects, markers, resuming, the same bytes again, bounded memory, through Beam."""

import json
import pickle
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.storage.root import Root
from tests.transforms.reading import one_split, records, write
from transforms.inputs.records import InputError, ReadSettings, ReadTask, TaskResult
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import (
    SCRATCH_SCHEMA,
    finish_task,
    scratch_paths,
    task_marker,
    task_result,
    tokenise_task,
    tokenise_tasks,
)


def one_task(path: Path, input_format: str = "auto") -> ReadTask:
    return ReadTask(0, (one_split(path, input_format),))


def read_part(root: Root, path: str) -> pa.Table:
    return pq.read_table(BytesIO(root.get(path)))


def objects(root: Root) -> dict[str, bytes]:
    return {name: root.get(name) for name in root.list()}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "store")


def test_parts_hold_every_record_in_order(tmp_path: Path, root: Root) -> None:
    data = b"a b c\n\nbad \xff\n" + "ü\u2028 ".encode() + b"d" * 49 + b"\nlast one"
    task = one_task(write(tmp_path / "in/a.tok", data))
    result = tokenise_task(root, task, ReadSettings(part_sentences=3))
    assert [part.path for part in result.parts] == [
        scratch_paths(task, 0)[0],
        scratch_paths(task, 1)[0],
    ]
    tables = [read_part(root, part.path) for part in result.parts]
    assert all(table.schema.equals(SCRATCH_SCHEMA) for table in tables)
    assert pa.concat_tables(tables).to_pydict() == {
        "id": [""] * 5,
        "source": [task.splits[0].url] * 5,
        "position": [0, 1, 2, 3, 4],
        "ordinal": [-1] * 5,
        "within": [-1] * 5,
        "document_sentence": [0, 1, 2, 3, 4],
        "document_start": [-1] * 5,
        "document": [""] * 5,
        "n_tokens": [3, 0, 0, 2, 2],
        "tokens": [["a", "b", "c"], [], [], ["ü\u2028", "d" * 49], ["last", "one"]],
    }
    first, second = result.parts
    assert (
        first.n_sentences,
        first.n_tokens,
        first.n_nonempty,
        first.n_rejected,
        first.n_words_cut,
    ) == (3, 3, 1, 1, 0)
    assert (
        second.n_sentences,
        second.n_tokens,
        second.n_nonempty,
        second.n_rejected,
        second.n_words_cut,
    ) == (2, 4, 2, 0, 1)
    assert (first.rejects, second.rejects) == (scratch_paths(task, 0)[1], "")
    assert [json.loads(line) for line in root.get(first.rejects).splitlines()] == [
        {
            "sentence": 2,
            "id": "",
            "source": task.splits[0].url,
            "position": 2,
            "ordinal": -1,
            "within": -1,
            "reason": "invalid UTF-8 at byte 4 of the line (0xff)",
            "raw": "bad \\xff",
        }
    ]
    assert (result.n_positions, result.tokenizer) == (5, "whitespace/1")


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (ReadSettings(part_tokens=4), [2, 2, 1]),
        (ReadSettings(part_sentences=4), [4, 1]),
        (ReadSettings(part_bytes=50), [2, 2, 1]),
        (ReadSettings(part_tokens=1), [1] * 5),
        (ReadSettings(), [5]),
    ],
)
def test_a_part_is_closed_when_full(
    tmp_path: Path, root: Root, settings: ReadSettings, sizes: list[int]
) -> None:
    task = one_task(write(tmp_path / "a.tok", b"a b\n" * 5))
    assert [part.n_sentences for part in tokenise_task(root, task, settings).parts] == sizes


def test_an_empty_input_has_no_parts_but_a_marker(tmp_path: Path, root: Root) -> None:
    task = one_task(write(tmp_path / "a.tok", b""))
    assert tokenise_task(root, task, ReadSettings()).parts == ()
    assert root.list() == [task_marker(task)]


def test_results_are_json_and_pickles_and_back(tmp_path: Path, root: Root) -> None:
    task = one_task(write(tmp_path / "a.tok", b"a\n\xff\n"))
    result = tokenise_task(root, task, ReadSettings())
    assert msgspec.json.decode(msgspec.json.encode(result), type=TaskResult) == result
    assert pickle.loads(pickle.dumps(result)) == result
    error = pickle.loads(pickle.dumps(InputError("a.txt", "gone")))
    assert (str(error), error.url, error.reason) == ("a.txt: gone", "a.txt", "gone")


def test_done_is_not_done_again_and_the_same_bytes_come_again(tmp_path: Path, root: Root) -> None:
    task = one_task(write(tmp_path / "a.tok", b"a b\n\xff\n" * 100))
    settings = ReadSettings(part_sentences=30)
    tokenise_task(root, task, settings)
    before = objects(root)
    (tmp_path / "a.tok").unlink()
    assert finish_task(task, root, settings, None) == task.index  # the input is not even opened
    write(tmp_path / "a.tok", b"a b\n\xff\n" * 100)
    again = Root(tmp_path / "again")
    tokenise_task(again, one_task(tmp_path / "a.tok"), settings)
    after = objects(again)
    del before[task_marker(task)], after[task_marker(task)]  # they tell the file's time of change
    assert after == before


def test_a_marker_counts_only_for_this_task_read_this_way_with_its_parts(
    tmp_path: Path, root: Root
) -> None:
    task = one_task(write(tmp_path / "a.tok", b"a b\n\xff\n" * 100))
    settings = ReadSettings()
    assert task_result(root, task, settings) is None
    result = tokenise_task(root, task, settings)
    assert task_result(root, task, settings) == result
    assert task_result(root, task, ReadSettings(tokenizer="ptb")) is None
    write(tmp_path / "a.tok", b"a b\n" * 101)
    assert task_result(root, one_task(tmp_path / "a.tok"), settings) is None

    whole = root.get(result.parts[0].path)
    root.put(result.parts[0].path, whole[:-1])
    assert task_result(root, task, settings) is None
    root.put(result.parts[0].path, whole)
    root.remove(result.parts[0].rejects)
    assert task_result(root, task, settings) is None
    for marker in (b"{", b"[]", b'{"task": 3}', b"\xff", b""):
        root.put(task_marker(task), marker)
        assert task_result(root, task, settings) is None


def test_a_damaged_input_leaves_no_marker(tmp_path: Path, root: Root) -> None:
    import gzip

    task = one_task(write(tmp_path / "a.tok.gz", gzip.compress(b"a b\n" * 10_000)[:-9]))
    with pytest.raises(InputError, match="cut short"):
        tokenise_task(root, task, ReadSettings(part_sentences=100))
    assert not root.exists(task_marker(task))
    assert task_result(root, task, ReadSettings(part_sentences=100)) is None


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path: Path, root: Root) -> None:
    def peak(n_lines: int) -> int:
        task = one_task(
            write(tmp_path / f"{n_lines}.tok", b"the cat sat on the mat .\n" * n_lines), "lines"
        )
        tracemalloc.start()
        try:
            tokenise_task(root, task, ReadSettings(part_sentences=500))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small = peak(20_000)
    assert peak(80_000) < small * 1.15


@pytest.mark.parametrize(
    ("mode", "processes"),
    [
        ("in_memory", 1),
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in (("in_memory", 2), ("multi_processing", 1))
        ),
    ],
)
def test_tasks_through_beam(tmp_path: Path, root: Root, mode: str, processes: int) -> None:
    lines = b"".join(b"sentence %d .\n" % i if i % 7 else b"\xff\n" for i in range(200))
    path = write(tmp_path / "in/a.tok", lines)
    write(tmp_path / "in/b.txt", b"One. Two.\n\nThree.")
    tasks = list(read_tasks(plan_splits([str(tmp_path / "in")], range_bytes=500)))
    assert len(tasks) > 3
    settings = ReadSettings(part_sentences=20)
    workers = 1 if mode == "in_memory" else 2
    flags = [
        "--runner=FnApiRunner",
        f"--direct_running_mode={mode}",
        f"--direct_num_workers={workers}",
    ]
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = (
            pipeline
            | beam.Create(tasks)
            | tokenise_tasks(root, settings, None, processes=processes)
        )
    results = [task_result(root, task, settings) for task in tasks]
    found: list[Any] = []
    for result in results:
        assert result is not None
        for part in result.parts:
            found += read_part(root, part.path)["tokens"].to_pylist()
    expected = [
        list(getattr(record, "tokens", ()))
        for name in (path, tmp_path / "in/b.txt")
        for record in records(name)
    ]
    assert found == expected
    assert sum(part.n_rejected for result in results if result for part in result.parts) == 29
