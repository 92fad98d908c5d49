"""What the libraries that open an object store take for the same requests, and what dtypes and compressions cost and save."""

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.shared.made_stores import make_store
from benchmarks.shared.support import Table, in_turns, run_measured
from benchmarks.shared.texts import SAMPLE
from elmo_store.format import layout
from elmo_store.forms import shards as forms
from elmo_store.storage.filesystems import OBSTORE
from elmo_store.storage.root import Root
from tests.s3_server import server

WIDE_SENTENCES = 600
CLIENT_ROUNDS, CLIENTS = 5, ("s3fs", "obstore")
BATCH = 256
ENCODINGS = (
    ("float32", "none"),
    ("float16", "none"),
    ("float16", "zstd"),
    ("float16", "blosc"),
    ("int8", "none"),
)


def clients(folder: Path) -> None:
    """Milliseconds, of the wall's clock and of this process's processors, that each library takes for the same requests."""
    program = os.environ.get("VERSITYGW") or shutil.which("versitygw")
    print("versitygw on loopback" if program else "moto on loopback, which is slow itself")
    with TemporaryDirectory(dir=folder) as served, server(program, Path(served)) as bucket:
        opened = {
            name: _opened(f"{bucket}/wide", folder, number) for number, name in enumerate(CLIENTS)
        }
        works: dict[str, Callable[[stores.Store, Any], object]] = {
            "64 random sentences, one call": lambda store, random: store.read_sentences(
                _some(store, random)
            ),
            "64 random sentences, one by one": lambda store, random: [
                store.sentence(n).read() for n in _some(store, random)
            ],
        }
        title = f"medians of {CLIENT_ROUNDS} in turns: ms, and ms of this process's processors"
        table = Table(
            title,
            "",
            *(f"{name} {what}" for what in ("wall", "proc") for name in CLIENTS),
            label_width=44,
        )
        for label, work in works.items():
            calls = {
                name: partial(work, store, np.random.default_rng(7))
                for name, store in opened.items()
            }
            taken = [
                in_turns(calls, CLIENT_ROUNDS, clock=clock)
                for clock in (time.perf_counter, time.process_time)
            ]
            table.row(label, *(spent[name] * 1e3 for spent in taken for name in CLIENTS))


def _opened(url: str, folder: Path, obstore: int) -> stores.Store:
    """The store at ``url``, put there if it is not, by s3fs or by obstore."""
    os.environ[OBSTORE] = str(obstore)
    root = Root(url)
    if not root.exists("elmo_store.json"):
        source = Root(make_store(folder, WIDE_SENTENCES, 512))
        for rel in source.list():
            root.put(rel, source.get(rel))
    store = stores.open(url, form="zarr")
    print(
        f"{CLIENTS[obstore]}: {type(store._view.stores[0].root.filesystem).__module__}"
    )  # opened now, while the variable stands
    return store


def _some(store: stores.Store, random: np.random.Generator) -> list[int]:
    return random.integers(0, len(store), 64).tolist()


def encodings(folder: Path) -> None:
    """Bytes of a token, encoding a shard from float32, and scans in memory, with the states of examples/sample."""
    columns = ("bytes a token", "encode", "scan", f"{BATCH} at once")
    table = Table("encodings, tokens/s", "form", *columns, label_width=30)
    states: Any = None  # those in float32, which come first
    for form in layout.FORMS:
        for dtype, compression in ENCODINGS:
            name = f"{form}, {dtype}, {compression}"
            options = [
                "--store",
                form,
                "--dtype",
                dtype,
                "--compression",
                compression,
                "--overwrite",
                "--quiet",
            ]
            run_measured("embed", str(SAMPLE), "--output", str(folder / name), *options)
            store = stores.open(folder / name)
            states = store.read() if states is None else states
            table.row(name, *_encoding(store, states))


def _encoding(store: stores.Store, states: Any) -> tuple[float, ...]:
    m = store.manifest
    objects = [
        rel
        for shard in range(m.sizes.shards)
        for rel in forms.shard_objects(m, shard)
        if "/token/" not in rel
    ]
    n = m.shard_range(0)[1]
    rows = states[:n] if m.is_int8 else states[:n].astype(m.dtype)  # int8: encoders quantise
    numbers = np.random.default_rng(7).integers(0, len(store), BATCH)
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: forms.encode_shard(
            m, 0, rows, ["w"] * n, np.zeros(n, np.int64), np.zeros(n, np.int32)
        ),
        "scan": lambda: [batch.states.max() for batch in store.batches(BATCH)],
        "many": lambda: store.read_sentences(numbers),
    }
    taken = in_turns(works, CLIENT_ROUNDS)
    size = sum(store._view.stores[0].root.size(rel) or 0 for rel in objects) / store.n_tokens
    read = int(np.diff(store._view.spans(numbers)).sum())
    return size, n / taken["encode"], store.n_tokens / taken["scan"], read / taken["many"]
