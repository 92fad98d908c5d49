"""The documentation's own code: every Python block runs as written, links lead somewhere, every command has its section."""

import json
import re
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS, main
from tests.pipeline.conftest import TINY
from tests.store.support import token


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: text in `corpus`, and `out/sample`, some 2,000 rows of a tiny model."""
    from model.files.registry import random_weights

    folder = tmp_path_factory.mktemp("docs")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text("I sat on the bank of the river.\n", encoding="utf-8")
    random_weights(TINY).save_safetensors(folder / "tiny.safetensors")
    lines = [json.dumps({"id": f"doc-{i}", "text": [token(i + j) for j in range(20)]}) for i in range(110)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = ["--model", str(folder / "tiny.safetensors"), "--output", str(folder / "out/sample"), "--id-field", "id"]
    assert main(["embed", str(folder / "in.jsonl"), *arguments, "--store", "both", "--quiet", "--shard-rows", "512"]) == 0
    return folder


@pytest.mark.parametrize("page", ["README.md", "docs/usage.md"])
def test_python_blocks_run(page: str, repo_dir: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample)
    blocks = python_blocks(repo_dir / page)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # what a reader would paste


def test_links_lead_somewhere(repo_dir: Path) -> None:
    pages = [repo_dir / "README.md", *(repo_dir / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_on_the_usage_page(repo_dir: Path) -> None:
    usage = (repo_dir / "docs" / "usage.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"^## .*\b{command}\b", usage, re.MULTILINE), f"docs/usage.md has no heading for {command}"
