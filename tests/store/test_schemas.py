"""The JSON Schemas that come with the package say what the package says of manifests and markers."""

import copy
import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from elmo_store.errors import ManifestError, StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, MixInfo, WeightSet, own_sha256
from elmo_store.format.markers import PartGroupMarker, ShardMarker, read_marker, sealed
from elmo_store.storage.root import Root
from tests.store import json_schemas
from tests.store.support import make_manifest, make_store

MIX = MixInfo(
    "s3://x/y",
    "3" * 64,
    False,
    (WeightSet("a", (0.5, 0.5), 1.0, (0.0, 0.0)), WeightSet("b", (1.0, 0.0), 2.0)),
)


def schema(name: str) -> Any:
    return json.loads(
        files("elmo_store.format")
        .joinpath(f"schemas/{name}.schema.json")
        .read_text(encoding="utf-8")
    )


def test_the_files_are_made_from_the_types() -> None:
    assert schema("manifest") == json_schemas.manifest_schema()
    assert schema("markers") == json_schemas.markers_schema()


@cache
def validator(name: str) -> Any:
    kind = jsonschema.validators.validator_for(schema(name))
    kind.check_schema(schema(name))
    return kind(schema(name))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "int8"},
        {"mix": MIX, "channels": 16},
        {"complete": False, "counts": None, "checksums": None},
    ],
)
def test_manifests_are_valid(settings: dict[str, Any]) -> None:
    assert list(validator("manifest").iter_errors(make_manifest(**settings).to_json())) == []


def test_every_object_of_a_store_that_is_json_is_valid(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    validator("manifest").validate(written.root.get_json("elmo_store.json"))
    names = [
        name for name in written.root.list() if name.startswith(("_shards/", "_parts/", "_ids/"))
    ]
    assert len(names) == written.manifest.sizes.shards + 2
    for name in names:
        validator("markers").validate(written.root.get_json(name))


MEMBERS = sorted(make_manifest().to_json())


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(
    "bad", [None, [], "strange", -1, {"a": []}], ids=["gone", "list", "text", "number", "object"]
)
def test_what_the_schema_refuses_the_package_refuses(name: str, bad: Any) -> None:
    value = copy.deepcopy(make_manifest().to_json())
    if bad is None:
        del value[name]
    else:
        value[name] = bad
    if name != "sha256" and "sha256" in value:
        value["sha256"] = own_sha256(value)
    if list(validator("manifest").iter_errors(value)):
        with pytest.raises((ManifestError, StoreError)):
            Manifest.parse(value)
    else:
        assert Manifest.parse(value).to_json()[name] == bad


@pytest.mark.parametrize(
    "change",
    [
        {"shard": "1"},
        {"objects": [{}]},
        {"first_row": -1},
        {"n_rows": None},
        {"stats": []},
        {"plan": 1},
    ],
)
def test_markers_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    root = Root(tmp_path)
    value = {**json.loads(sealed(asdict(ShardMarker(0, 0, 1, ())))), **change}
    assert list(validator("markers").iter_errors(value))
    root.put(
        layout.shard_marker(0),
        sealed({name: member for name, member in value.items() if name != "sha256"}),
    )
    with pytest.raises(StoreError, match=rf"00000\.json is not a marker \({next(iter(change))}"):
        read_marker(root, ShardMarker, 0)
    sound = json.loads(sealed(asdict(PartGroupMarker(0, (), ()))))
    assert not list(validator("markers").iter_errors(sound))
    del sound["sha256"]
    assert list(validator("markers").iter_errors(sound))
