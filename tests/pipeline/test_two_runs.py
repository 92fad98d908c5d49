"""Two runs that nothing disturbs leave the same files with the same bytes, but in the places that docs/store-format.md names."""

import json
from pathlib import Path
from typing import Any

import pytest

from elmo_store.format.layout import IDS, PART_GROUPS, SHARDS
from pipeline.main import main
from tests.pipeline.conftest import Command

OF_A_RUN = ("stats", "sha256")  # members of markers


def compared(store: Path) -> dict[str, Any]:
    """What every file of a store says, by name; of markers without what is of their run."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        data, rel = path.read_bytes(), path.relative_to(store)
        if rel.parts[0] in (SHARDS, PART_GROUPS, IDS):
            found[str(rel)] = {
                name: value for name, value in json.loads(data).items() if name not in OF_A_RUN
            }
        else:
            found[str(rel)] = data
    return found


@pytest.mark.slow
def test_two_runs_differ_where_the_page_says(embed: Command, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text('{"gamma": 1.0, "w": [0.0, 1.0, 0.0]}')
    stores: list[list[dict[str, Any]]] = []
    for options in ((), ("--direct_running_mode=multi_processing", "--direct_num_workers=2")):
        source, others = tmp_path / "source", [tmp_path / "mixed", tmp_path / "converted"]
        if source.exists():
            source.rename(tmp_path / "source-before")
        assert embed(source, "--store", "both", "--boundaries", *options) == 0
        assert (
            main(
                [
                    "mix",
                    str(source),
                    "--output",
                    str(others[0]),
                    "--weights",
                    str(weights),
                    "--quiet",
                    *options,
                ]
            )
            == 0
        )
        assert (
            main(
                [
                    "convert",
                    str(source),
                    "--output",
                    str(others[1]),
                    "--dtype",
                    "int8",
                    "--quiet",
                    *options,
                ]
            )
            == 0
        )
        stores.append([compared(store) for store in (source, *others)])
        for store in others:
            store.rename(store.with_name(f"{store.name}-{len(stores)}"))
    for before, after in zip(*stores, strict=True):
        assert before.keys() == after.keys()
        assert [name for name in before if before[name] != after[name]] == []
