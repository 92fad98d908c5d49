"""Stores on an S3-compatible server on loopback: what reads ask it for, and what the libraries that open it take."""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np

import elmo_store as stores
from benchmarks.shared.made_stores import Shape, make_store
from benchmarks.shared.support import Table, fast_server, in_turns
from benchmarks.store.local import WIDE
from elmo_store.storage.filesystems import OBSTORE
from elmo_store.storage.root import Root
from tests.s3_server import Traffic, counted, server

# Few sentences, since moto reads the whole object for each range of it; wide, so that vectors outweigh the tables that lead to
# them, and narrow as on the local disk.
REMOTE = (
    Shape(600, channels=512, forms=("zarr",)),
    Shape(600, channels=512, forms=("parquet",)),
    Shape(2_000),
)
REMOTE_SENTENCES, REMOTE_BATCH = 6, 16
CLIENT_ROUNDS, CLIENTS = 5, ("s3fs", "obstore")


def remote(folder: Path) -> None:
    """Copy stores to a server on loopback; rounds, requests and bytes of cold and of warm sentences."""
    title = "S3-compatible server on loopback, medians: a cold sentence (a store just opened), a warm one beside it"
    table = Table(title, "states     form     sentence", "in sequence", "requests", "bytes", "of wanted", "ms", label_width=30)
    with server() as bucket:
        for shape in REMOTE:
            filesystem = fsspec.filesystem("s3", skip_instance_cache=False)
            url = f"{bucket}/{shape.name}"
            filesystem.put(make_store(folder, shape), url, recursive=True)
            traffic = counted(stores.open(url).root.filesystem)
            for form in shape.forms:
                for name, values in remote_reads(url, form, traffic).items():
                    table.row(f"5 x {shape.channels:<7}{form:<9}{name}", *values)
            filesystem.rm(url, recursive=True)


def remote_reads(url: str, form: str, traffic: Traffic) -> dict[str, tuple[float, ...]]:
    """Rounds, requests, bytes, bytes / bytes wanted and ms of a cold and of a warm sentence, and of a batch."""

    def once(work: Callable[[], Any]) -> tuple[float, ...]:
        traffic.reset()
        began = time.perf_counter()
        wanted = work().nbytes
        spent = time.perf_counter() - began
        return traffic.rounds, traffic.requests, traffic.bytes, traffic.bytes / wanted, spent * 1e3

    size = len(stores.open(url))
    cold, warm = [], []
    for number in np.random.default_rng(5).integers(0, size - 1, REMOTE_SENTENCES).tolist():
        store = stores.open(url, form=form)
        cold.append(once(partial(_read, store, number)))
        warm.append(once(partial(_read, store, number + 1)))
    store = stores.open(url, form=form)
    many = np.random.default_rng(6).integers(0, size - 1, REMOTE_BATCH)
    store.read_sentences(many)
    batch = once(lambda: store.read_sentences(many + 1).states)
    medians = {name: tuple(map(statistics.median, zip(*runs, strict=True))) for name, runs in (("cold", cold), ("warm", warm))}
    return {**medians, f"{REMOTE_BATCH} a call": batch}


def _read(store: stores.Store, number: int) -> Any:
    return store.sentence(number).read()


def clients(folder: Path) -> None:
    """Milliseconds, of the wall's clock and of this process's processors, that each library takes for the same requests."""
    with TemporaryDirectory(dir=folder) as served, fast_server(Path(served)) as bucket:
        opened = {name: _opened(f"{bucket}/{WIDE.name}", folder, number) for number, name in enumerate(CLIENTS)}
        root = opened["s3fs"].root
        shard = max(root.sizes().items(), key=lambda item: item[1])[0]
        data = root.get(shard)
        works: dict[str, Callable[[stores.Store, Any], object]] = {
            "64 random sentences, one call": lambda store, numbers: store.read_sentences(numbers),
            "64 random sentences, one by one": lambda store, numbers: [store.sentence(int(n)).read() for n in numbers],
            f"a shard of {len(data) / 1e6:.0f} MB read": lambda store, _: store.root.get(shard),
            f"a shard of {len(data) / 1e6:.0f} MB written": lambda store, _: store.root.put("copy", data),
            "8 shards written by 8 threads": lambda store, _: _by_threads(partial(store.root.put, data=data)),
        }
        title = f"medians of {CLIENT_ROUNDS} in turns: ms, and ms of this process's processors"
        table = Table(title, "", *(f"{name} {what}" for what in ("wall", "proc") for name in CLIENTS), label_width=44)
        for label, work in works.items():
            calls = {name: partial(_asked, work, store, np.random.default_rng(7)) for name, store in opened.items()}
            taken = [in_turns(calls, CLIENT_ROUNDS, clock=clock) for clock in (time.perf_counter, time.process_time)]
            table.row(label, *(spent[name] * 1e3 for spent in taken for name in CLIENTS))


def _opened(url: str, folder: Path, obstore: int) -> stores.Store:
    """The store at ``url``, put there if it is not, by s3fs or by obstore."""
    os.environ[OBSTORE] = str(obstore)
    root = Root(url)
    if not root.exists("elmo_store.json"):
        source = make_store(folder, REMOTE[0])
        for rel in Root(source).list():
            root.put_file(rel, f"{source}/{rel}")
    store = stores.open(url, form="zarr")
    print(f"{CLIENTS[obstore]}: {type(store.root.filesystem).__module__}")  # opened now, while the variable stands
    return store


def _asked(work: Callable[[stores.Store, Any], object], store: stores.Store, random: np.random.Generator) -> None:
    work(store, random.integers(0, len(store), 64))


def _by_threads(put: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [f"copy-{number}" for number in range(8)]))
