"""docs/worked: every block of every page runs, in order, as its reader would run it: Python in one session, bash by bash.

Each page runs in a process of its own: Spark and Feast have much of their own to set up, and a page is all that its reader has.
Feast's needs an environment of its own (it wants an older pandas): ELMO_STORE_FEAST names its Python.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from tests.test_docs import errors_of
from tests.test_docs import sample as sample

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {
    "datasets": ("datasets",),
    "xarray-dask": ("xarray", "dask"),
    "spark": ("pyspark",),
    "pandas": ("pandas",),
    "duckdb": ("duckdb",),
    "polars": ("polars",),
    "faiss": ("faiss", "duckdb"),
}
PAGES = ("pytorch", "datasets", "xarray-dask", "pandas", "duckdb", "polars", "faiss", "spark", "feast")
SECONDS = 280


def blocks(path: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def run(arguments: list[str], folder: Path) -> str:
    return errors_of(
        arguments, folder, SECONDS, PYTHONWARNINGS="ignore", FEAST_USAGE="False", HF_DATASETS_DISABLE_PROGRESS_BARS="1"
    )


@pytest.fixture(scope="module")
def stores(sample: Path, repo_dir: Path) -> Path:
    """The folder of the pages: what docs/worked/README.md makes stands there."""
    made = blocks(repo_dir / "docs/worked/README.md")
    assert [language for language, _ in made] == ["bash"]
    run(["bash", "-ec", made[0][1]], sample)
    return sample


def python_of(page: str) -> str:
    """The Python that runs a page; skips the test where what it needs is not installed."""
    if page == "feast":
        found = os.environ.get("ELMO_STORE_FEAST")
        if not found:
            pytest.skip("ELMO_STORE_FEAST names no Python with feast in it (.ci/run makes one)")
        return found
    missing = [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install '.[test,pages]'")
    return sys.executable


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, stores: Path, repo_dir: Path) -> None:
    python = python_of(page)
    written = blocks(repo_dir / f"docs/worked/{page}.md")
    assert any(language == "python" for language, _ in written)
    for language, block in written:
        if language == "bash":
            run(["bash", "-ec", block], stores)
    script = stores / f"page_{page.replace('-', '_')}.py"
    speaks = page in ("spark", "feast")  # of themselves, and Feast's environment has no torch
    script.write_text(
        "\n".join(["" if speaks else "import torch", *(block for language, block in written if language == "python")]),
        encoding="utf-8",
    )
    errors = run([python, str(script)], stores)
    assert speaks or errors == ""


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_something(
    stores: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel of this environment; what it shows are tables and pictures that hold their data, nothing of a network."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed: pip install '.[test]'")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[test]'")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    notebook = nbformat.read(repo_dir / "docs/worked/notebook.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # kept without: the test has them made
    client.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(stores)}}).execute()
    shown = [cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code"]
    assert all("text/html" in data or "image/svg+xml" in data or "text/plain" in data for data in shown)
    pictures = [cell.outputs[-1].data for cell in notebook.cells if "store.plot." in cell.source and cell.cell_type == "code"]
    assert len(pictures) == 3
    assert all("<svg" in str(data) for data in pictures)
    assert "2,200 tokens" in str(shown[0])


def test_all_pages_are_run_and_listed(repo_dir: Path) -> None:
    folder = repo_dir / "docs/worked"
    assert {path.stem for path in folder.glob("*.md")} == {*PAGES, "README"}
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in listed for page in PAGES)
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (folder / target).exists(), f"{page.name} links to {target}"
