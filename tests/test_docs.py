"""The documentation's own code: every Python block runs as a script, links lead somewhere, every command has its section."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.main import COMMANDS, main
from tests.pipeline.conftest import TINY
from tests.store.support import token

REPO = Path(__file__).resolve().parent.parent


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


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in (REPO / "README.md", *sorted((REPO / "docs").glob("*.md")))
    for i, block in enumerate(python_blocks(page))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_each_python_block_is_a_script_and_ends_without_a_word(block: str, sample: Path, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(f"import torch  # which keeps objects until modules are gone\n{block}", encoding="utf-8")
    assert errors_of([sys.executable, str(script)], sample) == ""


def errors_of(command: list[str], folder: Path, seconds: float = 240, **environment: str) -> str:
    """What a command that succeeds writes to its standard error."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = os.environ | {"PATH": path, "PYTHONPATH": str(REPO)} | environment
    found = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=seconds, check=False)
    assert found.returncode == 0, f"{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
    return found.stderr


def test_links_lead_somewhere(repo_dir: Path) -> None:
    pages = [repo_dir / "README.md", *(repo_dir / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_on_the_usage_page(repo_dir: Path) -> None:
    usage = (repo_dir / "docs" / "usage.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"^## .*\b{command}\b", usage, re.MULTILINE), f"docs/usage.md has no heading for {command}"
