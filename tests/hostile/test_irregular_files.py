"""Pipes and devices in place of a store's files: a typed error at once, where a plain open would wait or read for ever."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from benchmarks.shared.texts import SHAPES
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import read_inputs
from elmo_store.reading.rejects import rejects_of
from elmo_store.storage.data import Range
from elmo_store.storage.root import Root
from model.errors import ModelError
from model.files import hdf5, tf_checkpoint
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import read_options
from tests.store.support import make_store

pytestmark = pytest.mark.timeout(60)


def read_rows(url: str, form: str | None = None, *, mapped: bool = True) -> Any:
    return elmo_store.open(url, form=form, mapped=mapped).read(rows=slice(0, 4))


READS: dict[str, tuple[str, dict[str, Any], Callable[[str], Any]]] = {
    "mapped shard": (layout.zarr_states_shard(0), {}, lambda url: read_rows(url, "zarr")),
    "shard that is not mapped": (
        layout.zarr_states_shard(0),
        {},
        lambda url: read_rows(url, "zarr", mapped=False),
    ),
    "shard of int8": (
        layout.zarr_scale_shard(0),
        {"dtype": "int8"},
        lambda url: read_rows(url, "zarr"),
    ),
    "compressed shard": (
        layout.zarr_states_shard(0),
        {"compression": "zstd"},
        lambda url: read_rows(url, "zarr"),
    ),
    "Parquet part": (layout.states_part(0), {}, lambda url: read_rows(url, "parquet")),
    "sentence part": (
        layout.sentences_part(0),
        {},
        lambda url: elmo_store.open(url).sentence(0).tokens,
    ),
    "chunk of sentence_start": (
        layout.zarr_sentence_chunk(0),
        {},
        lambda url: elmo_store.open(url).sentence(0),
    ),
    "id table": (layout.id_table(0), {}, lambda url: elmo_store.open(url).sentence(id="doc.txt:0")),
    "text table": (layout.text_table(0), {}, lambda url: elmo_store.open(url).find_text(["a"])),
    "table of parts": (
        layout.SENTENCE_INDEX,
        {},
        lambda url: elmo_store.open(url).sentence(0).tokens,
    ),
    "table of inputs": (layout.INPUTS, {}, lambda url: read_inputs(Root(url))),
    "rejected records": (
        layout.rejects_part(0),
        {},
        lambda url: list(rejects_of(elmo_store.open(url)._view.opened_stores()[0])),
    ),
}


def put_in_place(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("what", READS)
def test_no_reader_reads_a_pipe_or_a_device(tmp_path: Path, what: str, kind: str) -> None:
    rel, settings, read = READS[what]
    root = make_store(str(tmp_path / "store"), **settings).root
    put_in_place(Path(root.path(rel)), kind)

    with pytest.raises(StoreError, match=f"{rel} is a pipe or a device"):
        read(root.url())


ROOT_READS: dict[str, Callable[[Root], Any]] = {
    "get": lambda root: root.get("a"),
    "get_many": lambda root: root.get_many(["a"]),
    "crc32c": lambda root: root.crc32c("a"),
    "tails": lambda root: root.get_tails({"a": 8}),
    "ranges": lambda root: root.read_ranges([Range("a", 0, memoryview(bytearray(8)))]),
    "put": lambda root: root.put("b", Path(root.path("a"))),
    "put by a link": lambda root: root.put("b", Path(root.path("a")), link=True),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("operation", ROOT_READS)
def test_no_operation_of_a_root_opens_a_pipe_or_a_device(
    tmp_path: Path, operation: str, kind: str
) -> None:
    put_in_place(tmp_path / "a", kind)
    with pytest.raises(StoreError, match="a is a pipe or a device"):
        ROOT_READS[operation](Root(tmp_path))
    assert not (tmp_path / "b").exists()


MODEL_READS: dict[str, Callable[[Path], Any]] = {
    "safetensors": BiLMWeights.load_safetensors,
    "weights.hdf5": lambda path: hdf5.read(path, random_weights(SHAPES["tiny"]).options),
    "model.ckpt.index": lambda path: tf_checkpoint.read(
        path, random_weights(SHAPES["tiny"]).options
    ),
    "options.json": read_options,
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", MODEL_READS)
def test_no_model_is_read_from_a_pipe_or_a_device(tmp_path: Path, name: str, kind: str) -> None:
    put_in_place(tmp_path / name, kind)
    with pytest.raises(ModelError, match=f"{name} is a pipe or a device"):
        MODEL_READS[name](tmp_path / name)
