"""The JSON Schemas of manifests and markers, made from the types that read them: ``python -m tests.store.json_schemas``
writes those that come with the package anew.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from elmo_store.format import layout
from elmo_store.format.fields import PLAIN
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import IdsMarker, PartGroupMarker, ShardMarker
from elmo_store.format.typed import Name, Sha256

FOLDER = Path(layout.__file__).with_name("schemas")
_REST = "docs/store-format.md says what each member means. Members that are not named here may be there."


def manifest_schema() -> dict[str, Any]:
    """Of elmo_store.json."""
    schema = _definitions(Manifest)
    own = schema["Manifest"]
    features = msgspec.json.schema(tuple[Name, ...]) | {"uniqueItems": True}
    own["properties"] |= {"required_features": features, "sha256": msgspec.json.schema(Sha256)}
    own["required"] = [name for name in own["properties"] if name != "fields"]
    kind = {"$ref": "#/$defs/FieldType"}
    schema["KeptField"]["properties"]["type"] = kind
    a_list = {"type": "array", "items": kind, "minItems": 1, "maxItems": 1}
    schema["FieldType"] = {
        "anyOf": [
            {"enum": list(PLAIN)},
            a_list,
            {"type": "object", "additionalProperties": kind, "minProperties": 1},
        ]
    }

    def when(member: str, value: Any, then: dict[str, Any]) -> dict[str, Any]:
        return {
            "if": {"properties": {member: {"const": value}}, "required": [member]},
            "then": {"properties": then},
        }

    def feature(name: str, member: str, value: str) -> dict[str, Any]:
        named = {"contains": {"const": name}}
        return when(member, value, {"required_features": named}) | {
            "else": {"properties": {"required_features": {"not": named}}}
        }

    own["allOf"] = [
        when("complete", True, {"counts": {"type": "object"}, "checksums": {"type": "object"}}),
        when("kind", "mix", {"mix": {"type": "object"}}),
        when("kind", "states", {"mix": {"type": "null"}}),
        feature(layout.INT8, "dtype", "int8"),
    ]
    return _document(
        "manifest", "elmo_store.json, format version 1", {"$ref": "#/$defs/Manifest"}, schema
    )


def markers_schema() -> dict[str, Any]:
    """Of _shards/*.json, _parts/*.json and _ids/*.json."""
    kinds = (ShardMarker, PartGroupMarker, IdsMarker)
    schema = _definitions(*kinds)
    for kind in kinds:
        own = schema[kind.__name__]
        own["properties"]["sha256"] = msgspec.json.schema(Sha256)
        own["required"] = list(own["properties"])
    names = ", ".join(
        f"{folder}/*.json" for folder in (layout.SHARDS, layout.PART_GROUPS, layout.IDS)
    )
    any_of = {"oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]}
    return _document("markers", f"{names}, format version 1", any_of, schema)


def encoded(schema: dict[str, Any]) -> str:
    """A schema as it stands in its file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _definitions(*kinds: type) -> dict[str, Any]:
    """The schemas of dataclasses, by name; every member is required, also one that has a default here."""
    _, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for schema in definitions.values():
        schema["required"] = list(schema["properties"])
        schema.pop("description", None)  # for Python's reader
        for member in schema["properties"].values():
            member.pop("default", None)
    return definitions


def _document(
    name: str, title: str, whole: dict[str, Any], definitions: dict[str, Any]
) -> dict[str, Any]:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:elmo-store:{name}:1",
        "title": title,
    }
    return {**head, "description": _REST, **whole, "$defs": definitions}


if __name__ == "__main__":
    for stem, document in (("manifest", manifest_schema()), ("markers", markers_schema())):
        (FOLDER / f"{stem}.schema.json").write_text(encoded(document), encoding="utf-8")
