"""Puts on file servers, whose writes can be seen half-way: a temporary name, then a move; and what a put's stamp tells."""

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from elmo_store.storage import Root


class Server(MemoryFileSystem):
    """As SFTP and SMB servers are: a write grows an object under its name, and a move onto a file that is there is refused."""

    protocol = "sftp"
    store: dict[str, Any] = {}  # noqa: RUF012 (as in its base)
    torn = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("sftp:/")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self.torn:
            super().pipe_file(path, bytes(value)[: len(value) // 2])
            raise OSError("connection lost")
        super().pipe_file(path, value)

    def mv(self, path1: str, path2: str, *_: Any, **__: Any) -> None:
        if self.exists(path2):
            raise OSError(f"{path2} exists")
        super().pipe_file(path2, self.cat_file(path1))
        self.rm_file(path1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Root:
    from fsspec.registry import _registry

    monkeypatch.setitem(_registry, "sftp", Server)
    monkeypatch.setattr(Server, "store", {})
    monkeypatch.setattr(Server, "pseudo_dirs", [""])
    monkeypatch.setattr(Server, "torn", False)
    fsspec.filesystem("sftp").invalidate_cache()
    return Root("sftp://host/store")


def test_a_torn_put_leaves_what_was_there(server: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("a/marker.json", b"the old one, whole")
    monkeypatch.setattr(Server, "torn", True)
    with pytest.raises(OSError, match="connection lost"):
        server.put("a/marker.json", b"the new one, which is torn")
    with pytest.raises(OSError, match="connection lost"):
        server.put("a/other.json", b"was never there")
    assert server.get("a/marker.json") == b"the old one, whole"
    assert server.list() == ["a/marker.json"]


def test_a_put_over_what_is_there_replaces_it_though_the_server_moves_onto_nothing(server: Root) -> None:
    for data in (b"one", b"two"):
        server.put("a", data)
        assert server.get("a") == data
    assert server.list() == ["a"]
    assert server.put_new("a", b"three") is False
    assert server.put_new("b", b"three") is True


def test_the_stamp_of_a_put_is_that_of_its_own_bytes(tmp_path: Path) -> None:
    root = Root(tmp_path)
    stamp = root.put_stamped("a", b"mine")
    assert root.stamp("a") == stamp
    os.utime(root.path("a"), ns=(0, 0))
    assert root.stamp("a") != stamp
    assert root.put_stamped("a", b"mine") != stamp
    assert root.stamp("b") is None


def test_flush_works_on_this_system(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.put("a", b"x")
    root.flush()
    Root("memory://anything").flush()
    assert root.get("a") == b"x"
