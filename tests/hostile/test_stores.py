"""Stores that somebody else wrote or damaged: typed errors, an end in time, nothing read or written outside."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.checking.verify import verify
from elmo_store.errors import ManifestError, ShardCorruptError, StoreError, WeightSetError
from elmo_store.format import layout
from elmo_store.format.manifest import Counts, Manifest, own_sha256, read_manifest
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.root import Root
from pipeline.jobs.output import clear
from tests.store.deep import all_faults
from tests.store.support import Written, make_store, sealed_again

DEEP = 100_000


@pytest.fixture
def store(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"))


def sign(root: Root, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest's JSON as somebody would who knows how it is signed."""
    value = root.get_json(layout.MANIFEST)
    change(value)
    root.put(layout.MANIFEST, json.dumps(value | {"sha256": own_sha256(value)}).encode())


BAD_MANIFESTS: dict[str, Callable[[Root], object]] = {
    "nested 100,000 deep": lambda r: r.put(layout.MANIFEST, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a list as deep": lambda r: r.put(layout.MANIFEST, b"[" * DEEP + b"]" * DEEP),
    "UTF-16": lambda r: r.put(layout.MANIFEST, r.get(layout.MANIFEST).decode().encode("utf-16")),
    "a number of 5,000 digits": lambda r: r.put(
        layout.MANIFEST, b'{"format_version": 1' + b"0" * 5000 + b"}"
    ),
    "10^400 rows": lambda r: sign(r, lambda m: m["counts"].update(rows=10**400)),
    "negative rows": lambda r: sign(r, lambda m: m["counts"].update(rows=-1)),
    "half a surrogate pair": lambda r: sign(r, lambda m: m["model"].update(name="\ud800")),
    "half a pair in a job's field": lambda r: sign(r, lambda m: m["job"].update(x="\udfff")),
    "2^40 channels": lambda r: sign(r, lambda m: m.update(channels=2**40)),
    "an object outside": lambda r: sign(r, lambda m: m["objects"][0].update(path="../../outside")),
    "an object at an absolute path": lambda r: sign(
        r, lambda m: m["objects"][0].update(path="/etc/passwd")
    ),
    "a path with a NUL": lambda r: sign(r, lambda m: m["objects"][0].update(path="states\0")),
}


@pytest.mark.parametrize("what", BAD_MANIFESTS)
def test_manifests_that_are_none(store: Written, what: str) -> None:
    BAD_MANIFESTS[what](store.root)
    with pytest.raises(ManifestError, match=layout.MANIFEST) as caught:
        elmo_store.open(store.root.url())
    assert len(str(caught.value)) < 1000


def test_a_gamma_beyond_every_float_in_a_manifest(tmp_path: Path) -> None:
    from elmo_store.format.manifest import MixInfo, WeightSet

    mix = MixInfo("elsewhere", "0" * 64, False, (WeightSet("a", (0.5, 0.25, 0.25), 1.0),))
    root = make_store(str(tmp_path / "mix"), mix=mix).root
    sign(root, lambda m: m["mix"]["weight_sets"][0].update(gamma=10**400))
    with pytest.raises(ManifestError, match="gamma"):
        read_manifest(root)


BAD_MARKERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an object outside": lambda m: m["objects"][0].update(path="../../outside"),
    "an object at an absolute path": lambda m: m["objects"][0].update(path="/etc/passwd"),
    "backslashes": lambda m: m["objects"][0].update(path="..\\outside"),
    "a path that is no text": lambda m: m["objects"][0].update(path="\ud800"),
    "10^400 rows": lambda m: m.update(n_rows=10**400),
    "another shard": lambda m: m.update(shard=1),
    "statistics that are none": lambda m: m.update(stats=[]),
}


@pytest.mark.parametrize("what", BAD_MARKERS)
def test_markers_that_are_none(store: Written, what: str) -> None:
    rel = layout.shard_marker(0)
    value = store.root.get_json(rel)
    BAD_MARKERS[what](value)
    store.root.put(rel, sealed_again(value))
    with pytest.raises(ShardCorruptError, match=rf"{rel} is (not a marker|a copy)"):
        read_marker(store.root, ShardMarker, 0)
    assert any(
        rel in fault.text for fault in verify(elmo_store.open(store.root.url())._view).faults
    )


@pytest.mark.parametrize("data", [b"[" * DEEP + b"]" * DEEP, b"", b"\xff\xfe{", b"null"])
def test_a_marker_that_is_no_object(store: Written, data: bytes) -> None:
    store.root.put(layout.shard_marker(0), data)
    with pytest.raises(ShardCorruptError, match=layout.shard_marker(0)):
        read_marker(store.root, ShardMarker, 0)


def folder_in_place_of(root: Root, rel: str) -> None:
    root.remove(rel)
    Path(root.path(rel)).mkdir(parents=True)


@pytest.mark.parametrize(
    "rel",
    [layout.shard_marker(0), layout.START_STATE, layout.INPUTS,
     layout.zarr_states_shard(0), layout.zarr_token_chunk(0), layout.states_part(0), layout.sentences_part(0),
     layout.SENTENCE_INDEX, layout.id_table(0), f"{layout.ZARR}/zarr.json", f"{layout.ZARR}/states/zarr.json"],
)  # fmt: skip
def test_a_folder_in_place_of_an_object_is_a_fault(store: Written, rel: str) -> None:
    folder_in_place_of(store.root, rel)
    found = "\n".join(
        fault.text for fault in verify(elmo_store.open(store.root.url())._view).faults
    )
    assert rel in found
    with pytest.raises(StoreError, match=rel):
        store.root.get(rel)


@pytest.mark.parametrize("rel", [layout.part_group_marker(0), layout.ids_marker(0)])
def test_a_folder_in_place_of_a_marker_is_a_missing_marker(store: Written, rel: str) -> None:
    folder_in_place_of(store.root, rel)
    found = "\n".join(
        fault.text for fault in verify(elmo_store.open(store.root.url())._view).faults
    )
    assert "gives the checksum" in found


@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_folder_in_place_of_a_shard_is_a_typed_error_to_readers(
    tmp_path: Path, form: str
) -> None:
    written = make_store(str(tmp_path / "store"), store_forms=(form,))
    folder_in_place_of(
        written.root, layout.zarr_states_shard(0) if form == "zarr" else layout.states_part(0)
    )
    with pytest.raises(StoreError, match="is a folder"):
        elmo_store.open(written.root.url()).read(rows=slice(0, 4))


def test_a_folder_in_place_of_the_manifest(store: Written) -> None:
    folder_in_place_of(store.root, layout.MANIFEST)
    with pytest.raises(ManifestError, match="is a folder"):
        elmo_store.open(store.root.url())


def _shards_of(rows: int) -> int:
    return layout.n_shards(rows, 16)


HUGE = 10**18


@pytest.mark.parametrize(
    "counts",
    [
        {"rows": HUGE, "tokens": HUGE, "shards": _shards_of(HUGE)},
        {"sentences": HUGE},
        {"parts": HUGE},
        {
            "rows": HUGE,
            "tokens": HUGE,
            "sentences": HUGE,
            "parts": HUGE,
            "shards": _shards_of(HUGE),
            "rejected": HUGE,
        },
    ],
)
def test_a_manifest_of_10_to_the_18_is_looked_at_in_time(
    store: Written, counts: dict[str, int]
) -> None:
    manifest = store.manifest
    assert isinstance(manifest.counts, Counts)
    root = store.root
    sign(root, lambda m: m["counts"].update(counts))
    began = time.monotonic()
    report = verify(elmo_store.open(root.url())._view)
    assert time.monotonic() - began < 60  # it took years
    assert 0 < len(report.faults) < 5000
    assert not any("no marker names it" in fault.text for fault in report.faults)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_index_with_a_right_checksum_that_marks_chunks_absent_is_no_zeros(
    tmp_path: Path, compression: str
) -> None:
    from elmo_store.forms.zarr_shard import crc32c, index_bytes

    store = make_store(str(tmp_path / "store"), store_forms=("zarr",), compression=compression)
    rel = layout.zarr_states_shard(0)
    data = bytearray(store.root.get(rel))
    size = index_bytes(1, len(store.manifest.states))
    data[-size:-4] = b"\xff" * (size - 4)
    data[-4:] = crc32c(bytes(data[-size:-4]))
    store.root.put(rel, bytes(data))
    if compression == "none":  # the rows lie where the format says, so nobody reads the index
        np.testing.assert_array_equal(
            elmo_store.open(store.root.url()).read(rows=slice(0, 4)), store.states[:4]
        )
        return
    with pytest.raises(ShardCorruptError, match="as absent, which has rows"):
        elmo_store.open(store.root.url()).read(rows=slice(0, 4))


@pytest.mark.parametrize(
    ("offset", "length"), [(2**62 - 1, 256), (0, 2**62 - 1), (2**40, 256), (0, 2**40)]
)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_index_that_points_outside_its_shard(
    tmp_path: Path, compression: str, offset: int, length: int
) -> None:
    from elmo_store.forms.zarr_shard import crc32c, index_bytes

    written = make_store(str(tmp_path / "store"), store_forms=("zarr",), compression=compression)
    rel = layout.zarr_states_shard(0)
    data = bytearray(written.root.get(rel))
    size = index_bytes(1, len(written.manifest.states))
    data[-size : -size + 16] = np.array([offset, length], "<u8").tobytes()
    data[-4:] = crc32c(bytes(data[-size:-4]))
    written.root.put(rel, bytes(data))
    if compression == "none":  # the rows lie where the format says, so nobody reads the index
        np.testing.assert_array_equal(
            elmo_store.open(written.root.url()).read(rows=slice(0, 4)), written.states[:4]
        )
        return
    with pytest.raises(ShardCorruptError, match=rel):
        elmo_store.open(written.root.url()).read(rows=slice(0, 4))


@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_state_whose_bit_flipped_is_refused_where_checksums_are_on(
    tmp_path: Path, form: str
) -> None:
    written = make_store(str(tmp_path / "store"), store_forms=(form,), checksum="crc32c")
    rel = layout.zarr_states_shard(0) if form == "zarr" else layout.states_part(0)
    whole = written.root.get(rel)
    value = written.states[0, 1].tobytes()  # of a row and state: 16 bytes that stand nowhere else
    place = whole.index(value)
    damaged = bytearray(whole)
    damaged[place] ^= 1
    written.root.put(rel, bytes(damaged))
    with pytest.raises(StoreError, match=rel):
        elmo_store.open(written.root.url()).read(rows=slice(0, 1))


def test_weights_of_a_manifest_are_checked_too() -> None:
    from elmo_store.format.manifest import WeightSet
    from elmo_store.mixing.scalar_mix import ScalarMix

    with pytest.raises(WeightSetError, match="float32, which ends at"):
        ScalarMix.of(WeightSet("a", (0.5, 0.5), 1e300))


def test_a_link_inside_a_store_is_not_followed_when_it_is_removed(
    store: Written, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("years of work")
    Path(store.root.path("sentences/link")).symlink_to(outside)
    store.root.remove_tree()
    assert (outside / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("write", [
    lambda root: root.put("sentences/part-00000.parquet", b"x"),
    lambda root: root.put_new("sentences/new.parquet", b"x"),
    lambda root: root.put("sentences/below/new.parquet", Path(__file__)),
    lambda root: root.put_new("sentences/new.parquet", Path(__file__)),
])  # fmt: skip
def test_nothing_is_written_through_a_link_inside_a_store(
    store: Written, tmp_path: Path, write: Callable[[Root], object]
) -> None:
    outside = tmp_path / "outside"
    sentences = Path(store.root.path("sentences"))
    sentences.rename(outside)
    sentences.symlink_to(outside)
    before = {path.name: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="sentences is a link to"):
        write(store.root)
    assert {path.name: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    assert elmo_store.open(store.root.url()).sentence(0).tokens  # reading follows it


def test_overwriting_a_store_removes_a_link_and_not_what_it_leads_to(
    store: Written, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    sentences = Path(store.root.path("sentences"))
    sentences.rename(outside)
    sentences.symlink_to(outside)
    before = sorted(path.name for path in outside.rglob("*"))
    clear(store.root)
    assert sorted(path.name for path in outside.rglob("*")) == before
    assert not sentences.exists()
    assert not sentences.is_symlink()


def test_the_sound_store_is_sound(store: Written) -> None:
    assert isinstance(replace(store.manifest), Manifest)
    assert all_faults(elmo_store.open(store.root.url())) == []
