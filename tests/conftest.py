"""Fixtures that every test folder shares."""

import multiprocessing.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.azure_server import azure as azure
from tests.data import data_folder
from tests.gcs_server import gcs as gcs
from tests.s3_server import s3_url as s3_url  # one server a session, for every folder's tests

# Examples of property tests, see tests/examples.py. `quick` draws a fifth of what they ask for, the same ones every time, so that
# a commit passes or fails; `thorough` draws all; `search` draws ten times as many, new ones every time, and finds defects.
settings.register_profile("quick", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("quick")


def pytest_xdist_auto_num_workers() -> int:
    """Processes of ``-n auto``: one more than cores, as some tests wait for a server, a lease or a child."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Downloaded models and warm states go into a folder of the session's, not into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELMO_STORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Beam, its engines and processes that tests kill leave among temporary files goes with the session."""
    tmp_path_factory.getbasetemp()  # pytest's own, which stays
    multiprocessing.util.get_temp_dir()  # removed by multiprocessing as this process ends, after ours
    with (
        tempfile.TemporaryDirectory(
            prefix="elmo-store-tests-", ignore_cleanup_errors=True
        ) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setattr("tempfile.tempdir", folder)
        yield


@pytest.fixture(scope="session")
def repo_dir() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of goldens, corpus and evaluation sets (docs/development/data.md); tests that need them skip without."""
    path = data_folder()
    if not (path / "golden" / "options.json").is_file():
        pytest.skip(
            f"no goldens in {path}: `python -m tests.data goldens` fetches them, or set ELMO_STORE_DATA"
        )
    return path


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch on one thread, for products so small that several wait for each other, and additions in one order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interpreted(repo_dir: Path) -> Callable[[str], str]:
    """Runs a program with Triton's kernels interpreted, in a process of its own, since Triton asks once; what it printed."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

    def run(program: str) -> str:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(repo_dir)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
