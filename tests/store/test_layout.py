"""Names and ranges: shards tile the rows, exactly once; storage is atomic, and the same on every place."""

import multiprocessing
import pickle
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.format import layout
from elmo_store.forms import shards as forms
from elmo_store.storage.data import TEMPORARY_PREFIX, Range, ShortReadError, merged
from elmo_store.storage.root import Root
from tests.store.support import make_manifest


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


@pytest.mark.parametrize(("rows", "chunk"), [(1, 1), (127, 127), (128, 128), (16384, 128)])
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


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(0, 20)), max_size=20
    ),
    st.integers(0, 30),
)
def test_ranges_are_merged_where_they_lie_close(
    ranges: list[tuple[str, int, int]], gap: int
) -> None:
    given_ranges = [Range(rel, start, memoryview(bytearray(size))) for rel, start, size in ranges]
    groups = merged(given_ranges, gap)
    assert sorted(id(one) for group in groups for one in group) == sorted(
        id(r) for r in given_ranges if r.into.nbytes
    )
    covered = [(group[0].rel, group[0].start, max(one.stop for one in group)) for group in groups]
    assert all(one.rel == group[0].rel for group in groups for one in group)
    for (rel, _, stop), (other, start, _) in pairwise(covered):
        assert rel < other or start - stop > gap


def test_objects_of_a_root(root: Root) -> None:
    assert root.list() == []
    assert not root.exists("a/b.json")
    with pytest.raises(FileNotFoundError):
        root.get("a/b.json")
    root.put("a/b.json", b"0123456789")
    root.put("a/b.json", b"abcdefgh")
    root.put("c", b"")
    assert root.get("a/b.json") == b"abcdefgh"
    assert root.get_many(["a/b.json", "c"]) == [b"abcdefgh", b""]
    assert root.get_tails({"a/b.json": 3}) == {"a/b.json": b"fgh"}
    assert root.get_tails({"a/b.json": 99}) == {"a/b.json": b"abcdefgh"}
    assert root.get_tails({"a/b.json": 2, "c": 5}) == {"a/b.json": b"gh", "c": b""}
    data = bytearray(6)
    view = memoryview(data)
    root.read_ranges(
        [
            Range("a/b.json", 5, view[:2]),
            Range("a/b.json", 0, view[2:5]),
            Range("a/b.json", 7, view[5:]),
        ]
    )
    assert data == b"fgabch"
    with pytest.raises(ShortReadError):
        root.read_ranges([Range("a/b.json", 6, memoryview(bytearray(3)))])
    for missing in (
        lambda: root.get_many(["c", "nothing"]),
        lambda: root.get_tails({"c": 1, "nothing": 1}),
    ):
        with pytest.raises(FileNotFoundError, match="nothing"):
            missing()
    assert root.crc32c("a/b.json") == f"{google_crc32c.value(b'abcdefgh'):08x}"
    assert (root.size("a/b.json"), root.size("c"), root.size("a"), root.size("d")) == (
        8,
        0,
        None,
        None,
    )
    assert root.list() == ["a/b.json", "c"]
    assert root.list("a") == root.list("a/") == ["a/b.json"]
    root.put_json("d.json", {"ö": [1, None]})
    assert root.get_json("d.json") == {"ö": [1, None]}
    root.remove("d.json")
    root.remove("d.json")
    assert pickle.loads(pickle.dumps(root)).url() == root.url()
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
    assert [
        path.name for path in tmp_path.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)
    ] == [f"{TEMPORARY_PREFIX}1234-c"]


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
    assert len(forms.encode_shard(make_manifest(), 1, **shard)) == 3  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        forms.encode_shard(make_manifest(), 1, **{**shard, **change})  # type: ignore[arg-type]


def test_a_long_name_of_any_letters_has_a_temporary_one(tmp_path: Path) -> None:
    root = Root(tmp_path)
    for name in ("ы" * 120, "語" * 80, "x" * 250):
        root.put(name, b"1")
        assert root.get(name) == b"1"


def test_a_listing_has_what_links_lead_to_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.put("a", b"123")
    (tmp_path / "elsewhere").write_bytes(b"12345")
    for name, target in {
        "b": "../elsewhere",
        "dangling": "nothing",
        "loop": "loop",
        "folder": "..",
    }.items():
        (tmp_path / "root" / name).symlink_to(target)
    assert root.sizes() == {"a": 3, "b": 5}
