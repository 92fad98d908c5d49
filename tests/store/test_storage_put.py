"""Puts on file servers, whose writes can be seen half-way: a temporary name, then a move; and what a put's stamp tells."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from elmo_store.storage.process import scratch_folder
from elmo_store.storage.readable import TEMPORARY_PREFIX
from elmo_store.storage.root import Root


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

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

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


def put_file_of(root: Root, rel: str, data: bytes) -> None:
    with scratch_folder() as folder:
        (folder / "file").write_bytes(data)
        root.put_file(rel, str(folder / "file"))


@pytest.mark.parametrize("put", [Root.put, put_file_of])
def test_a_torn_put_leaves_what_was_there(
    server: Root, put: Callable[[Root, str, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(server, "a/marker.json", b"the old one, whole")
    monkeypatch.setattr(Server, "torn", True)
    with pytest.raises(OSError, match="connection lost"):
        put(server, "a/marker.json", b"the new one, which is torn")
    with pytest.raises(OSError, match="connection lost"):
        put(server, "a/other.json", b"was never there")
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


def test_puts_on_a_real_sftp_server(sftp: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"one", b"two, longer", b""):
        sftp.put("a/marker.json", data)
        assert sftp.get("a/marker.json") == data
    assert (sftp.put_new("a/marker.json", b"three"), sftp.put_new("a/new", b"three")) == (False, True)
    assert sftp.put_stamped("a/c", b"of which second?") == ""  # two puts of one second have one time there
    assert sftp.sizes() == {"a/c": 16, "a/marker.json": 0, "a/new": 5}
    assert sftp.get_tails({"a/c": 7}) == {"a/c": b"second?"}
    seen: list[str] = []
    filesystem = sftp.filesystem
    write = type(filesystem.ftp.open("/out/x", "w")).write

    def torn(self: Any, data: bytes) -> None:
        write(self, data[: len(data) // 2])
        self.flush()
        seen.extend(path.name for path in (tmp_path / "served" / "out" / "a").iterdir())
        raise OSError("connection lost")

    sftp.remove("x")
    with monkeypatch.context() as patch:
        patch.setattr("paramiko.sftp_file.SFTPFile.write", torn)
        with pytest.raises(OSError, match="connection lost"):
            sftp.put("a/c", b"a new one, which is torn")
    assert any(name.startswith(TEMPORARY_PREFIX) for name in seen)  # the server has half of it, under another name
    assert sftp.get("a/c") == b"of which second?"
    assert sftp.list() == ["a/c", "a/marker.json", "a/new"]
    assert sorted(path.name for path in (tmp_path / "served" / "out" / "a").iterdir()) == ["c", "marker.json", "new"]


def test_a_connection_that_is_gone_is_made_anew_and_no_folder_is_empty_because_it_can_t_be_listed(
    sftp: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    sftp.put("a/b", b"x")
    filesystem = sftp.filesystem
    filesystem.client.close()
    assert sftp.sizes() == {"a/b": 1}
    filesystem.client.close()
    assert sftp.get("a/b") == b"x"

    def lost(*_: Any, **__: Any) -> Any:
        raise OSError("Socket is closed")

    monkeypatch.setattr(filesystem, "ls", lost)
    with pytest.raises(ConnectionError, match="out can't be reached"):
        sftp.sizes()
    with pytest.raises(ConnectionError, match="out can't be reached"):
        Root("sftp://127.0.0.1/out", sftp.storage_options | {"port": 1}).sizes()
