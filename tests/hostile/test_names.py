"""Names that a file gives, wherever one could become a path, a column, or an entry of something: none leads outside."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import elmo_store
from elmo_store.errors import ManifestError, StoreError
from elmo_store.format.manifest import MixInfo, WeightSet
from tests.hostile.test_stores import sign
from tests.store.support import Written, make_store


def mixed(path: Path, *names: str, **settings: Any) -> Written:
    sets = tuple(WeightSet(name, (0.5, 0.25, 0.25), 1.0) for name in names)
    return make_store(str(path), mix=MixInfo("elsewhere", "0" * 64, False, sets), **settings)


def renamed(written: Written, name: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["states"][0] = manifest["mix"]["weight_sets"][0]["name"] = name

    sign(written.root, change)


@pytest.mark.parametrize(
    "name",
    [
        "../../outside",
        "/outside",
        "..",
        ".",
        ".hidden",
        "a/b",
        "a\\b",
        "a\0b",
        "row",
        "a b",
        "\u202ea",
        "a" * 201,
    ],
)
def test_a_mixed_store_s_names_are_checked_when_its_manifest_is_read(
    tmp_path: Path, name: str
) -> None:
    written = mixed(tmp_path / "mix", "ner", "pos")
    renamed(written, name)
    with pytest.raises(ManifestError, match=r"elmo_store\.json: states"):
        elmo_store.open(written.root.url())


@pytest.mark.parametrize(
    ("field", "value"),
    [("sentence_chunk", 2**40), ("shard_rows", 2**62), ("chunk_rows", 2**62)],
)
def test_sizes_that_would_take_any_amount_of_memory(tmp_path: Path, field: str, value: int) -> None:
    written = make_store(str(tmp_path / "s"), lengths=(), parts=())

    def change(manifest: dict[str, Any]) -> None:
        manifest[field] = value
        manifest["shard_rows"] = max(manifest["shard_rows"], manifest["chunk_rows"])

    sign(written.root, change)
    with pytest.raises(ManifestError, match=field):
        elmo_store.open(written.root.url())


def export(written: Written, output: Path, format: str) -> None:
    from elmo_store.exports.job import export as run

    run(elmo_store.open(written.root.url()), output, format)


@pytest.mark.parametrize("name", ["id", "tokens"])
def test_a_weight_set_called_as_a_column_of_a_dataset(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="another column"):
        export(mixed(tmp_path / "mix", name), tmp_path / "out", "datasets")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("format", "ids"),
    [
        ("e2e-coref", [".:0"]),
        ("lsgn", [".:0"]),
        ("dygie", ["a:0", "a_0/b:0"]),
        ("dygie", ["a:0", "./a:0"]),
    ],
)
def test_ids_that_are_no_names_in_hdf5(
    tmp_path: Path, format: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from elmo_store.reading.sentences import SentenceTable

    written = make_store(str(tmp_path / "s"), lengths=(3,) * len(ids), parts=(len(ids),))
    real = SentenceTable._record

    def record(self: SentenceTable, number: int, own: Any) -> Any:
        return msgspec.structs.replace(real(self, number, own), id=ids[number])

    monkeypatch.setattr(SentenceTable, "_record", record)
    with pytest.raises(StoreError, match="can't name a dataset in HDF5"):
        export(written, tmp_path / "out.hdf5", format)
    assert not (tmp_path / "out.hdf5").exists()
