"""Fixtures that every test folder shares. May import pytest and the standard library only."""

from pathlib import Path

import pytest

from tests.s3_server import s3_url as s3_url  # one server a session, for every folder's tests


@pytest.fixture(scope="session")
def repo_dir() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir(repo_dir: Path) -> Path:
    """The folder of goldens, corpus and evaluation sets beside the checkout; tests that need it skip without it."""
    path = repo_dir.parent / "shared"
    if not (path / "golden" / "options.json").is_file():
        pytest.skip(f"no golden data: {path} is absent (the project's tests pass without it; CI has it)")
    return path
