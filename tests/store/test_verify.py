"""Changed bytes are named by `verify`, and what checksums cannot tell by the comparison of `tests.store.deep`."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.checking.verify import verify
from elmo_store.errors import ManifestError, ShardCorruptError, StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import Checksums, read_manifest, write_manifest
from elmo_store.format.markers import (
    IdsMarker,
    ObjectRecord,
    PartGroupMarker,
    ShardMarker,
    checksum,
    marked,
    read_marker,
    write_marker,
)
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import read_sentence_chunks
from elmo_store.storage.root import Root
from tests.store.deep import all_faults
from tests.store.support import Written, make_store

LENGTHS = (3, 7, 0, 7, 1, 0, 12, 5)  # sentences 1 and 3 are equally long; 5 was refused


def make(folder: Path, **settings: Any) -> Written:
    return make_store(str(folder), lengths=LENGTHS, **settings)


def resign(root: Root) -> None:
    """Make every marker and the manifest say of each object what it is now, as somebody who wrote it by hand would."""
    markers: dict[str, list[Any]] = {}
    kinds: dict[str, Any] = {
        layout.SHARDS: ShardMarker,
        layout.PART_GROUPS: PartGroupMarker,
        layout.IDS: IdsMarker,
    }
    for folder, kind in kinds.items():
        markers[folder] = []
        for number in marked(root, folder):
            marker: Any = read_marker(root, kind, number)
            there = [record.path for record in marker.objects if root.exists(record.path)]
            marker = replace(
                marker, objects=tuple(ObjectRecord.of(path, root.get(path)) for path in there)
            )
            write_marker(root, marker)
            markers[folder].append(marker)
    manifest = read_manifest(root)
    sums = Checksums(
        *(checksum(markers[folder]) for folder in (layout.SHARDS, layout.PART_GROUPS, layout.IDS))
    )
    objects = tuple(ObjectRecord.of(one.path, root.get(one.path)) for one in manifest.objects)
    write_manifest(root, replace(manifest, checksums=sums, objects=objects))


def faults(root: Root, *, deep: bool = True) -> str:
    """What verify finds; with ``deep`` also what our tests' own comparison of the objects with one another finds."""
    store = elmo_store.open(root.url())
    return "\n".join(
        all_faults(store) if deep else [fault.text for fault in verify(store._view).faults]
    )


def rewrite(root: Root, rel: str, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """A Parquet file with its columns changed."""
    table = pq.read_table(io.BytesIO(root.get(rel)))
    columns = table.to_pydict()
    change(columns)
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=table.schema), sink)
    root.put(rel, sink.getvalue())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make(tmp_path_factory.mktemp("sound") / "store").root


def test_a_sound_store_stays_sound_when_it_is_signed_again(tmp_path: Path) -> None:
    root = make(tmp_path / "store").root
    before = root.get(layout.MANIFEST)
    assert faults(root) == ""
    resign(root)
    assert faults(root) == ""
    assert root.get(layout.MANIFEST) == before


@pytest.mark.slow
@given(data=st.data())
def test_one_flipped_bit_is_named_or_changes_nothing(sound: Root, data: st.DataObject) -> None:
    rel = data.draw(st.sampled_from(sound.list()))
    whole = sound.get(rel)
    place = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place // 8] ^= 1 << (place % 8)
    sound.put(rel, bytes(flipped))
    try:
        found = faults(sound, deep=False)
    except StoreError as error:  # damage where everything begins
        found = str(error) if rel == layout.MANIFEST else ""
    finally:
        sound.put(rel, whole)
    if not found:  # only a manifest that says the same in other bytes
        assert rel == layout.MANIFEST
        assert json.loads(whole) == json.loads(flipped)
    elif not rel.startswith(
        ("_shards/", "_parts/", "_ids/")
    ):  # a flipped marker may accuse the object that it names
        assert rel in found


@pytest.mark.slow
def test_any_flipped_bit_of_a_marker_is_found(tmp_path: Path) -> None:
    root = Root(tmp_path)
    stats: dict[str, float | str] = {
        "seconds_reading": 1e-05,
        "tokens": 3.0,
        "worker": "host:1",
        "stamps": "1-2\n3-4",
    }
    write_marker(root, ShardMarker(0, 0, 3, (ObjectRecord("a", 1, "0" * 8),), "plan", stats))
    whole = root.get(layout.shard_marker(0))
    assert read_marker(root, ShardMarker, 0) is not None
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << (place % 8)
        (tmp_path / layout.shard_marker(0)).write_bytes(flipped)
        with pytest.raises(ShardCorruptError, match=layout.shard_marker(0)):
            read_marker(root, ShardMarker, 0)


def _swap(columns: dict[str, list[Any]], name: str, a: int, b: int) -> None:
    columns[name][a], columns[name][b] = columns[name][b], columns[name][a]


def _change_token(columns: dict[str, list[Any]]) -> None:
    columns["tokens"][0] = ["changed", *columns["tokens"][0][1:]]


def _marker_swap(root: Root) -> None:
    """Shards 0 and 1 change places, with their markers."""
    for name in (layout.zarr_states_shard, layout.zarr_token_chunk, layout.states_part):
        _swap_objects(root, name)


def _consolidated(root: Root) -> None:
    rel = f"{layout.ZARR}/zarr.json"
    value = root.get_json(rel)
    value["consolidated_metadata"]["metadata"]["states"]["shape"][0] += 1
    root.put_json(rel, value)


def _starts(root: Root) -> None:
    manifest = read_manifest(root)
    (entries,) = read_sentence_chunks(root, manifest, [0])
    entries[2] += 1
    root.put(*zarr_form.encode_sentence_chunk(manifest, 0, entries))


def _reject_moved(root: Root) -> None:
    data = root.get(layout.rejects_part(2))
    reject = {**json.loads(data), "sentence": 6}
    root.put(layout.rejects_part(2), (json.dumps(reject) + "\n").encode())


def _one_form(root: Root) -> None:
    rewrite(root, layout.states_part(0), lambda c: c["fwd1"].__setitem__(0, c["fwd1"][1]))


STRUCTURAL: dict[str, tuple[Callable[[Root], None], str]] = {
    "a token": (lambda r: rewrite(r, layout.sentences_part(0), _change_token), "not those of their sentences"),
    "two ids": (lambda r: rewrite(r, layout.sentences_part(0), lambda c: _swap(c, "id", 0, 1)), "which leads to sentence"),
    "two sentences' tokens": (
        lambda r: rewrite(r, layout.sentences_part(2), lambda c: _swap(c, "tokens", 0, 3)), "n_tokens is not the length",
    ),
    "a first row": (
        lambda r: rewrite(r, layout.sentences_part(0), lambda c: c["first_row"].__setitem__(1, 2)), "first_row does not follow",
    ),
    "a number": (lambda r: rewrite(r, layout.sentences_part(0), lambda c: c["sentence"].__setitem__(1, 7)), "without gaps"),
    "sentence_start": (_starts, "does not say where its sentences begin"),
    "the consolidated shape": (_consolidated, "its copy of the metadata of states"),
    "a reject's place": (_reject_moved, "was refused, and has tokens"),
    "two shards": (_marker_swap, "not those of their sentences"),
    "one form": (_one_form, "are not the same in both forms"),
    "a row's sentence": (
        lambda r: rewrite(r, layout.states_part(1), lambda c: c["sentence"].__setitem__(0, 0)), "column sentence",
    ),
    "an id table": (lambda r: rewrite(r, layout.id_table(0), lambda c: _swap(c, "sentence", 0, 1)), "leads to sentence"),
    "the table of parts": (lambda r: rewrite(r, layout.SENTENCE_INDEX, lambda c: c["n_rows"].__setitem__(0, 3)), "parts.parquet"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", STRUCTURAL)
def test_contents_that_contradict_each_other_are_found_though_every_hash_is_right(
    tmp_path: Path, what: str
) -> None:
    root = make(tmp_path / "store").root
    change, message = STRUCTURAL[what]
    change(root)
    assert faults(root, deep=False) != ""  # the hashes tell, as long as nobody signs
    resign(root)
    assert message in faults(root)


def _scale(root: Root, value: float) -> None:
    """The scale of row 17's third state, in the Zarr form."""
    rel = layout.zarr_scale_shard(1)
    data = bytearray(root.get(rel))
    data[(1 * 5 + 2) * 4 : (1 * 5 + 3) * 4] = np.float32(value).tobytes()
    root.put(rel, bytes(data))


INT8: dict[str, tuple[Callable[[Root], None], str]] = {
    "another scale": (lambda r: _scale(r, 0.5), "are not the same in both forms"),
    "a negative scale": (lambda r: _scale(r, -0.5), "a scale of rows 16 … 32 in the zarr form is negative"),
    "a scale of NaN": (lambda r: _scale(r, np.nan), "is negative or no finite number"),
    "a scale of Parquet": (
        lambda r: rewrite(r, layout.states_part(0), lambda c: c["bwd1_scale"].__setitem__(0, -1.0)), "parquet form is negative",
    ),
    "two shards of scales": (lambda r: _swap_objects(r, layout.zarr_scale_shard), "are not the same in both forms"),
    "no scales": (lambda r: r.remove(layout.zarr_scale_shard(2)), "states.zarr/scale/c/2/0 is missing"),
    "no metadata": (lambda r: r.remove(f"{layout.ZARR}/scale/zarr.json"), "scale/zarr.json is missing"),
}  # fmt: skip


def _swap_objects(root: Root, name: Callable[[int], str]) -> None:
    first, second = root.get(name(0)), root.get(name(1))
    root.put(name(0), second)
    root.put(name(1), first)


@pytest.mark.slow
@pytest.mark.parametrize("what", INT8)
def test_scales_are_looked_at_as_all_else(tmp_path: Path, what: str) -> None:
    root = make(tmp_path / "store", dtype="int8").root
    assert faults(root) == ""
    change, message = INT8[what]
    change(root)
    assert faults(root, deep=False) != ""
    if "missing" not in message:
        resign(root)
    assert message in faults(root)


def test_an_absent_chunk_with_a_right_checksum_is_no_zeros(tmp_path: Path) -> None:
    from elmo_store.forms.zarr_shard import crc32c

    root = make(tmp_path / "store").root
    rel = layout.zarr_states_shard(1)
    data = bytearray(root.get(rel))
    data[-4 - 5 * 16 : -4 - 4 * 16] = b"\xff" * 16  # the entry of the first state
    data[-4:] = crc32c(bytes(data[-4 - 5 * 16 : -4]))
    root.put(rel, bytes(data))
    resign(root)
    assert "marks inner chunk (0, 0) as absent" in faults(root)
    stored = make(
        tmp_path / "other"
    ).states  # whose bytes lie where the format says, whatever the index says
    np.testing.assert_array_equal(elmo_store.open(root.url()).read("x", 20)[0], stored[20, 0])


@pytest.mark.parametrize("encoding", [{"compression": "zstd"}, {"checksum": "crc32c"}])
def test_an_absent_chunk_of_encoded_ones_is_an_error(
    tmp_path: Path, encoding: dict[str, str]
) -> None:
    from elmo_store.forms.zarr_shard import crc32c

    root = make(tmp_path / "store", **encoding).root
    rel = layout.zarr_states_shard(1)
    data = bytearray(root.get(rel))
    data[-4 - 5 * 16 : -4 - 4 * 16] = b"\xff" * 16  # the entry of the first state
    data[-4:] = crc32c(bytes(data[-4 - 5 * 16 : -4]))
    root.put(rel, bytes(data))
    with pytest.raises(StoreError, match="as absent, which has rows"):
        elmo_store.open(root.url()).read("x", 20)


def test_inner_chunks_in_another_order_are_named(tmp_path: Path) -> None:
    from elmo_store.forms.zarr_shard import crc32c

    root = make(tmp_path / "store").root
    rel = layout.zarr_states_shard(1)
    data = bytearray(root.get(rel))
    index = data[-4 - 5 * 16 : -4]
    index[:16], index[16:32] = index[16:32], index[:16]  # of the first two states
    data[-4 - 5 * 16 :] = index + crc32c(bytes(index))
    root.put(rel, bytes(data))
    resign(root)
    assert "does not name the inner chunks one part after the other" in faults(root)


@pytest.mark.parametrize(
    "rel",
    [
        layout.sentences_part(7),
        layout.rejects_part(1),
        "_shards/00009.json",
        layout.zarr_sentence_chunk(4),
    ],
)
def test_an_object_too_many_is_named(tmp_path: Path, rel: str) -> None:
    root = make(tmp_path / "store").root
    root.put(rel, root.get("_shards/00000.json"))
    assert f"{rel} is among the store's objects" in faults(root, deep=False)


def test_the_first_chunk_of_sentence_start_is_missed(tmp_path: Path) -> None:
    root = make(tmp_path / "store").root
    root.remove(layout.zarr_sentence_chunk(0))
    assert "sentence_start/c/0 is missing" in faults(root)
    with pytest.raises(StoreError, match="sentence_start/c/0 is missing"):
        elmo_store.open(root.url()).sentence(0)


def test_one_bad_marker_does_not_end_the_look(tmp_path: Path) -> None:
    root = make(tmp_path / "store").root
    root.put(layout.shard_marker(0), b"{")
    root.put(layout.zarr_states_shard(2), b"cut")
    found = faults(root)
    assert "00000.json is not JSON" in found
    assert "states/c/2/0/0 has 3 bytes" in found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_file_that_is_swapped_cut_or_of_another_store_is_named(tmp_path: Path, form: str) -> None:
    """Every object in turn: cut, gone, in its neighbour's place, and as another store of the same shape has it."""
    root = make(tmp_path / "store", store_forms=(form,)).root
    older = make_store(str(tmp_path / "older"), lengths=LENGTHS[::-1], store_forms=(form,)).root
    names = [rel for rel in root.list() if rel != layout.MANIFEST and not rel.startswith("_")]
    for rel in names:
        whole = root.get(rel)
        alike = [root.get(name) for name in names if Path(name).parent == Path(rel).parent]
        others = [*alike, *([older.get(rel)] if older.exists(rel) else [])]
        for damaged in (whole[: len(whole) // 2], None, *others):
            if damaged == whole:
                continue
            if damaged is None:
                root.remove(rel)
            else:
                root.put(rel, damaged)
            try:
                found = faults(root, deep=False)
            except StoreError as error:  # what is read when it opens
                found = str(error)
            assert rel in found
        root.put(rel, whole)
    assert faults(root) == ""


def test_a_changed_fingerprint_is_found_at_the_door(tmp_path: Path) -> None:
    root = make(tmp_path / "store").root
    text = root.get(layout.MANIFEST).replace(b"sha256:1", b"sha256:2")
    root.put(layout.MANIFEST, text)
    with pytest.raises(ManifestError, match="it was changed or damaged"):
        faults(root)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd", "blosc"])
def test_with_checksums_no_reader_gives_wrong_numbers(tmp_path: Path, compression: str) -> None:
    written = make_store(
        str(tmp_path / "store"), checksum="crc32c", compression=compression, store_forms=("zarr",)
    )
    rel = layout.zarr_states_shard(1)
    whole = written.root.get(rel)
    random = np.random.default_rng(0)
    for place in random.integers(0, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        written.root.put(rel, bytes(damaged))
        with pytest.raises(StoreError, match=rel):
            elmo_store.open(written.root.url()).read(rows=slice(16, 32))
    written.root.put(rel, whole)
    np.testing.assert_array_equal(elmo_store.open(written.root.url()).read(), written.states)


def test_a_table_without_a_column_is_damaged(tmp_path: Path) -> None:
    root = make(tmp_path / "store").root
    for rel, name in ((layout.SENTENCE_INDEX, "n_rows"), (layout.id_table(0), "hash_low")):
        whole = root.get(rel)
        sink = io.BytesIO()
        pq.write_table(pq.read_table(io.BytesIO(whole)).drop_columns([name]), sink)
        root.put(rel, sink.getvalue())
        with pytest.raises(StoreError, match=f"{rel} is damaged .it has no column {name}"):
            _ = elmo_store.open(root.url()).sentence(id="doc.txt:1").tokens
        root.put(rel, whole)
