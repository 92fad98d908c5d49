"""docs/security.md: every line on hostile input names tests that are there; every test of hostile text has a line."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent


def rows(page: str, heading: str = "Hostile input") -> list[str]:
    """The items of the list below ``heading``."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("- ")]


def functions_of(name: str) -> set[str]:
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_row_has_a_test_that_is_there(repo_dir: Path) -> None:
    found = rows((repo_dir / "docs" / "security.md").read_text(encoding="utf-8"))
    assert len(found) > 35
    for row in found:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert test in functions_of(file), f"{row}: {file} has no {test}"


def test_every_row_of_exports_has_tests_that_are_there(repo_dir: Path) -> None:
    found = rows((repo_dir / "docs" / "security.md").read_text(encoding="utf-8"), "An export's output")
    named = [re.findall(r"`(test_\w+)`", row) for row in found]
    assert len(named) == 5
    assert all(named)
    assert {test for row in named for test in row} <= functions_of("../exports/test_place.py")


def test_every_test_of_text_has_a_row(repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "security.md").read_text(encoding="utf-8")
    assert sorted(test for test in functions_of("test_text.py") if f"test_text.py::{test}`" not in page) == []
