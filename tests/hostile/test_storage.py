"""Storage on a bad day, fault by fault; `tests/hostile/test_chaos.py` draws them at random."""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.filesystem import ChaosFileServer, StorageError, register
from elmo_store.storage import Root
from pipeline.cli import main
from pipeline.exit_codes import Exit
from tests.store.support import make_store


@pytest.fixture
def file_server(tmp_path: Path) -> Root:
    """A root on a file server on which nothing goes wrong yet."""
    register(0, str(tmp_path / "counts"))
    return Root(f"chaos-files://{tmp_path}/store", {"rate": 0.0})


def test_a_move_whose_answer_is_lost_keeps_what_it_moved(file_server: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved_and_failed(self: ChaosFileServer, path1: str, path2: str, **options: Any) -> None:
        os.replace(path1, path2)
        raise StorageError("the answer was lost")

    monkeypatch.setattr(ChaosFileServer, "mv", moved_and_failed)
    file_server.put("a/b", b"first")
    file_server.put("a/b", b"second")
    assert file_server.get("a/b") == b"second"
    assert file_server.list() == ["a/b"]


def test_a_write_that_is_cut_is_never_seen(file_server: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    file_server.put("a/b", b"first")
    monkeypatch.setattr(ChaosFileServer, "_fate", lambda self, operation, kinds: "torn" if "torn" in kinds else "")
    with pytest.raises(StorageError):
        file_server.put("a/b", b"second")
    monkeypatch.undo()
    assert file_server.get("a/b") == b"first"


def test_storage_that_fails_anywhere_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(str(tmp_path / "store"))

    def gone(self: Root, prefix: str = "") -> dict[str, int]:
        raise StorageError("the mount is gone")

    monkeypatch.setattr(Root, "sizes", gone)
    assert main(["info", str(tmp_path / "store")]) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert "the mount is gone" in said
    assert "Traceback" not in said
