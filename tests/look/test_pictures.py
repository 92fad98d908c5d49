"""The README's picture is of the model that ships: its data, kept beside it, is what is drawn of the sample today."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from pipeline.main import main

pytest.importorskip(
    "sklearn", reason="the explorer's packages are not installed: pip install '.[explore]'"
)
from pipeline.explore.service import ExplorerService
from tests.look.pictures import explore_data

REMEDY = "draw the pictures again: python -m tests.look.pictures"


def kept(repo_dir: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        (repo_dir / "docs" / f"{name}.json").read_text(encoding="utf-8")
    )
    assert (repo_dir / "docs" / f"{name}.png").is_file()
    return data


def close(cell: str, other: str) -> bool:
    """Whether two cells are one, as far as processors agree."""
    number = r"-?[\d,]*\.?\d+%?"
    if not (re.fullmatch(number, cell) and re.fullmatch(number, other)):
        return cell == other
    a, b = (
        float(text.rstrip("%").replace(",", "")) / (100 if text.endswith("%") else 1)
        for text in (cell, other)
    )
    return a == pytest.approx(b, rel=0.02, abs=0.02)


def test_the_picture_is_of_the_packaged_model(named_store: Path, repo_dir: Path) -> None:
    store = elmo_store.open(named_store)
    assert kept(repo_dir, "explore")["model"] == store.manifest.model.fingerprint, REMEDY


@pytest.mark.slow
def test_the_picture_s_numbers_are_those_of_the_sample(tmp_path: Path, repo_dir: Path) -> None:
    assert (
        main(
            [
                "embed",
                str(repo_dir / "examples/sample"),
                "--output",
                str(tmp_path / "sample"),
                "--quiet",
            ]
        )
        == 0
    )
    store = elmo_store.open(tmp_path / "sample")
    service = ExplorerService(store)
    service.wait()
    near, before = explore_data(service, store), kept(repo_dir, "explore")
    assert near.keys() == before.keys()
    for layer in near.keys() - {"model"}:
        assert all(
            close(a, b) for (a, _), (b, _) in zip(near[layer], before[layer], strict=True)
        ), f"{layer}: {REMEDY}"
        same = {word for _, word in near[layer]} & {word for _, word in before[layer]}
        assert len(same) >= len({word for _, word in before[layer]}) / 2, f"{layer}: {REMEDY}"
