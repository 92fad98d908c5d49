"""Where outputs and stores can be; what a put leaves, and what its stamp tells."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main


def test_the_stamp_of_a_put_is_that_of_its_own_bytes(tmp_path: Path) -> None:
    root = Root(tmp_path)
    stamp = root.put("a", b"mine")
    assert root.stamp("a") == stamp
    os.utime(root.path("a"), ns=(0, 0))
    assert root.stamp("a") != stamp
    assert root.put("a", b"mine") != stamp
    assert root.stamp("b") is None


def test_flush_works_on_this_system(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.put("a", b"x")
    root.flush()
    Root("memory://anything").flush()
    assert root.get("a") == b"x"


@pytest.mark.parametrize(
    "url",
    ["sftp://host/a", "smb://host/a", "hdfs://host/a", "ftp://host/a", "simplecache::s3://b/a"],
)
def test_no_output_or_store_is_on_a_file_server(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="can't be on"):
        Root(url)
    with pytest.raises(StoreError, match="can't be on"):
        elmo_store.open(url)
    commands = [
        ["embed", str(tmp_path), "--output", url],
        ["embed", str(tmp_path), "--into", url],
        ["mix", url, "--weights", "w.json", "--output", str(tmp_path / "mixed")],
        ["export", url, "--output", str(tmp_path / "out"), "--format", "bilm"],
        ["info", url],
        ["verify", url],
        ["watch", url],
        ["compact", url],
    ]
    for command in commands:
        assert main(command) == Exit.BAD_LOCATION, command
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1, said
        assert (
            f"outputs and stores can't be on {url.partition(':')[0]}: give a local or mounted folder"
            in said[0]
        )


def test_of_many_who_put_at_once_on_a_disk_without_hard_links_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", without_links)
    root = Root(tmp_path)
    barrier = threading.Barrier(8)

    def put(number: int) -> bool:
        barrier.wait()
        return root.put_new("folder/a", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(put, range(8)))
    assert won.count(True) == 1
    assert root.get("folder/a") == b"%d" % won.index(True)
    assert root.list() == ["folder/a"]


def test_a_put_makes_its_folder_anew_while_others_remove_the_last_object_in_it(
    tmp_path: Path,
) -> None:
    """As those who wait for a lease do, and who gives it back."""
    root = Root(tmp_path / "store")
    root.put("keep", b"x")

    def put_and_remove(name: str) -> None:
        for _ in range(400):
            assert root.put_new(f"_lease/{name}", b"x")
            root.remove(f"_lease/{name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_and_remove, "abcd"))
    assert root.list("") == ["keep"]
