"""Versions of collections as somebody might write them who means harm."""

import json
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store import collecting, errors
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.markers import sealed
from tests.store.test_collection import check_same
from tests.store.test_collection import stores as stores


def rewrite(name: Path, number: int, **changes: Any) -> None:
    """A version like the first, with other contents, as somebody who reads the format's page would write it."""
    value = json.loads((name / layout.version(1)).read_text(encoding="utf-8")) | changes
    (name / layout.version(number)).write_bytes(
        sealed({name: one for name, one in value.items() if name != "sha256"})
    )


def with_first_member(folder: Path, **changes: Any) -> list[Any]:
    value = json.loads((folder / layout.version(1)).read_text(encoding="utf-8"))
    return [value["members"][0] | changes, *value["members"][1:]]


def test_a_version_that_can_t_be_is_refused_and_the_one_before_is_read(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    name = tmp_path / "all"
    collecting.collect(name, stores[:2])
    first = json.loads((name / layout.version(1)).read_text(encoding="utf-8"))
    member = first["members"][0]
    inside = {name: first["store"][name] for name in versions.Inside.__struct_fields__} | {
        "shard_rows": 40
    }
    run = {"first_sentence": 6, "n_sentences": 2, "first_row": 32, "n_rows": 99}
    for changes, said in (
        (
            {"members": with_first_member(name, name="../../store-0")},
            r"matching regex .* at `\$.members\[0\].name`",
        ),
        ({"members": with_first_member(name, name=first["members"][1]["name"])}, "different names"),
        ({"members": []}, "one or more"),
        (
            {"members": with_first_member(name, counts=member["counts"] | {"sentences": 9})},
            "members hold",
        ),
        (
            {"members": with_first_member(name, counts=member["counts"] | {"rows": 99})},
            "members hold",
        ),
        ({"members": with_first_member(name, removed=[run])}, "members hold"),
        (
            {"members": with_first_member(name, inside=inside)},
            "chunk_rows is 16, which does not divide",
        ),
        ({"store": first["store"] | {"dtype": "float32"}}, "sha256"),
        ({"store": 3}, "store"),
        ({"version": 7}, "says that it is version 7"),
        ({"change": "sell"}, "change"),
    ):
        rewrite(name, 2, **({"version": 2} | changes))
        with pytest.raises(errors.ManifestError, match=said):
            elmo_store.open(name)
    rewrite(name, 2, **(first | {"version": 2, "format_version": 9}))
    with pytest.raises(errors.StoreVersionError):
        elmo_store.open(name)
    damaged = (name / layout.version(1)).read_bytes().replace(b'"change"', b'"chance"')
    (name / layout.version(2)).write_bytes(damaged)
    with pytest.raises(errors.ManifestError, match="sha256"):
        elmo_store.open(name)
    check_same(elmo_store.open(name, version=1), elmo_store.concat(stores[:2]))
