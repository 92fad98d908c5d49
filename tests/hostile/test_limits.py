"""Files that say they are small and would take any amount of memory: refused by name before it is taken."""

import json
import os
import resource
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
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

import elmo_store
from elmo_store.errors import ShardCorruptError, StoreError
from elmo_store.format import layout
from elmo_store.format.markers import ShardMarker, read_marker
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


@pytest.mark.slow
def test_chunks_of_zstd_that_are_bombs(store: Written) -> None:
    bomb = bytes(Zstd(level=1).encode(bytes(1 << 30)))
    assert len(bomb) < 1 << 17
    rel = layout.zarr_sentence_chunk(0)
    store.root.put(rel, bomb)
    assert grows(READ.format("store.sentence(0).read()"), store.root.url(), rel) < MOST_KIB


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
