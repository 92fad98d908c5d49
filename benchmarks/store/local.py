"""Stores on the local disk: random sentences and scans, opening, collections, encodings."""

import os
import statistics
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.shared.made_stores import MEAN_TOKENS, EndlessRows, Shape, make_hdf5, make_store, starts
from benchmarks.shared.support import Table, in_turns, run_measured, seconds
from benchmarks.shared.texts import SAMPLE
from benchmarks.store.readers import Works, of_store
from elmo_store.collecting import collect
from elmo_store.format import layout
from elmo_store.forms import shards as forms
from elmo_store.torch import SentenceDataset

ROUNDS, SAMPLES, BATCH = 3, 3072, 256  # random sentences a round, and of a call of read_sentences
CHANNELS = 16
WIDE = Shape(20_000, channels=512, forms=("zarr",))  # 1,024-wide layers, as of the published models
MEMBERS, MEMBER_SENTENCES, MEMBER_ROUNDS = 100, 90, 9  # of a collection; members are of about so many sentences
ENCODED_SENTENCES = 7_500
ENCODINGS = (("float32", "none"), ("float16", "none"), ("float16", "zstd"), ("float16", "blosc"), ("int8", "none"))

OPEN = """
import pathlib, sys, time
began = time.perf_counter()
from elmo_store import open as open_store
imported = time.perf_counter()
store = open_store(sys.argv[1])
rows = store.sentence(int(sys.argv[2])).read()
done = time.perf_counter()
peak = next(line.split()[1] for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(imported - began, done - imported, int(peak) / 1024)
"""


def state_files(url: str, form: str) -> list[Path]:
    """Files of the states of a form, in order."""
    folder = Path(url) / (f"{layout.ZARR}/states/c" if form == "zarr" else layout.STATES)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def in_memory(paths: list[Path]) -> None:
    """Let the page cache hold the files, by reading them."""
    for path in paths:
        path.read_bytes()


def from_disk(paths: list[Path]) -> None:
    """Let the page cache forget the files."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def local(folder: Path, sizes: list[int]) -> None:
    """Random sentences out of memory and off the disk, and scans."""
    import h5py

    title = f"local disk: random sentences/s (one by one; {BATCH} a call), scans of all states beside reading the files' bytes"
    columns = ("one by one", "x HDF5", "batched", "x HDF5", "scan MB/s", "of plain")
    table = Table(title, f"{'sentences':>10} {'from':<7}form", *columns, label_width=26)
    for size in sizes:
        url, hdf5_path = make_store(folder, Shape(size, CHANNELS)), make_hdf5(folder, size, CHANNELS)
        opened = {form: stores.open(url, form=form) for form in layout.FORMS}
        for medium, prepare in (("memory", in_memory), ("disk", from_disk)):
            n = SAMPLES if medium == "memory" else SAMPLES // 3
            with h5py.File(hdf5_path, "r") as hdf5:
                works: Works = {"hdf5": partial(_read_hdf5, hdf5, size, np.random.default_rng(4), n)}
                files = {"hdf5": [hdf5_path]}
                for form, store in opened.items():
                    for what, work in of_store(store).works(size, n, BATCH).items():
                        if what != "scan":
                            works[f"{form} {what}"], files[f"{form} {what}"] = work, state_files(url, form)
                taken = in_turns(works, ROUNDS, {name: partial(prepare, paths) for name, paths in files.items()})
            head, hdf5_seconds = f"{size:>10,} {medium:<7}", taken["hdf5"]
            table.row(f"{head}hdf5", n / hdf5_seconds, "1", "", "", "", "")
            for form, store in opened.items():
                one, many = taken[f"{form} one"], taken[f"{form} many"]
                rates = scan_rates(store, state_files(url, form)) if medium == "memory" else ("", "")
                table.row(f"{head}{form}", n / one, hdf5_seconds / one, n / many, hdf5_seconds / many, *rates)


def _read_hdf5(file: Any, size: int, random: np.random.Generator, n: int) -> None:
    for number in random.integers(0, size, n).tolist():
        file[str(number)][...]


def scan_rates(store: stores.Store, paths: list[Path]) -> tuple[float, str]:
    """MB/s of a scan of all states, and its share of the rate at which the files' bytes are read."""
    scan = of_store(store).works(len(store), 1, 1)["scan"]
    taken = in_turns({"scan": scan, "plain": partial(in_memory, paths)}, ROUNDS)
    rate = store.n_rows * store.manifest.row_bytes / taken["scan"]
    plain = sum(path.stat().st_size for path in paths) / taken["plain"]
    return rate / 1e6, f"{rate / plain:.0%}"


def opening(folder: Path, sizes: list[int]) -> None:
    """A process that opens a store and reads one sentence; a dataset of all its sentences."""
    title = "a fresh process: import, then opening and the first sentence; SentenceDataset of all sentences"
    table = Table(title, "sentences", "import ms", "open+first ms", "peak MB", "dataset ms")
    for size in sizes:
        url = make_store(folder, Shape(size, CHANNELS))
        command = [sys.executable, "-c", OPEN, url, str(size // 2)]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(ROUNDS)]
        imported, first, peak = (statistics.median(map(float, values)) for values in zip(*runs, strict=True))
        store = stores.open(url)
        dataset = statistics.median(seconds(partial(SentenceDataset, store)) for _ in range(ROUNDS))
        table.row(f"{size:,}", imported * 1e3, first * 1e3, peak * 1.048576, dataset * 1e3)


def members(folder: Path) -> None:
    """A collection beside one store, and one of as many shards, in CPU time, in memory."""
    shapes = [Shape(MEMBER_SENTENCES + i - MEMBERS // 2, WIDE.channels, forms=("zarr",)) for i in range(MEMBERS)]
    url = str(folder / "collection")
    collect(url, [stores.open(make_store(folder, shape)) for shape in shapes])
    whole = replace(WIDE, sentences=sum(shape.sentences for shape in shapes))
    rows = int(starts(whole.sentences)[-1]) // MEMBERS
    many_shards = replace(whole, shard_rows=rows // layout.CHUNK_ROWS * layout.CHUNK_ROWS)
    urls = {"store": make_store(folder, whole), "shards": make_store(folder, many_shards), "members": url}
    random, works = np.random.default_rng(9), dict[Any, Any]()
    for name, at in urls.items():
        store = stores.open(at)
        reading = of_store(store).works(len(store), SAMPLES, BATCH)
        works[name, "open"] = partial(_open_often, at, 100)
        works[name, "open, and a first sentence"] = partial(_read_first_often, at, 50)
        works[name, "random sentences, one by one"] = reading["one"]
        works[name, f"random sentences, {BATCH} a call"] = reading["many"]
        works[name, "random sentences with their text"] = partial(_texts, store, random, SAMPLES // 10)
        works[name, "scan"] = reading["scan"]
    taken = in_turns(works, MEMBER_ROUNDS, clock=time.process_time)
    title = f"{MEMBERS} members beside one store, 5 x {WIDE.channels} in float16, in CPU time"
    table = Table(title, "", "store ms", "in shards", f"{MEMBERS} members", "to store", "to shards", label_width=36)
    for what in dict.fromkeys(what for _, what in works):
        one, shards, many = (taken[name, what] for name in urls)
        table.row(what, one * 1e3, shards * 1e3, many * 1e3, f"{many / one:.2f}", f"{many / shards:.2f}")


def _open_often(url: str, n: int) -> None:
    for _ in range(n):
        stores.open(url)


def _read_first_often(url: str, n: int) -> None:
    for _ in range(n):
        stores.open(url)[0].read()


def _texts(store: stores.Store, random: np.random.Generator, n: int) -> None:
    deque((store.sentence(number).tokens for number in random.integers(0, len(store), n).tolist()), 0)


def encodings(folder: Path) -> None:
    """Bytes of a token, encoding a shard from float32, scans and random sentences in memory."""
    sample = folder / "sample"
    run_measured("embed", str(SAMPLE), "--output", str(sample), "--dtype", "float32", "--quiet")
    states = stores.open(sample).read()
    title = f"encodings, 5 x {states.shape[2]} channels, in tokens/s; GB/s of plain states"
    columns = ("bytes a token", "encode", "GB/s", "scan", "one by one", f"{BATCH} at once")
    table = Table(title, "form", *columns, label_width=30)
    for form in layout.FORMS:
        for dtype, compression in ENCODINGS:
            shape = Shape(ENCODED_SENTENCES, states.shape[2], dtype, (form,), compression=compression)
            store = stores.open(make_store(folder, shape, states))
            for raw in (False, True) if dtype == "int8" else (False,):
                table.row(f"{form}, {dtype}, {'raw' if raw else compression}", *_encoding(store, states, raw))


def _encoding(store: stores.Store, states: Any, raw: bool) -> tuple[float, ...]:
    m = store.manifest
    objects = [rel for shard in range(m.sizes.shards) for rel in forms.shard_objects(m, shard) if "/token/" not in rel]
    n = m.shard_range(0)[1]
    rows = EndlessRows(states if m.is_int8 else states.astype(m.dtype))[0:n]
    shard = (rows, ["w"] * n, np.zeros(n, np.int64), np.zeros(n, np.int32))
    works = of_store(store, raw=raw).works(len(store), BATCH, BATCH)
    taken = in_turns({"encode": lambda: forms.encode_shard(m, 0, *shard), **works}, ROUNDS)
    sampled = BATCH * MEAN_TOKENS
    size = sum(store.root.size(rel) or 0 for rel in objects) / store.n_tokens
    rates = (n / taken["encode"], rows.nbytes / taken["encode"] / 1e9, store.n_tokens / taken["scan"])
    return size, *rates, sampled / taken["one"], sampled / taken["many"]
