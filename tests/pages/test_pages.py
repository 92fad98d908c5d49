"""docs/worked and docs/howto: every block of every page runs, in order, as its reader would run it, in one Python session.

Each page runs in a process of its own, each how-to page in an empty folder: a page is all that its reader has.
Feast's needs an environment of its own (it wants an older pandas): ELMO_STORE_FEAST names its Python.
"""

import importlib.util
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model.files.registry import random_weights
from model.options import BiLMOptions
from tests.clusters.artefacts import missing_tools
from tests.clusters.engine import cluster_of
from tests.clusters.flink import FlinkCluster
from tests.model.test_options import PUBLISHED
from tests.s3_server import server
from tests.test_docs import errors_of
from tests.test_docs import sample as sample

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {
    "datasets": ("datasets",),
    "xarray-dask": ("xarray", "dask"),
    "spark": ("pyspark",),
    "pandas": ("pandas",),
    "duckdb": ("duckdb",),
    "polars": ("polars",),
    "faiss": ("faiss", "duckdb"),
}
WORKED = ("datasets", "xarray-dask", "pandas", "duckdb", "polars", "faiss", "spark", "feast")
ON_S3 = "csv-on-s3"
HOWTO = ("one-document", "train-a-mix", "daily-update", "published-weights", "resume", "sizing")
FLINK = "--runner=FlinkRunner --flink_master=localhost:8081"
SECONDS = 280


def run(command: list[str], folder: Path) -> str:
    return errors_of(
        command,
        folder,
        SECONDS,
        PYTHONWARNINGS="ignore",
        FEAST_USAGE="False",
        HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    )


def script_of(page: str) -> str:
    """The page as one Python program: its bash blocks run where they stand."""
    program = ["import subprocess as _subprocess"]
    for language, block in BLOCK.findall(page):
        bash = f"_subprocess.run(['bash', '-ec', {block!r}], check=True, stderr=_subprocess.STDOUT)"
        program.append(block if language == "python" else bash)
    return "\n".join(program)


def run_page(page: str, folder: Path, python: str = sys.executable, *, torch: bool = True) -> str:
    """What the page's program writes to standard error. With ``torch`` that is imported first."""
    script = folder / "page.py"
    script.write_text(("import torch\n" if torch else "") + script_of(page), encoding="utf-8")
    return run([python, str(script)], folder)


@pytest.fixture(scope="module")
def stores(sample: Path, repo_dir: Path) -> Path:
    """The folder of the worked pages: what docs/worked/README.md makes stands there."""
    run_page((repo_dir / "docs/worked/README.md").read_text(encoding="utf-8"), sample)
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
        pytest.skip(f"{', '.join(missing)} is not installed: pip install '.[test-all,pages]'")
    return sys.executable


@pytest.mark.slow
@pytest.mark.parametrize("page", WORKED)
def test_every_block_runs(page: str, stores: Path, repo_dir: Path) -> None:
    speaks = page in ("spark", "feast")  # of themselves, and Feast's environment has no torch
    written = (repo_dir / f"docs/worked/{page}.md").read_text(encoding="utf-8")
    errors = run_page(written, stores, python_of(page), torch=not speaks)
    assert speaks or errors == ""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", HOWTO)
def test_a_howto_page_runs_in_an_empty_folder(page: str, tmp_path: Path, repo_dir: Path) -> None:
    if page == "published-weights":  # which can't be downloaded here: others of their shapes
        random_weights(BiLMOptions.from_dict(PUBLISHED)).save_hdf5(tmp_path / "elmo")
    assert (
        run_page((repo_dir / f"docs/howto/{page}.md").read_text(encoding="utf-8"), tmp_path) == ""
    )


@contextmanager
def bucket() -> Iterator[None]:
    """``s3://my-bucket`` of a server of its own."""
    with server():
        make = urllib.request.Request(f"{os.environ['AWS_ENDPOINT_URL']}/my-bucket", method="PUT")
        urllib.request.urlopen(make, timeout=30).close()
        yield


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "")
def test_the_howto_page_of_s3_runs_on_a_flink_cluster(
    tmp_path: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repo_dir / f"docs/howto/{ON_S3}.md").read_text(encoding="utf-8")
    assert FLINK in page
    monkeypatch.setenv("S3_KEY", "test")
    monkeypatch.setenv("S3_SECRET", "test")
    with bucket(), cluster_of(FlinkCluster, tmp_path / "flink", 1) as flink:
        (tmp_path / "page").mkdir()
        assert (
            run_page(page.replace(FLINK, " ".join(flink.beam_options())), tmp_path / "page") == ""
        )


@pytest.mark.slow
def test_the_howto_page_of_s3_submits_a_job_to_dataflow(
    tmp_path: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own command, but for the output's place: the stand-in for Google's services keeps requests, it is no storage."""
    pytest.importorskip(
        "google.cloud.dataflow",
        reason="the Dataflow client is not installed: pip install '.[dataflow]'",
    )
    from tests.deploy.cloud import cloud_server

    page = (repo_dir / f"docs/howto/{ON_S3}.md").read_text(encoding="utf-8")
    (command,) = [block for _, block in FENCED.findall(page) if "DataflowRunner" in block]
    assert "--output gs://my-bucket/store" in command
    monkeypatch.setenv("S3_KEY", "test")
    monkeypatch.setenv("S3_SECRET", "not-in-the-request")
    (tmp_path / "home").mkdir()
    with bucket(), cloud_server() as cloud:
        run(["bash", "-ec", BLOCK.findall(page)[0][1]], tmp_path)
        local = command.replace("gs://my-bucket/store", f"{tmp_path}/store --shared-disk").rstrip()
        for name, value in cloud.environment(str(tmp_path / "home")).items():
            monkeypatch.setenv(name, value)
        run(["bash", "-ec", f"{local} --no_auth --dataflow_endpoint={cloud.endpoint}"], tmp_path)
    assert len(cloud.jobs) == 1
    assert not any(
        b"not-in-the-request" in sent
        for sent in [str(cloud.jobs).encode(), *cloud.objects.values()]
    )


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_something(
    stores: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel of this environment; what it shows is text and tables."""
    nbformat = pytest.importorskip(
        "nbformat", reason="nbclient is not installed: pip install '.[test-all]'"
    )
    client = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: pip install '.[test-all]'"
    )
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    notebook = nbformat.read(repo_dir / "docs/worked/notebook.ipynb", as_version=4)
    assert all(
        not cell.outputs for cell in notebook.cells if cell.cell_type == "code"
    )  # kept without: the test has them made
    client.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(stores)}}
    ).execute()
    shown = [cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code"]
    assert all("text/html" in data or "text/plain" in data for data in shown)
    assert "2,200 rows" in str(shown[0])


def test_all_pages_are_run_and_listed(repo_dir: Path) -> None:
    docs = repo_dir / "docs"
    assert {path.stem for path in (docs / "worked").glob("*.md")} == {*WORKED, "README"}
    assert {path.stem for path in (docs / "howto").glob("*.md")} == {*HOWTO, ON_S3}
    listed = (docs / "worked/README.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in listed for page in WORKED)
    readme = (repo_dir / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/howto/{page}.md)" in readme for page in (*HOWTO, ON_S3))
