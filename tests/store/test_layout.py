"""Names and ranges: shards tile the rows, exactly once; storage is atomic, and the same on every place."""

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store import layout, shard_codec, zarr_form
from elmo_store.errors import StoreError
from elmo_store.row_readers import runs, shards_of
from elmo_store.storage import TEMPORARY_PREFIX, Root
from tests.store.support import make_manifest, make_store


@given(rows=st.integers(0, 10_000), shard_rows=st.integers(1, 3000))
def test_shards_tile_the_rows(rows: int, shard_rows: int) -> None:
    count = layout.n_shards(rows, shard_rows)
    tiles = [layout.shard_range(k, rows, shard_rows) for k in range(count)]
    assert [row for first, stop in tiles for row in (first, stop)] == sorted(
        [0, *[k * shard_rows for k in range(1, count) for _ in (0, 1)], rows] if rows else []
    )
    assert all(0 < stop - first <= shard_rows for first, stop in tiles)
    with pytest.raises(IndexError, match=f"no shard {count}"):
        layout.shard_range(count, rows, shard_rows)


@given(st.data())
def test_the_shards_of_a_range(data: st.DataObject) -> None:
    manifest = make_manifest(lengths=(data.draw(st.integers(0, 300)),), parts=(1,), shard_rows=data.draw(st.integers(1, 50)))
    first = data.draw(st.integers(0, manifest.sizes.rows))
    stop = data.draw(st.integers(first, manifest.sizes.rows))
    found = [row for _, lo, hi in shards_of(manifest, first, stop) for row in range(lo, hi)]
    assert found == list(range(first, stop))
    for shard, lo, hi in shards_of(manifest, first, stop):
        start, end = manifest.shard_range(shard)
        assert start <= lo < hi <= end


@given(st.lists(st.integers(0, 8), max_size=12))
def test_runs_of_states(indices: list[int]) -> None:
    found = list(runs(indices))
    assert [state + i for _, state, length in found for i in range(length)] == indices
    assert [place for place, _, _ in found] == list(np.cumsum([0, *[n for _, _, n in found]])[:-1]) if found else not indices


@given(st.integers(1, 40))
def test_names_of_states(layers: int) -> None:
    names = layout.state_names(layers)
    assert len(names) == 2 * layers + 1
    assert names[:3] == ("x", "fwd1", "bwd1")
    assert layout.n_layers(names) == layers


def test_names_in_the_store() -> None:
    assert layout.sentences_part(0) == "sentences/part-00000.parquet"
    assert layout.rejects_part(12) == "rejects/part-00012.jsonl"
    assert layout.states_part(99_999) == "states/part-99999.parquet"
    assert layout.shard_marker(123_456) == "_shards/123456.json"
    assert layout.zarr_states_shard(7) == "states.zarr/states/c/7/0/0"
    assert layout.zarr_token_chunk(7) == "states.zarr/token/c/7"


@pytest.mark.parametrize(("rows", "chunk"), [(1, 1), (511, 511), (512, 512), (16384, 512)])
def test_inner_chunks(rows: int, chunk: int) -> None:
    assert layout.chunk_rows(rows) == chunk


@pytest.mark.parametrize("rows", [0, -1, 513, 1000])
def test_shards_that_inner_chunks_do_not_divide(rows: int) -> None:
    with pytest.raises(ValueError, match=f"shards of {rows} rows"):
        layout.chunk_rows(rows)


@pytest.fixture(params=["local", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "s3":
        return Root(f"{request.getfixturevalue('s3_url')}/roots/{uuid4()}")
    return Root(tmp_path / "root" if request.param == "local" else f"memory://roots/{uuid4()}")


def test_objects_of_a_root(root: Root) -> None:
    assert root.list() == []
    assert not root.exists("a/b.json")
    with pytest.raises(FileNotFoundError):
        root.get("a/b.json")
    root.put("a/b.json", b"0123456789")
    root.put("a/b.json", b"abcdefgh")
    root.put("c", b"")
    assert root.get("a/b.json") == b"abcdefgh"
    assert root.get_range("a/b.json", 2, 5) == b"cde"
    assert (root.size("a/b.json"), root.size("c"), root.size("a"), root.size("d")) == (8, 0, None, None)
    assert root.list() == ["a/b.json", "c"]
    assert root.list("a") == root.list("a/") == ["a/b.json"]
    root.put_json("d.json", {"ö": [1, None]})
    assert root.get_json("d.json") == {"ö": [1, None]}
    root.remove("d.json")
    root.remove("d.json")
    child = root.child("a")
    assert (child.list(), child.get("b.json")) == (["b.json"], b"abcdefgh")
    assert pickle.loads(pickle.dumps(root)) == root
    assert pickle.loads(pickle.dumps(root)).get("c") == b""
    root.remove_tree("a")
    assert root.list() == ["c"]
    root.remove_tree()
    root.remove_tree()
    assert root.list() == []


def test_what_another_process_wrote_is_seen(s3_url: str) -> None:
    root = Root(f"{s3_url}/roots/{uuid4()}")
    root.put("a", b"1")
    assert root.list() == ["a"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(_put, (root, "b", b"2"))
    assert root.list() == ["a", "b"]
    assert root.size("b") == 1


def _put(root: Root, name: str, data: bytes) -> None:
    root.put(name, data)


def test_a_file_half_written_is_no_object(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.put("a/b", b"1")
    (tmp_path / "a" / f"{TEMPORARY_PREFIX}1234-c").write_bytes(b"half")
    assert root.list() == ["a/b"]
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError):
        root.put("d", b"1")
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)] == [f"{TEMPORARY_PREFIX}1234-c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": np.zeros((16, 5, 8), "f4")}, "in float32"),
        ({"states": np.zeros((15, 5, 8), "f2")}, r"takes states of shape \(16, 5, 8\)"),
        ({"tokens": ["a"] * 15}, "tokens has 15"),
        ({"sentence": np.zeros(17, "i8")}, "sentence has 17"),
        ({"index_in_sentence": np.zeros(0, "i4")}, "index_in_sentence has 0"),
    ],
)
def test_a_shard_must_be_whole(change: dict[str, object], message: str) -> None:
    shard = {
        "states": np.zeros((16, 5, 8), "f2"),
        "tokens": ["a"] * 16,
        "sentence": np.zeros(16, "i8"),
        "index_in_sentence": np.zeros(16, "i4"),
    }
    assert len(shard_codec.encode(make_manifest(), 1, **shard)) == 3  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        shard_codec.encode(make_manifest(), 1, **{**shard, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 3, 10, 10, 31, 32, 32, 44], "has 8 entries up to row 44; 9 up to row 49"),
        ([0, 3, 10, 9, 31, 32, 32, 44, 49], "not in order"),
        ([1, 3, 10, 10, 31, 32, 32, 44, 49], "not in order"),
        ([], "has 0 entries"),
    ],
)
def test_sentence_starts_must_fit_the_plan(tmp_path: Path, starts: list[int], message: str) -> None:
    written = make_store(str(tmp_path / "store"))
    with pytest.raises(StoreError, match=message):
        zarr_form.write_sentence_start(written.root, written.manifest, iter([np.array(starts)]))


def test_sentence_starts_in_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SENTENCE_CHUNK", 4)
    lengths = (1, 0, 2) * 5
    written = make_store(str(tmp_path / "store"), lengths=lengths, parts=(15,))

    def pieces() -> Iterator[np.ndarray]:
        for start in written.starts:
            yield np.array([start])
            yield np.zeros(0, np.int64)

    before = {name: written.root.get(name) for name in written.root.list("states.zarr/sentence_start")}
    zarr_form.write_sentence_start(written.root, written.manifest, pieces())
    assert len(before) == 4 + 1  # 16 entries in chunks of 4, and the metadata
    assert {name: written.root.get(name) for name in before} == before
