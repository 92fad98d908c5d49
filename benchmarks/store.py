"""Reading a store: ``python -m benchmarks.store [local training layouts open loader s3 members clients encodings]`` gives tables.

Stores of made-up states (benchmarks.made_stores) of a narrow model, 5 states x 16 channels in float16; the same sentences in
HDF5, one dataset a sentence, float32, as earlier tools write them. What is compared is measured in turns, medians of three,
other sentences each round. 10^6 sentences take 10 GB and ten minutes to make.

local      random sentences out of memory and off the disk beside HDF5, scans of all states beside reading the files
training   wide rows in memory by one process's CPU time, beside np.memmap and Hugging Face's Arrow file
layouts    states of a row side by side beside one state after the other, all states and one, by CPU time
open       a fresh process that opens a store and reads one sentence; a dataset of all its sentences
loader     mixed features by a DataLoader of two workers, in random order
s3         requests and bytes of a sentence on an S3-compatible server on loopback (needs moto[server] and s3fs)
members    a collection of 100 members beside one store of as many sentences: opening, random sentences, ids, scans
clients    64 random sentences, and whole shards of 21 MB, over S3 by obstore and by s3fs: with versitygw (PATH or VERSITYGW)
           as the server, or moto
encodings  what dtypes and compressions cost and save, with the states that the default model gives for examples/sample
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import MEAN_TOKENS, EndlessRows, Shape, make_hdf5, make_store, starts
from benchmarks.row_readers import Reader, for_training, of_store, readers
from benchmarks.support import Table, in_turns, machine, options_of, run_measured, seconds, working_folder
from benchmarks.texts import SAMPLE
from elmo_store.format import layout
from elmo_store.format.layout import CHUNK_ROWS
from elmo_store.forms import shards as forms
from elmo_store.storage.filesystems import OBSTORE
from elmo_store.storage.root import Root
from tests.s3_server import Traffic, counted, server

ROUNDS, SAMPLES = 3, 3000  # random sentences a round
CHANNELS = 16
SCANNED = 10**6  # sentences of a scan, at most
BATCH = 256  # sentences of a call of read_sentences
WIDE = Shape(20_000, channels=512, forms=("zarr",))  # 1,024-wide layers, as of the published models
TRAINED = Shape(50_000, channels=128, forms=("zarr",))
TRAINED_SAMPLES, TRAINED_BATCH = 6_400, 64
MEMBERS, MEMBER_SENTENCES, MEMBER_ROUNDS = 100, 90, 9  # of a collection; members are of about so many sentences
CPU_ROUNDS = 9
IN_MEMORY = "50,000 sentences of 5 x 128 in float16 from memory, one process: sentences/s of its CPU time"
IN_MEMORY += f", medians of {CPU_ROUNDS} rounds"
WORKS = {"one": "one by one", "many": f"{TRAINED_BATCH} a call", "scan": "scan"}
# Few sentences, since moto reads the whole object for each range of it; wide, so that vectors outweigh the tables that lead to
# them, and narrow as on the local disk.
REMOTE = (
    *(Shape(600, channels=512, forms=("zarr",), layout=name) for name in layout.LAYOUTS),
    Shape(600, channels=512, forms=("parquet",)),
    Shape(2_000),
)
CLIENT_ROUNDS = 5
REMOTE_SENTENCES, REMOTE_BATCH = 6, 16
ENCODED_SENTENCES, ENCODED_SAMPLES = 7_500, 192
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


def one_by_one(store: stores.Store, random: np.random.Generator, n: int, raw: bool = False) -> None:
    """Random sentences."""
    for number in random.integers(0, len(store), n).tolist():
        sentence = store.sentence(number)
        _ = sentence.read_raw() if raw else sentence.read()


def batched(store: stores.Store, random: np.random.Generator, n: int, raw: bool = False) -> None:
    numbers = random.integers(0, len(store), n).tolist()
    for start in range(0, n, BATCH):
        store.read_sentences(numbers[start : start + BATCH], raw=raw)


def scan(store: stores.Store, sentences: int | None = None, raw: bool = False) -> None:
    for batch in store.batches(1024, stop=sentences, raw=raw):
        _ = batch.states[:1]


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
        random = np.random.default_rng(4)
        for medium, prepare in (("memory", in_memory), ("disk", from_disk)):
            n = SAMPLES if medium == "memory" else SAMPLES // 3
            with h5py.File(hdf5_path, "r") as hdf5:
                works: dict[str, Callable[[], Any]] = {"hdf5": partial(_read_hdf5, hdf5, size, random, n)}
                files = {"hdf5": [hdf5_path]}
                for form in layout.FORMS:
                    store = stores.open(url, form=form)
                    for name, work in ((f"{form} one", one_by_one), (f"{form} batched", batched)):
                        works[name] = partial(work, store, random, n)
                        files[name] = state_files(url, form)
                taken = in_turns(works, ROUNDS, {name: partial(prepare, paths) for name, paths in files.items()})
            head, hdf5_seconds = f"{size:>10,} {medium:<7}", taken["hdf5"]
            table.row(f"{head}hdf5", n / hdf5_seconds, "1", "", "", "", "")
            for form in layout.FORMS:
                one, many = taken[f"{form} one"], taken[f"{form} batched"]
                rates = scan_rates(url, form) if medium == "memory" else ("", "")
                table.row(f"{head}{form}", n / one, hdf5_seconds / one, n / many, hdf5_seconds / many, *rates)


def _read_hdf5(file: Any, size: int, random: np.random.Generator, n: int) -> None:
    for number in random.integers(0, size, n).tolist():
        file[str(number)][...]


def scan_rates(url: str, form: str) -> tuple[float, str]:
    """MB/s of a scan of all states, and its share of the rate at which the files' bytes are read."""
    store, paths = stores.open(url, form=form), state_files(url, form)
    sentences = min(len(store), SCANNED)
    taken = in_turns({"scan": partial(scan, store, sentences), "plain": partial(in_memory, paths)}, ROUNDS)
    row_bytes = len(store.states) * store.channels * store.dtype.itemsize
    rate = store.sentence(sentences - 1).span[1] * row_bytes / taken["scan"]
    plain = sum(path.stat().st_size for path in paths) / taken["plain"]
    return rate / 1e6, f"{rate / plain:.0%}"


def training(folder: Path, sizes: list[int]) -> None:
    """Random sentences and scans of rows in the page cache, in CPU time, which the load of a shared machine moves less."""
    store, by_row = (stores.open(make_store(folder, replace(TRAINED, layout=name))) for name in layout.LAYOUTS)
    amounts = {"one": TRAINED_SAMPLES, "many": TRAINED_SAMPLES, "scan": store.n_rows * store.manifest.row_bytes / 1e9}
    rates = {
        (name, what): amounts[what] / spent
        for (name, what), spent in cpu_seconds(readers(folder, store, by_row), len(store)).items()
    }
    columns = ("one by one", "of memmap", f"{TRAINED_BATCH} a call", "of memmap", "scan GB/s", "of memmap")
    table = Table(IN_MEMORY, "reader", *columns)
    for name in dict.fromkeys(name for name, _ in rates):
        cells: list[str | float] = []
        for what in amounts:
            rate = rates.get((name, what))
            cells += ["", ""] if rate is None else [rate, rate / rates["np.memmap", what]]
        table.row(name, *cells)


def cpu_seconds(compared: Mapping[str, Reader], n_sentences: int) -> dict[tuple[str, str], float]:
    """Of each reader's random sentences one by one ("one") and several a call ("many"), and of its scan; medians of turns."""
    random, n, works = np.random.default_rng(7), TRAINED_SAMPLES, {}
    for name, (one, many, scan_all) in compared.items():
        if one is not None:
            works[name, "one"] = lambda one=one: deque(map(one, random.integers(0, n_sentences, n).tolist()), 0)
        if many is not None:
            works[name, "many"] = lambda many=many: deque(
                map(many, random.integers(0, n_sentences, (n // TRAINED_BATCH, TRAINED_BATCH)).tolist()), 0
            )
        if scan_all is not None:
            works[name, "scan"] = lambda scan_all=scan_all: deque(scan_all(), 0)
    return in_turns(works, CPU_ROUNDS, clock=time.process_time)


def layouts(folder: Path, sizes: list[int]) -> None:
    """Rows in the page cache in both layouts: random sentences and scans, of all states and of one."""
    shapes = {name: replace(TRAINED, layout=name) for name in layout.LAYOUTS}
    table = Table(IN_MEMORY, "", "states", "rows", "rows : states", label_width=36)
    opened = {name: stores.open(make_store(folder, shape)) for name, shape in shapes.items()}
    kinds: dict[str, Callable[[stores.Store], Reader]] = {
        "all states": of_store,
        "one state": partial(of_store, states="fwd2"),
        "SentenceDataset, Stream": for_training,
    }
    compared = {f"{name} {of}": reader(store) for name, store in opened.items() for of, reader in kinds.items()}
    n = len(opened["states"])
    taken = cpu_seconds(compared, n)
    for of in kinds:
        for what, amount in (("one", TRAINED_SAMPLES), ("many", TRAINED_SAMPLES), ("scan", n)):
            rates = [amount / taken[f"{name} {of}", what] for name in layout.LAYOUTS]
            table.row(f"{of}, {WORKS[what]}", *rates, rates[1] / rates[0])


def opening(folder: Path, sizes: list[int]) -> None:
    """A process that opens a store and reads one sentence; a dataset of all its sentences."""
    from elmo_store.torch import SentenceDataset

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


def loader(folder: Path, sizes: list[int]) -> None:
    """Mixed features by a DataLoader of two workers, in random order."""
    import torch
    from torch.utils.data import DataLoader

    from elmo_store.torch import ScalarMix, SentenceDataset, collate

    url, mix = make_store(folder, WIDE), ScalarMix(n_layers=3)
    title = "DataLoader of 2 workers, 5 x 512 states in float16, shuffled, 64 sentences a batch, mixed to 1,024 in float32"
    table = Table(title, "items", "tokens/s")
    for name, text in (("vectors", False), ("vectors and text", True)):
        rates = []
        for _ in range(ROUNDS):
            data = SentenceDataset(url, text=text)
            batches = DataLoader(data, 64, shuffle=True, num_workers=2, collate_fn=collate, persistent_workers=False)
            tokens, began = 0, 0.0
            with torch.inference_mode():
                for number, batch in enumerate(batches):
                    mix(states=batch["states"])
                    if number == 4:  # workers have started
                        tokens, began = 0, time.perf_counter()
                    tokens += int(batch["mask"].sum())
            rates.append(tokens / (time.perf_counter() - began))
        table.row(name, statistics.median(rates))


def remote(folder: Path, sizes: list[int]) -> None:
    """Copy stores to a server on loopback; rounds, requests and bytes of cold and of warm sentences."""
    import fsspec

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
                    table.row(f"5 x {shape.channels:<7}{form if shape.layout == 'states' else 'by row':<9}{name}", *values)
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
        cold.append(once(partial(_sentence, store, number)))
        warm.append(once(partial(_sentence, store, number + 1)))
    store = stores.open(url, form=form)
    many = np.random.default_rng(6).integers(0, size - 1, REMOTE_BATCH)
    store.read_sentences(many)
    batch = once(lambda: store.read_sentences(many + 1).states)
    medians = {name: tuple(map(statistics.median, zip(*runs, strict=True))) for name, runs in (("cold", cold), ("warm", warm))}
    return {**medians, f"{REMOTE_BATCH} a call": batch}


def _sentence(store: stores.Store, number: int) -> Any:
    return store.sentence(number).read()


def members(folder: Path, sizes: list[int]) -> None:
    """A collection beside one store, and one of as many shards, in CPU time, in memory."""
    from elmo_store.collecting import collect

    shapes = [Shape(MEMBER_SENTENCES + i - MEMBERS // 2, WIDE.channels, forms=("zarr",)) for i in range(MEMBERS)]
    url = str(folder / "collection")
    collect(url, [stores.open(make_store(folder, shape)) for shape in shapes])
    whole = replace(WIDE, sentences=sum(shape.sentences for shape in shapes))
    rows = int(starts(whole.sentences)[-1]) // MEMBERS
    many_shards = replace(whole, shard_rows=rows // CHUNK_ROWS * CHUNK_ROWS)
    urls = {"store": make_store(folder, whole), "shards": make_store(folder, many_shards), "members": url}
    random, n = np.random.default_rng(9), SAMPLES
    works: dict[Any, Callable[[], Any]] = {}
    for name, at in urls.items():
        store = stores.open(at)
        works[name, "open"] = partial(_open_often, at, 100, 0)
        works[name, "open, and a first sentence"] = partial(_open_often, at, 50, 1)
        works[name, "random sentences, one by one"] = partial(one_by_one, store, random, n)
        works[name, f"random sentences, {BATCH} a call"] = partial(batched, store, random, n)
        works[name, "random sentences with their text"] = partial(_texts, store, random, n // 10)
        works[name, "scan"] = partial(scan, store)
    taken = in_turns(works, MEMBER_ROUNDS, clock=time.process_time)
    table = Table(
        f"{MEMBERS} members beside one store, 5 x {WIDE.channels} in float16, in CPU time",
        "",
        "store ms",
        "in shards",
        f"{MEMBERS} members",
        "to store",
        "to shards",
        label_width=36,
    )
    for what in dict.fromkeys(what for _, what in works):
        one, shards, many = (taken[name, what] for name in urls)
        table.row(what, one * 1e3, shards * 1e3, many * 1e3, f"{many / one:.2f}", f"{many / shards:.2f}")


def _open_often(url: str, n: int, sentences: int) -> None:
    for _ in range(n):
        _ = [sentence.read() for sentence in stores.open(url)[:sentences]]


def _texts(store: stores.Store, random: np.random.Generator, n: int) -> None:
    for number in random.integers(0, len(store), n).tolist():
        _ = store.sentence(number).tokens


def clients(folder: Path, sizes: list[int]) -> None:
    """Milliseconds, of the wall's clock and of this process's processors, that each library takes for the same requests."""
    program = os.environ.get("VERSITYGW") or shutil.which("versitygw")
    kind = "versitygw" if program else "moto"
    title = f"{kind} on loopback, medians of {CLIENT_ROUNDS} in turns: ms, and ms of this process's processors"
    names = ("s3fs", "obstore")
    table = Table(title, "", *(f"{name} {what}" for name in names for what in ("wall", "proc")), label_width=44)
    with TemporaryDirectory(dir=folder) as served, server(program, Path(served)) as bucket:
        url = f"{bucket}/{WIDE.name}"
        opened: dict[str, stores.Store] = {}
        for number, name in enumerate(names):
            os.environ[OBSTORE] = str(number)
            root = Root(url)
            if not number:
                source = make_store(folder, REMOTE[0])
                for rel in Root(source).list():
                    root.put_file(rel, f"{source}/{rel}")
            opened[name] = stores.open(url, form="zarr")
            print(f"{name}: {type(opened[name].root.filesystem).__module__}")  # opened now, while the variable stands
        shard = max(root.sizes().items(), key=lambda item: item[1])[0]
        data = root.get(shard)
        random = np.random.default_rng(7)
        works: dict[str, Callable[[stores.Store, Any], object]] = {
            "64 random sentences, one call": lambda store, numbers: store.read_sentences(numbers),
            "64 random sentences, one by one": lambda store, numbers: [store.sentence(int(n)).read() for n in numbers],
            f"a shard of {len(data) / 1e6:.0f} MB read": lambda store, _: store.root.get(shard),
            f"a shard of {len(data) / 1e6:.0f} MB written": lambda store, _: store.root.put("copy", data),
            "8 shards written by 8 threads": lambda store, _: _by_threads(partial(store.root.put, data=data)),
        }
        for label, work in works.items():
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            for _ in range(CLIENT_ROUNDS + 1):
                numbers = random.integers(0, len(opened["s3fs"]), 64)
                for name, store in opened.items():
                    began, busy = time.perf_counter(), time.process_time()
                    work(store, numbers)
                    spent[name].append(((time.perf_counter() - began) * 1e3, (time.process_time() - busy) * 1e3))
            table.row(label, *(statistics.median(values) for name in names for values in zip(*spent[name][1:], strict=True)))


def _by_threads(put: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [f"copy-{number}" for number in range(8)]))


def encodings(folder: Path, sizes: list[int]) -> None:
    """Bytes of a token, encoding a shard from float32, scans and random sentences in memory."""
    sample = folder / "sample"
    run_measured("embed", str(SAMPLE), "--output", str(sample), "--dtype", "float32", "--quiet")
    states = stores.open(sample).read()
    columns = ("bytes a token", "encode", "GB/s", "scan", "one by one", f"{BATCH} at once")
    table = Table(
        f"encodings, 5 x {states.shape[2]} channels, in tokens/s; GB/s of plain states", "form", *columns, label_width=30
    )
    for form in layout.FORMS:
        for dtype, compression in ENCODINGS:
            shape = Shape(ENCODED_SENTENCES, states.shape[2], dtype, (form,), compression=compression)
            store = stores.open(make_store(folder, shape, states))
            for raw in (False, True) if dtype == "int8" else (False,):
                table.row(f"{form}, {dtype}, {'raw' if raw else compression}", *_encoding(store, states, raw))


def _encoding(store: stores.Store, states: Any, raw: bool) -> tuple[float, ...]:
    m, random = store.manifest, np.random.default_rng(0)
    objects = [rel for shard in range(m.sizes.shards) for rel in forms.shard_objects(m, shard) if "/token/" not in rel]
    n = m.shard_range(0)[1]
    rows = EndlessRows(states if m.is_int8 else states.astype(m.dtype))[0:n]
    shard = (rows, ["w"] * n, np.zeros(n, np.int64), np.zeros(n, np.int32))
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: forms.encode_shard(m, 0, *shard),
        "scan": lambda: scan(store, raw=raw),
        "one": lambda: one_by_one(store, random, ENCODED_SAMPLES, raw),
        "many": lambda: batched(store, random, ENCODED_SAMPLES, raw),
    }
    taken = in_turns(works, ROUNDS)
    sampled = ENCODED_SAMPLES * MEAN_TOKENS
    size = sum(store.root.size(rel) or 0 for rel in objects) / store.n_tokens
    rates = (n / taken["encode"], rows.nbytes / taken["encode"] / 1e9, store.n_tokens / taken["scan"])
    return size, *rates, sampled / taken["one"], sampled / taken["many"]


TABLES = {
    "local": local, "training": training, "layouts": layouts, "open": opening, "loader": loader, "s3": remote,
    "members": members, "clients": clients, "encodings": encodings,
}  # fmt: skip


def main() -> None:
    parser = options_of(__doc__, [*TABLES], folder=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="sentences (default: 10^4 10^5 10^6)")
    args = parser.parse_args()
    print(f"{machine()}; medians of {ROUNDS} rounds", flush=True)
    with working_folder(args.folder) as folder:
        for name in args.tables:
            TABLES[name](folder, args.sizes)


if __name__ == "__main__":
    main()
