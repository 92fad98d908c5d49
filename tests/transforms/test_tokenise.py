"""A piece into scratch parts: sizes, rejects, markers, resuming, the same bytes again, bounded memory, through Beam."""

import json
import pickle
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.storage import Root
from tests.transforms.reading import one_piece, records, write
from transforms.records import InputError, PieceResult, ReadSettings
from transforms.sources import plan_pieces
from transforms.tokenise import SCRATCH_SCHEMA, piece_marker, piece_result, scratch_part, scratch_rejects, tokenise_piece


def read_part(root: Root, path: str) -> pa.Table:
    return pq.read_table(BytesIO(root.get(path)))


def objects(root: Root) -> dict[str, bytes]:
    return {name: root.get(name) for name in root.list()}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "store")


def test_parts_hold_every_record_in_order(tmp_path: Path, root: Root) -> None:
    data = b"a b c\n\nbad \xff\n" + "ü\u2028 ".encode() + b"d" * 49 + b"\nlast one"
    piece = one_piece(write(tmp_path / "in/a.tok", data))
    result = tokenise_piece(root, piece, ReadSettings(part_sentences=3))
    assert [part.path for part in result.parts] == [scratch_part(0, 0), scratch_part(0, 1)]
    tables = [read_part(root, part.path) for part in result.parts]
    assert all(table.schema.equals(SCRATCH_SCHEMA) for table in tables)
    assert pa.concat_tables(tables).to_pydict() == {
        "id": [""] * 5,
        "source": [piece.url] * 5,
        "position": [0, 1, 2, 3, 4],
        "n_tokens": [3, 0, 0, 2, 2],
        "tokens": [["a", "b", "c"], [], [], ["ü\u2028", "d" * 49], ["last", "one"]],
    }
    first, second = result.parts
    assert (first.n_sentences, first.n_tokens, first.n_nonempty, first.n_rejected, first.n_words_cut) == (3, 3, 1, 1, 0)
    assert (second.n_sentences, second.n_tokens, second.n_nonempty, second.n_rejected, second.n_words_cut) == (2, 4, 2, 0, 1)
    assert (first.rejects, second.rejects) == (scratch_rejects(0, 0), "")
    assert [json.loads(line) for line in root.get(first.rejects).splitlines()] == [
        {
            "sentence": 2,
            "id": "",
            "source": piece.url,
            "position": 2,
            "reason": "invalid UTF-8 at byte 4 of the line (0xff)",
            "raw": "bad \\xff",
        }
    ]
    assert (result.n_sentences, result.n_tokens, result.n_rejected, result.n_positions) == (5, 7, 1, 5)
    assert (result.bytes_read, result.tokenizer) == (len(data), "whitespace/1")


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
def test_a_part_is_closed_when_full(tmp_path: Path, root: Root, settings: ReadSettings, sizes: list[int]) -> None:
    piece = one_piece(write(tmp_path / "a.tok", b"a b\n" * 5))
    assert [part.n_sentences for part in tokenise_piece(root, piece, settings).parts] == sizes


def test_an_empty_input_has_no_parts_but_a_marker(tmp_path: Path, root: Root) -> None:
    piece = one_piece(write(tmp_path / "a.tok", b""))
    assert tokenise_piece(root, piece, ReadSettings()).parts == ()
    assert root.list() == [piece_marker(0)]


def test_results_are_json_and_pickles_and_back(tmp_path: Path, root: Root) -> None:
    piece = one_piece(write(tmp_path / "a.tok", b"a\n\xff\n"))
    result = tokenise_piece(root, piece, ReadSettings())
    assert PieceResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert pickle.loads(pickle.dumps(result)) == result
    error = pickle.loads(pickle.dumps(InputError("a.txt", "gone")))
    assert (str(error), error.url, error.reason) == ("a.txt: gone", "a.txt", "gone")


def test_done_is_not_done_again_and_the_same_bytes_come_again(tmp_path: Path, root: Root) -> None:
    piece = one_piece(write(tmp_path / "a.tok", b"a b\n\xff\n" * 100))
    settings = ReadSettings(part_sentences=30)
    result = tokenise_piece(root, piece, settings)
    before = objects(root)
    (tmp_path / "a.tok").unlink()
    assert tokenise_piece(root, piece, settings) == result  # the input is not even opened
    write(tmp_path / "a.tok", b"a b\n\xff\n" * 100)
    again = Root(tmp_path / "again")
    tokenise_piece(again, one_piece(tmp_path / "a.tok"), settings)
    after = objects(again)
    del before[piece_marker(0)], after[piece_marker(0)]  # they tell the file's time of change
    assert after == before


def test_a_marker_counts_only_for_this_piece_read_this_way_with_its_parts(tmp_path: Path, root: Root) -> None:
    piece = one_piece(write(tmp_path / "a.tok", b"a b\n\xff\n" * 100))
    settings = ReadSettings()
    assert piece_result(root, piece, settings) is None
    result = tokenise_piece(root, piece, settings)
    assert piece_result(root, piece, settings) == result
    assert piece_result(root, piece, ReadSettings(tokenizer="ptb")) is None
    write(tmp_path / "a.tok", b"a b\n" * 101)
    assert piece_result(root, one_piece(tmp_path / "a.tok"), settings) is None

    whole = root.get(result.parts[0].path)
    root.put(result.parts[0].path, whole[:-1])
    assert piece_result(root, piece, settings) is None
    root.put(result.parts[0].path, whole)
    root.remove(result.parts[0].rejects)
    assert piece_result(root, piece, settings) is None
    for marker in (b"{", b"[]", b'{"piece": 3}', b"\xff", b""):
        root.put(piece_marker(0), marker)
        assert piece_result(root, piece, settings) is None


def test_a_damaged_input_leaves_no_marker(tmp_path: Path, root: Root) -> None:
    import gzip

    piece = one_piece(write(tmp_path / "a.tok.gz", gzip.compress(b"a b\n" * 10_000)[:-9]))
    with pytest.raises(InputError, match="cut short"):
        tokenise_piece(root, piece, ReadSettings(part_sentences=100))
    assert not root.exists(piece_marker(0))
    assert piece_result(root, piece, ReadSettings(part_sentences=100)) is None


def test_memory_does_not_grow_with_the_input(tmp_path: Path, root: Root) -> None:
    def peak(n_lines: int) -> int:
        piece = one_piece(write(tmp_path / f"{n_lines}.tok", b"the cat sat on the mat .\n" * n_lines), "lines")
        tracemalloc.start()
        try:
            tokenise_piece(root, piece, ReadSettings(part_sentences=500))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small = peak(20_000)
    assert peak(80_000) < small * 1.15


@pytest.mark.parametrize("mode", ["in_memory", "multi_processing"])
def test_pieces_through_beam(tmp_path: Path, root: Root, mode: str) -> None:
    lines = b"".join(b"sentence %d .\n" % i if i % 7 else b"\xff\n" for i in range(200))
    path = write(tmp_path / "in/a.tok", lines)
    write(tmp_path / "in/b.txt", b"One. Two.\n\nThree.")
    pieces = plan_pieces([str(tmp_path / "in")], range_bytes=500)
    settings = ReadSettings(part_sentences=20)
    workers = 1 if mode == "in_memory" else 2
    flags = ["--runner=FnApiRunner", f"--direct_running_mode={mode}", f"--direct_num_workers={workers}"]
    options = PipelineOptions(flags)
    with beam.Pipeline(options=options) as pipeline:
        _ = pipeline | beam.Create(pieces) | beam.Reshuffle() | beam.Map(_tokenise, root, settings)
    results = [piece_result(root, piece, settings) for piece in pieces]
    assert all(result is not None for result in results)
    found: list[Any] = []
    for result in results:
        assert result is not None
        for part in result.parts:
            found += read_part(root, part.path)["tokens"].to_pylist()
    expected = [list(getattr(record, "tokens", ())) for name in (path, tmp_path / "in/b.txt") for record in records(name)]
    assert found == expected
    assert sum(result.n_rejected for result in results if result) == 29


def _tokenise(piece: Any, root: Root, settings: ReadSettings) -> int:
    return tokenise_piece(root, piece, settings).n_sentences
