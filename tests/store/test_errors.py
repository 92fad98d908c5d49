"""Every way in which a store can be wrong has an error of its own, which names the place."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import (
    JobMismatchError,
    ManifestError,
    ShardCorruptError,
    ShardMissingError,
    StoreError,
    StoreFeatureError,
    StoreIncompleteError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format import layout
from elmo_store.format.manifest import (
    Manifest,
    MixInfo,
    WeightSet,
    own_sha256,
    read_manifest,
    write_manifest,
)
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.parquet_files import read_table
from elmo_store.storage.root import Root
from tests.store.support import Written, make_manifest, make_store


def signed(value: dict[str, Any]) -> dict[str, Any]:
    """A manifest's JSON with the hash that belongs to it."""
    return {**value, "sha256": own_sha256(value)}


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(
        StoreNotFoundError, match=r"no store at .*nothing: there is no .*elmo_store\.json"
    ):
        elmo_store.open(tmp_path / "nothing")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotFoundError, match="no store at"):
        elmo_store.open(tmp_path / "file")


def test_half_way(written: Written) -> None:
    write_manifest(written.root, replace(written.manifest, complete=False))
    written.root.remove(layout.shard_marker(1))
    written.root.remove(layout.zarr_states_shard(1))
    with pytest.raises(StoreIncompleteError, match="not complete \\(3 of 4 shards are written\\)"):
        elmo_store.open(written.root.url())
    store = elmo_store.open(written.root.url(), incomplete_ok=True)
    assert store.read("x", slice(0, 16)).shape == (16, 1, 8)
    with pytest.raises(
        ShardMissingError, match=r"_shards/00001\.json is missing: shard 1 is not written yet"
    ):
        store.read("x", slice(0, 17))


def test_objects_without_a_marker_are_not_there(written: Written) -> None:
    write_manifest(written.root, replace(written.manifest, complete=False))
    written.root.remove(layout.shard_marker(1))
    for form in layout.FORMS:
        store = elmo_store.open(written.root.url(), incomplete_ok=True, form=form)
        with pytest.raises(ShardMissingError, match="shard 1 is not written yet"):
            store["fwd1"][20]
        np.testing.assert_array_equal(store["fwd1"][40], written.states[40, 1])


def test_an_unfinished_store_has_the_sentences_that_are_numbered(written: Written) -> None:
    write_manifest(written.root, replace(written.manifest, complete=False))
    written.root.remove(layout.SENTENCE_INDEX)
    store = elmo_store.open(written.root.url(), incomplete_ok=True)
    assert store.sentence(3).tokens == tuple(written.tokens[3])
    written.root.remove(layout.part_group_marker(0))
    with pytest.raises(ShardMissingError, match="sentence 3 is not written yet"):
        _ = elmo_store.open(written.root.url(), incomplete_ok=True).sentence(3).tokens


def test_still_reading_its_input(written: Written) -> None:
    write_manifest(written.root, replace(written.manifest, complete=False, counts=None))
    with pytest.raises(StoreIncompleteError, match="its input is being read"):
        elmo_store.open(written.root.url())
    store = elmo_store.open(written.root.url(), incomplete_ok=True)
    assert "still reading" in repr(store)
    with pytest.raises(StoreIncompleteError, match="isn't known yet"):
        len(store)


def test_a_newer_format_names_both_versions(written: Written) -> None:
    value = {**written.manifest.to_json(), "format_version": 2}
    written.root.put_json(layout.MANIFEST, value)
    with pytest.raises(
        StoreVersionError, match="format version 2, this elmo-store reads format version 1: upgrade"
    ) as found:
        elmo_store.open(written.root.url(), incomplete_ok=True)
    assert (found.value.found, found.value.known) == (2, 1)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"format_version": 1}'])
def test_a_manifest_that_is_not_one(written: Written, data: bytes) -> None:
    written.root.put(layout.MANIFEST, data)
    with pytest.raises(ManifestError, match=r"elmo_store\.json"):
        elmo_store.open(written.root.url())


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every member of the manifest but what is free in it: the model's options, the job, the files' other members."""
    found = []
    if isinstance(value, dict):
        for key, one in value.items():
            found += [
                (*path, key),
                *([] if key in ("options", "job", "software") else _paths(one, (*path, key))),
            ]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        found += _paths(value[0], (*path, 0))
    return found


def _mixed() -> Manifest:
    sets = (WeightSet("a", (0.5, 0.5), 1.0, (0.0, 0.0)), WeightSet("b", (1.0, 0.0), 2.0))
    return make_manifest(mix=MixInfo("s3://x/y", "3" * 64, False, sets), channels=16)


FREE: set[tuple[Any, ...]] = set()
WHOLE = {"states": make_manifest(), "mix": _mixed()}
CASES = [
    (kind, path) for kind in WHOLE for path in _paths(WHOLE[kind].to_json()) if path not in FREE
]


@pytest.mark.parametrize(
    ("kind", "path"), CASES, ids=[f"{k}-{'.'.join(map(str, p))}" for k, p in CASES]
)
def test_every_field_of_the_manifest_is_checked(kind: str, path: tuple[Any, ...]) -> None:
    value = WHOLE[kind].to_json()
    assert Manifest.parse(copy.deepcopy(value)).to_json() == value
    # `mix` belongs to mixed stores; a hash that is missing or wrong is a test of its own.
    not_of_this_kind = kind == "states" and path == ("mix",)

    def changed(to: Any) -> Any:
        other = copy.deepcopy(value)
        place = other
        for key in path[:-1]:
            place = place[key]
        if to is KeyError:
            del place[path[-1]]
        else:
            place[path[-1]] = to
        return signed(other) if path != ("sha256",) else other

    wrong: list[Any] = [
        KeyError,
        1.5 if path[-1] != "gamma" else "1.5",
        {"strange": [1]} if path[-1] != "options" else "none",
        [[]],
        -1 if path[-1] != "gamma" else [1],
    ]
    name = str(path[-1] if path[-1] != 0 else path[-2])
    for bad in wrong if not not_of_this_kind else []:
        with pytest.raises((ManifestError, StoreVersionError, StoreFeatureError), match=name):
            Manifest.parse(changed(bad), "the manifest")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "vectors"}, r"kind is 'vectors': .*states\|mix"),
        ({"states": ["x", "bwd2", "fwd1"]}, "states x, bwd2, fwd1 are not some of x, fwd1"),
        ({"states": ["x", "fwd0"]}, "'fwd0' is not a state"),
        ({"states": ["x", "x", "x"]}, "different names"),
        ({"forms": []}, r"forms is \[\]: Expected `array` of length >= 1"),
        ({"shard_rows": 0}, "shard_rows is 0"),
        ({"shard_rows": 1000}, "chunk_rows is 16, which does not divide shard_rows, 1000"),
        ({"checksums": None}, "checksums is null in a store that says it is complete"),
        ({"counts": None}, "counts is null in a store that says it is complete"),
        ({"channels": True}, "channels is True: Expected `int`, got `bool`"),
        ({"mix": None, "kind": "mix"}, "mix is None in a store of kind 'mix'"),
        ({"dtype": "int8"}, r"required_features must be \['int8-scale'\] where dtype is 'int8'"),
        (
            {"required_features": ["int8-scale"]},
            r"required_features must be \[\] where dtype is 'float16'",
        ),
    ],
)
def test_fields_that_no_store_can_have(changes: dict[str, Any], message: str) -> None:
    value = signed({**make_manifest().to_json(), **changes})
    with pytest.raises(ManifestError, match=message):
        Manifest.parse(value, "the manifest")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "needs dtype 'bfloat16'"),
        ({"compression": "lz4"}, "needs compression 'lz4'"),
        ({"checksum": "xxh3"}, "needs checksum 'xxh3'"),
        ({"forms": ["zarr", "lance"]}, "needs the form 'lance'"),
        ({"required_features": ["tiles"]}, "needs the feature 'tiles'"),
    ],
)
def test_what_a_later_version_may_write_asks_for_an_upgrade(
    changes: dict[str, Any], message: str
) -> None:
    value = signed({**make_manifest().to_json(), **changes})
    with pytest.raises(
        StoreFeatureError, match=f"{message}, which this elmo-store does not know: upgrade it"
    ) as found:
        Manifest.parse(value, "the manifest")
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_no_weight_set_of_an_int8_store_is_called_as_a_scale() -> None:
    sets = (WeightSet("a", (1.0, 0.0, 0.0), 1.0), WeightSet("a_scale", (0.0, 0.0, 1.0), 1.0))
    mixed = make_manifest(dtype="int8", mix=MixInfo("elsewhere", "3" * 64, False, sets))
    with pytest.raises(ManifestError, match="'a_scale' would be the name of a scale too"):
        Manifest.parse(mixed.to_json())
    assert Manifest.parse(replace(mixed, dtype="float16").to_json()).required_features == ()


def test_a_store_may_hold_some_of_the_states() -> None:
    manifest = replace(make_manifest(), states=("x", "bwd1", "fwd2"))
    assert Manifest.parse(manifest.to_json()).states == ("x", "bwd1", "fwd2")


def test_a_changed_manifest_is_found(written: Written) -> None:
    value = written.manifest.to_json()
    value["model"]["fingerprint"] = "sha256:" + "9" * 64
    written.root.put_json(layout.MANIFEST, value)
    with pytest.raises(
        ManifestError,
        match=r"sha256 is .*, the manifest's own hash is .*: it was changed or damaged",
    ):
        elmo_store.open(written.root.url())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": 5}, r"counts\.shards is 5; 49 rows in shards of 16 are 4"),
        ({"rows": 50}, r"counts\.(rows|shards) is"),
        ({"tokens": 47}, r"counts\.rows is 49; 47 tokens in 8 sentences without boundaries"),
        ({"rejected": 9}, r"counts\.rejected is 9 of 8"),
        ({"parts": -1}, r"counts\.parts is -1"),
    ],
)
def test_counts_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    value = make_manifest().to_json()
    value["counts"].update(changes)
    with pytest.raises(ManifestError, match=message):
        Manifest.parse(signed(value), "the manifest")


def test_a_manifest_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    root = Root(tmp_path)
    with pytest.raises(ManifestError, match="shard_rows"):
        write_manifest(root, replace(make_manifest(), shard_rows=1000))
    assert root.list() == []


def test_keys_of_a_later_writer_are_ignored(written: Written) -> None:
    written.root.put_json(layout.MANIFEST, signed({**written.manifest.to_json(), "colour": "blue"}))
    assert read_manifest(written.root) == written.manifest


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("zarr", layout.zarr_states_shard(2)),
        ("parquet", layout.states_part(2)),
    ],
)
def test_a_missing_shard(written: Written, form: str, name: str) -> None:
    written.root.remove(name)
    with pytest.raises(ShardMissingError, match=name):
        elmo_store.open(written.root.url(), form=form).read()


@pytest.mark.parametrize(
    ("form", "name"), [("zarr", layout.zarr_states_shard(0)), ("parquet", layout.states_part(0))]
)
@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_shard(written: Written, form: str, name: str, keep: int) -> None:
    written.root.put(name, written.root.get(name)[:keep])
    with pytest.raises(ShardCorruptError, match=name):
        elmo_store.open(written.root.url(), form=form).read()


def test_a_missing_and_a_cut_part_of_sentences(written: Written) -> None:
    name = layout.sentences_part(2)
    whole = written.root.get(name)
    written.root.put(name, whole[:-10])
    with pytest.raises(ShardCorruptError, match=name):
        _ = elmo_store.open(written.root.url()).sentence(7).tokens
    written.root.remove(name)
    store = elmo_store.open(written.root.url())
    assert store.sentence(0).tokens == tuple(written.tokens[0])
    with pytest.raises(ShardMissingError, match=name):
        _ = store.sentence(7).tokens
    with pytest.raises(ShardMissingError, match=name):
        store.verify().raise_faults("")


def test_parts_that_are_too_few(written: Written) -> None:
    value = written.manifest.to_json()
    value["counts"]["parts"] = 2
    written.root.put_json(layout.MANIFEST, signed(value))
    with pytest.raises(
        ShardCorruptError,
        match=r"parts\.parquet names 3 parts of 8 sentences and 49 rows, the manifest 2",
    ):
        _ = elmo_store.open(written.root.url()).sentence(7).tokens


def test_zarr_and_manifest_of_different_stores(written: Written, tmp_path: Path) -> None:
    other = make_store(str(tmp_path / "other"), dtype="float32")
    name = layout.zarr_states_shard(0)
    written.root.put(name, other.root.get(name))
    with pytest.raises(
        ShardCorruptError, match=rf"{name} is damaged .{name} has \d+ bytes, which can.t be"
    ):
        elmo_store.open(written.root.url()).read()


SHARD_OBJECTS = [layout.zarr_states_shard(1), layout.zarr_token_chunk(1), layout.states_part(1)]


@pytest.mark.parametrize("name", SHARD_OBJECTS)
def test_verify_finds_one_changed_byte(written: Written, name: str) -> None:
    data = bytearray(written.root.get(name))
    data[len(data) // 3] ^= 1
    written.root.put(name, bytes(data))
    with pytest.raises(ShardCorruptError, match=f"{name} has CRC-32C .* its marker says"):
        elmo_store.open(written.root.url()).verify().raise_faults("")


def test_verify_finds_what_is_cut_and_what_is_gone(written: Written) -> None:
    name = SHARD_OBJECTS[0]
    written.root.put(name, written.root.get(name)[:-1])
    with pytest.raises(ShardCorruptError, match=rf"{name} has \d+ bytes, its marker says"):
        elmo_store.open(written.root.url()).verify().raise_faults("")
    written.root.remove(name)
    with pytest.raises(ShardMissingError, match=f"{name} is missing"):
        elmo_store.open(written.root.url()).verify().raise_faults("")
    written.root.remove(layout.shard_marker(3))
    with pytest.raises(ShardMissingError, match=f"{layout.shard_marker(3)} is missing"):
        elmo_store.open(written.root.url()).verify().raise_faults("")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (layout.START_STATE, None, "start_state.safetensors is missing"),
        (layout.START_STATE, b"junk", "start_state.safetensors has 4 bytes"),
        (layout.rejects_part(2), None, r"rejects/part-00002.jsonl is missing"),
        (layout.rejects_part(2), b"{}\n", "rejects/part-00002.jsonl has 3 bytes"),
        (f"{layout.ZARR}/sentence_start/c/0", None, "sentence_start/c/0 is missing"),
        (f"{layout.ZARR}/sentence_start/c/0", b"junk", "sentence_start/c/0 has 4 bytes"),
        (f"{layout.ZARR}/states/zarr.json", None, "states/zarr.json is missing"),
        (layout.id_table(0), None, "ids/00000.parquet is missing"),
        (layout.INPUTS, b"junk", "inputs.parquet has 4 bytes"),
        (
            layout.sentences_part(7),
            b"junk",
            r"part-00007.parquet is among the store's objects, and no marker names it",
        ),
    ],
)
def test_verify_looks_at_everything_else_too(
    written: Written, name: str, data: bytes | None, message: str
) -> None:
    if data is None:
        written.root.remove(name)
    else:
        written.root.put(name, data)
    with pytest.raises((ShardCorruptError, ShardMissingError), match=message):
        elmo_store.open(written.root.url()).verify().raise_faults("")


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"shard": 1}', b'{"shard": true}', b"\xff"])
def test_a_damaged_marker(written: Written, data: bytes) -> None:
    written.root.put(layout.shard_marker(1), data)
    with pytest.raises(ShardCorruptError, match=r"_shards/00001\.json"):
        read_marker(written.root, ShardMarker, 1)


def test_a_marker_under_anothers_name(written: Written) -> None:
    written.root.put(layout.shard_marker(1), written.root.get(layout.shard_marker(2)))
    with pytest.raises(ShardCorruptError, match=r"is a copy of _shards/00002\.json"):
        read_marker(written.root, ShardMarker, 1)
    assert json.loads(written.root.get(layout.shard_marker(2)))["shard"] == 2


def test_another_job_is_shown_field_by_field() -> None:
    error = JobMismatchError("s3://x", {"precision": ("float32", "tf32"), "lanes": (None, 64)})
    assert (
        "lanes: not set there, 64 asked for\n  precision: 'float32' there, 'tf32' asked for"
        in str(error)
    )
    assert isinstance(error, StoreError)
    assert pickle.loads(pickle.dumps(error)).fields == error.fields


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", "", "a\0"]
)
def test_no_path_leaves_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not a path inside the store"):
        Root(tmp_path).put(name, b"x")


def test_the_whole_filesystem_is_never_removed() -> None:
    with pytest.raises(StoreError, match="refusing"):
        Root("/").remove_tree()


def test_a_flipped_bit_of_a_table_is_an_error_of_ours_whatever_pyarrow_makes_of_it(
    written: Written,
) -> None:
    """Integers of 65 bits, for one: a flipped bit of a footer has many faces."""
    root = written.root
    whole = root.get(layout.SENTENCE_INDEX)
    causes = set()

    class Flipped(Root):
        flipped = b""

        def get(self, rel: str, most_bytes: int | None = None) -> bytes:
            return self.flipped

    damaged = Flipped(str(written.root))
    for bit in range(0, 8 * len(whole), 11):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        damaged.flipped = bytes(data)
        try:
            read_table(damaged, layout.SENTENCE_INDEX, layout.INDEX_SCHEMA)
        except StoreError as error:
            causes.add(type(error.__cause__).__name__)
    assert {"ArrowInvalid", "ArrowNotImplementedError", "OSError"} <= causes
