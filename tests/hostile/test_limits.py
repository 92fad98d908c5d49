"""Files that say they are small and would take any amount of memory: refused by name before it is taken."""

import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numcodecs.blosc import Blosc  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

import elmo_store
from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.format import layout
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.forms import zarr_shard
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.storage.root import Root
from model.errors import OptionsError, WeightsError
from model.options import read_options
from tests.store.support import Written, make_store

MOST_KIB = 400 << 10  # that a process may grow by; what the files hold takes 1 GiB and more


@pytest.fixture
def store(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"))


def parquet_bomb(*, dictionary: bool) -> bytes:
    """A part of one sentence: a string of 1 GiB, or a million times one of 64 KiB. 100 kB as stored."""
    if dictionary:
        values = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(1 << 20, np.int32)), pa.array(["a" * (1 << 16)])
        )
    else:
        values = pa.array(["a" * (1 << 30)])
    columns: dict[str, Any] = {one: [0] for one in layout.SENTENCES_SCHEMA.names} | {
        "id": ["a:0"],
        "source": ["a"],
    }
    columns["n_tokens"] = pa.array([len(values)], pa.int32())
    columns["tokens"] = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    table = pa.table(columns, metadata={})
    sink = BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=dictionary,
        write_statistics=False,
        store_schema=False,
    )
    return sink.getvalue()


def grows(code: str, *arguments: str) -> int:
    """KiB by which a process grows that runs ``code`` after it has read something small."""
    program = f"import resource, sys, elmo_store\n{code}\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    return after - before


READ = """
from elmo_store.errors import StoreError
store = elmo_store.open(sys.argv[1])
import pyarrow.compute, numcodecs, zarr
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
try:
    {}
except StoreError as error:
    assert sys.argv[2] in str(error) and "more than" in str(error) or "the most" in str(error) or "too small" in str(error), error
else:
    raise SystemExit("nothing was refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_page_of_a_part_that_is_a_bomb_takes_no_memory(tmp_path: Path, dictionary: bool) -> None:
    """A token of 1 GiB is refused, and a million times a word of 64 KiB."""
    written = make_store(str(tmp_path / "s"), lengths=(1,), parts=(1,))
    data = parquet_bomb(dictionary=dictionary)
    assert len(data) < 1 << 20
    part = layout.sentences_part(0)
    written.root.put(part, data)
    assert grows(READ.format("store.sentence(0).tokens"), written.root.url(), part) < MOST_KIB


def varint(value: int, size: int) -> bytes:
    """A number as Thrift's compact protocol has it, filled up to ``size`` bytes by groups of zeros."""
    groups = [(2 * value) >> 7 * i & 127 for i in range(size)]
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


@pytest.mark.slow
def test_a_footer_that_lies_about_its_sizes_takes_no_memory(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"), lengths=(1,), parts=(1,))
    data = parquet_bomb(dictionary=False)
    metadata = pq.read_metadata(BytesIO(data))
    (size,) = {
        column.total_uncompressed_size
        for column in map(metadata.row_group(0).column, range(metadata.num_columns))
        if column.total_uncompressed_size > 1 << 30
    }
    part = layout.sentences_part(0)
    lying = data.replace(varint(size, 5), varint(1000, 5))
    assert pq.read_metadata(BytesIO(lying)).row_group(0).column(6).total_uncompressed_size == 1000
    written.root.put(part, lying)
    assert grows(READ.format("store.sentence(0).tokens"), written.root.url(), part) < MOST_KIB


@pytest.mark.slow
def test_chunks_of_zstd_that_are_bombs(store: Written) -> None:
    bomb = bytes(Zstd(level=1).encode(bytes(1 << 30)))
    assert len(bomb) < 1 << 17
    rel = layout.zarr_sentence_chunk(0)
    store.root.put(rel, bomb)
    assert grows(READ.format("store.sentence(0).read()"), store.root.url(), rel) < MOST_KIB


def zstd_bomb(kind: str) -> bytes:
    """Some kilobytes of zstd that decompress to 1 GiB, though their first header does not say so."""
    import zstandard

    if kind == "without a size":
        return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 30))
    whole = bytes(Zstd(level=1).encode(bytes(1 << 30)))
    if kind == "behind a small frame":
        return bytes(Zstd(level=1).encode(bytes(100))) + whole
    return struct.pack("<II", 0x184D2A50, 4) + b"skip" + whole  # a skippable frame


def put_in_shard(store: Written, array: str, chunk: bytes) -> str:
    """Put ``chunk`` in the place of the first inner chunk of shard 0 of an array; its path."""
    rel = layout.zarr_states_shard(0) if array == "states" else layout.zarr_scale_shard(0)
    n_parts = len(store.manifest.states) if array == "states" else 1
    data = store.root.get(rel)
    entries = zarr_shard.parse_index(data, 1, n_parts, 1)[0].tolist()
    chunks = [data[start : start + length] for start, length in entries]
    if store.manifest.checksum == "crc32c":
        chunk += zarr_shard.crc32c(chunk)
    chunks[0] = chunk
    lengths = np.array([[len(one)] for one in chunks], np.uint64)
    store.root.put(rel, b"".join(chunks) + zarr_shard._index(lengths, 1))
    return rel


READ_SHARD = READ.format("store.read({states}, rows={rows})")
WHOLE, ONE_CHUNK = "slice(0, 16)", "slice(0, 4)"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["without a size", "behind a small frame", "behind a skippable"])
@pytest.mark.parametrize("checksum", ["none", "crc32c"])
def test_states_in_zstd_that_hides_its_size(tmp_path: Path, kind: str, checksum: str) -> None:
    store = make_store(
        str(tmp_path / "s"), compression="zstd", checksum=checksum, store_forms=("zarr",)
    )
    rel = put_in_shard(store, "states", zstd_bomb(kind))
    for states, rows in ((None, WHOLE), ("'x'", ONE_CHUNK)):
        code = READ_SHARD.format(states=states, rows=rows)
        assert grows(code, store.root.url(), rel) < MOST_KIB


@pytest.mark.slow
@pytest.mark.parametrize("array", ["states", "scale"])
def test_numbers_in_blosc_that_are_a_bomb(tmp_path: Path, array: str) -> None:
    store = make_store(
        str(tmp_path / "s"), compression="blosc", dtype="int8", store_forms=("zarr",)
    )
    bomb = bytes(Blosc(cname="zstd", clevel=1).encode(bytes(1 << 30)))
    assert len(bomb) < 1 << 20
    rel = put_in_shard(store, array, bomb)
    code = READ_SHARD.format(states=None, rows=WHOLE)
    assert grows(code, store.root.url(), rel) < MOST_KIB


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["without a size", "behind a small frame", "behind a skippable"])
def test_sentence_start_in_zstd_that_hides_its_size(store: Written, kind: str) -> None:
    rel = layout.zarr_sentence_chunk(0)
    store.root.put(rel, zstd_bomb(kind))
    assert grows(READ.format("store.sentence(0).read()"), store.root.url(), rel) < MOST_KIB


@pytest.mark.parametrize("split", [False, True])
def test_zstd_of_several_frames_or_without_a_size_is_read(tmp_path: Path, split: bool) -> None:
    """Other programs may write it."""
    import zstandard

    store = make_store(str(tmp_path / "s"), compression="zstd", store_forms=("zarr",))
    numbers = store.states[:16, 0].tobytes()
    encode = zstandard.ZstdCompressor(write_content_size=split).compress
    parts = [numbers[:40], numbers[40:]] if split else [numbers]
    put_in_shard(store, "states", b"".join(map(encode, parts)))
    rows = elmo_store.open(store.root.url()).read(rows=slice(0, 16))
    np.testing.assert_array_equal(rows, store.states[:16])


@pytest.mark.parametrize("rel", [layout.zarr_sentence_chunk(0), layout.zarr_states_shard(0)])
def test_a_chunk_or_shard_that_is_too_large_is_not_read(tmp_path: Path, rel: str) -> None:
    store = make_store(str(tmp_path / "s"), compression="zstd", store_forms=("zarr",))
    with Path(store.root.path(rel)).open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(ShardCorruptError, match=f"{rel} is damaged"):
        elmo_store.open(store.root.url()).sentence(0).read()


@pytest.mark.parametrize("column", ["tokens", "id"])
def test_nulls_and_strings_that_are_no_utf_8_in_a_part(store: Written, column: str) -> None:
    rel = layout.sentences_part(0)
    whole = pq.read_table(BytesIO(store.root.get(rel)))
    bad = pa.array([b"\xff"] * len(whole), pa.binary()).view(pa.string())
    null = pa.array([None] * len(whole), pa.string())
    for values in (bad, null):
        if column == "tokens":
            values = pa.ListArray.from_arrays(pa.array(range(len(whole) + 1), pa.int32()), values)
        place = whole.schema.get_field_index(column)
        sink = BytesIO()
        pq.write_table(whole.set_column(place, column, values), sink)
        store.root.put(rel, sink.getvalue())
        with pytest.raises(ShardCorruptError, match=rel):
            elmo_store.open(store.root.url()).sentence(0).tokens  # noqa: B018


@pytest.mark.parametrize("rel", [layout.SENTENCE_INDEX, layout.id_table(0), layout.INPUTS])
def test_columns_of_another_type(store: Written, rel: str) -> None:
    from elmo_store.format.manifest import read_inputs

    table = pq.read_table(BytesIO(store.root.get(rel)))
    sink = BytesIO()
    pq.write_table(pa.table({name: [None] * len(table) for name in table.column_names}), sink)
    store.root.put(rel, sink.getvalue())
    opened = elmo_store.open(store.root.url())
    read = (
        (lambda: read_inputs(store.root))
        if rel == layout.INPUTS
        else (lambda: opened.sentence(id="doc.txt:0").tokens)
    )
    with pytest.raises(ShardCorruptError, match=f"{rel} is damaged .*column"):
        read()


OPEN_BY: dict[str, Callable[[str], Any]] = {
    layout.MANIFEST: elmo_store.open,
    layout.version(1): elmo_store.open,
    layout.shard_marker(0): lambda url: read_marker(Root(url), ShardMarker, 0),
    f"{layout.ZARR}/zarr.json": lambda url: Root(url).get_json(f"{layout.ZARR}/zarr.json"),
    "weights.json": lambda url: read_weight_sets(f"{url}/weights.json"),
    "options.json": lambda url: read_options(f"{url}/options.json"),
}


@pytest.mark.parametrize("kind", ["3 GiB", "a link to a device", "a link to a pipe"])
@pytest.mark.parametrize("rel", OPEN_BY)
def test_json_that_is_too_large_or_no_regular_file_is_not_read(
    store: Written, tmp_path: Path, rel: str, kind: str
) -> None:
    path = Path(store.root.path(rel))
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if rel == layout.version(1):
        Path(store.root.path(layout.MANIFEST)).unlink()
    if kind == "3 GiB":
        with path.open("wb") as file:
            file.truncate(3 << 30)
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("/dev/zero" if "device" in kind else tmp_path / "pipe")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        (StoreError, ValueError), match=r"are the most|more than|is a pipe or a device"
    ) as raised:
        OPEN_BY[rel](store.root.url())
    assert Path(rel).name in str(raised.value) or "zarr" in rel  # those who ask for that name it
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB


def test_json_of_an_object_store_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo_store.storage.root.MOST_JSON_BYTES", 1000)
    root = Root("memory://limits")
    root.put("a.json", b" " * 999 + b"1")
    assert root.get_json("a.json") == 1
    root.put("a.json", b" " * 5000)
    asked: list[bytes] = []
    cat = root.filesystem.cat_file

    def noted(*arguments: Any, **options: Any) -> bytes:
        asked.append(cat(*arguments, **options))
        return asked[-1]

    monkeypatch.setattr(root.filesystem, "cat_file", noted)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        root.get_json("a.json")
    assert [len(data) for data in asked] == [1001]
    root.put("a.json", b"")
    with pytest.raises(ValueError, match="Expecting value"):
        root.get_json("a.json")
    root.remove_tree()


def test_options_that_are_bombs(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"x": "y" * (1 << 20)}))
    with pytest.raises(OptionsError, match="the most that options have"):
        read_options(options)


def test_a_header_of_a_start_state() -> None:
    from model.start_state import StartState

    with pytest.raises(WeightsError, match="its header has"):
        StartState.from_bytes((1 << 24).to_bytes(8, "little") + b"[" * (1 << 24))
