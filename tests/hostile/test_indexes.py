"""Indexes beside a store: complete or absent; what is damaged is told, by the explorer too; and no store names what is loaded."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import ModelInfo
from elmo_store.reading.text_index import RECORD
from elmo_store.storage.root import Root
from model.errors import UnknownModelError
from model.files.registry import local_spec
from pipeline.explore.service import BadRequestError, ExplorerService, embed_own
from tests.store.support import Written, make_store

FOLDER = layout.TEXT_INDEX


@pytest.fixture
def store(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"), lengths=(40,) * 6, parts=(6,))


def build(root: Root) -> None:
    elmo_store.open(root.url()).index_texts()


def look(written: Written) -> None:
    assert elmo_store.open(written.root.url()).find_text([written.tokens[3]]) == [3]


def changed(root: Root, rel: str, change: Callable[[bytes], bytes]) -> None:
    root.put(rel, change(root.get(rel)))


RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda data: data[:-9],
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
    "no files": lambda data: json.dumps(json.loads(data) | {"objects": []}).encode(),
    "files that are none": lambda data: json.dumps(json.loads(data) | {"objects": [1]}).encode(),
    "files outside": lambda data: json.dumps(
        json.loads(data) | {"objects": [one | {"path": "../../x"} for one in json.loads(data)["objects"]]}
    ).encode(),
    "another store's files": lambda data: data.replace(b"indexes/", b"states/"),
    "another store": lambda data: data.replace(b'"store": "', b'"store": "0'),
}


def test_a_damaged_index_is_told_and_made_again(store: Written) -> None:
    build(store.root)
    files = {rel: store.root.get(rel) for rel in store.root.list(FOLDER)}
    assert {one["path"] for one in store.root.get_json(RECORD)["objects"]} == files.keys() - {RECORD}
    for change in RECORDS.values():
        changed(store.root, RECORD, change)
        with pytest.raises(StoreError, match="elmo-store index"):
            look(store)
        store.root.put(RECORD, files[RECORD])
    damages: tuple[Callable[[bytes], bytes], ...] = (
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    )
    for rel in files.keys() - {RECORD}:
        for damage in damages:
            changed(store.root, rel, damage)
            with pytest.raises(StoreError, match="elmo-store index"):
                look(store)
            store.root.put(rel, files[rel])
        store.root.remove(rel)
        with pytest.raises(StoreError, match="elmo-store index"):
            look(store)
    build(store.root)
    look(store)
    assert {rel: store.root.get(rel) for rel in store.root.list(FOLDER)} == files


@pytest.mark.slow
def test_an_index_whose_making_was_killed_is_absent_and_swept(store: Written) -> None:
    build(store.root)
    whole = {rel: store.root.get(rel) for rel in store.root.list(FOLDER)}
    code = (
        "import os, signal, sys\n"
        "from tests.hostile import test_indexes as t\n"
        "from elmo_store.storage.root import Root\n"
        "kill = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "real, n = os.replace, [int(sys.argv[2])]\n"
        "def replace(a, b):\n"
        "    n[0] -= '/_lease/' not in b\n"
        "    kill() if n[0] < 0 else real(a, b)\n"
        "os.replace = replace\n"
        "t.build(Root(sys.argv[1]))\n"
    )
    for puts in range(len(whole)):
        done = subprocess.run([sys.executable, "-c", code, store.root.url(), str(puts)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert RECORD not in store.root.list(FOLDER)
        assert any(name.startswith(".writing-") for name in os.listdir(store.root.path(FOLDER)))
    build(store.root)
    assert {rel: store.root.get(rel) for rel in store.root.list(FOLDER)} == whole
    assert not any(name.startswith(".") for name in os.listdir(store.root.path(FOLDER)))


def test_a_sample_that_can_t_be_read_is_told(store: Written) -> None:
    store.root.remove(layout.zarr_states_shard(0))
    service = ExplorerService(elmo_store.open(store.root.url()))
    service.wait()
    about = service.about()
    assert about["sample"] is None
    assert not about["reading"]
    assert "the sample can't be read" in about["problem"]
    with pytest.raises(BadRequestError, match="the sample can't be read"):
        service.neighbours("200", [1, 1, 1])


NAMES = [
    "http://127.0.0.1:1/model", "https://elsewhere.example/model.zip", "s3://bucket/model", "memory://model", "file:///etc",
    "/etc/passwd", "../model", "a/b", "a::b", ".", "..", "", "simplecache::http://127.0.0.1:1/x", "original", "small", "C:\\x",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_a_store_names_is_not_followed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from model.files import locate
    from pipeline.jobs.recompute import RecomputeError, recompute

    def asked(*arguments: Any) -> Any:
        raise AssertionError(f"{arguments} was opened")

    monkeypatch.setattr(locate, "_filesystem", asked)
    written = make_store(str(tmp_path / "s"), model=ModelInfo(name, "sha256:" + "1" * 64, {"lstm": {"n_layers": 2}}))
    store = elmo_store.open(written.root.url())
    with pytest.raises(BadRequestError, match="--model"):
        embed_own("the bank", store.manifest)
    with pytest.raises(RecomputeError, match="--model"):
        recompute(store, 1)
    with pytest.raises(UnknownModelError):
        local_spec(name)


def test_names_that_are_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert local_spec("random-small") == "random-small"
    assert local_spec("mine") == "./mine"
    with pytest.raises(UnknownModelError):
        local_spec("yours")


def test_the_model_that_the_user_names_is_taken(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"), model=ModelInfo("http://127.0.0.1:1/m", "sha256:" + "1" * 64, {}))
    with pytest.raises(BadRequestError, match="the model random-small of this machine is not the one"):
        ExplorerService(elmo_store.open(written.root.url()), model="random-small").embed("the bank")
