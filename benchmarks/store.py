"""Reading a store beside plain files and HDF5: ``python -m benchmarks.store`` prints tables.

Stores of made-up states (benchmarks.made_stores) of a narrow model, 5 states x 16 channels in float16; the same sentences in
HDF5, one dataset a sentence, float32, as earlier tools write them. What is compared is measured in turns, medians of --rounds,
other sentences each round. --folder keeps the files for the next run: 10^6 sentences take 10 GB and ten minutes to make.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import Shape, make_hdf5, make_store
from benchmarks.processes import machine
from elmo_store.format import layout

TABLES = ("local", "open", "loader", "s3", "chunks")
CHANNELS = 16
SCANNED = 10**6  # sentences of a scan, at most
BATCH = 256  # sentences of a call of read_sentences
WIDE = Shape(20_000, channels=512, forms=("zarr",))  # 1,024-wide layers, as of the published models

OPEN = """
import pathlib, sys, time
began = time.perf_counter()
from elmo_store import open as open_store
imported = time.perf_counter()
store = open_store(sys.argv[1])
rows = store.sentence(int(sys.argv[2])).read()
done = time.perf_counter()
peak = next(line.split()[1] for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(imported - began, done - imported, int(peak) / 1024, len(rows))
"""


def seconds(work: Callable[[], Any]) -> float:
    """Of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(
    works: dict[str, Callable[[], Any]], rounds: int, prepare: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, float]:
    """Median seconds of each, all of them called once a round, after one round that does not count; each is prepared first."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            if prepare is not None:
                prepare[name]()
            spent = seconds(work)
            if number:
                taken[name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def drawn(random: np.random.Generator, size: int, n: int) -> list[int]:
    """Numbers of sentences, others for every round, so that nobody meets a sentence again."""
    numbers: list[int] = random.integers(0, size, n).tolist()
    return numbers


def one_by_one(store: stores.Store, random: np.random.Generator, n: int) -> None:
    for number in drawn(random, len(store), n):
        store.sentence(number).read()


def batched(store: stores.Store, random: np.random.Generator, n: int) -> None:
    numbers = drawn(random, len(store), n)
    for start in range(0, len(numbers), BATCH):
        store.read_sentences(numbers[start : start + BATCH])


def scan(store: stores.Store, sentences: int) -> None:
    for batch in store.batches(1024, stop=sentences):
        batch.states[:1]


def read_plainly(paths: list[Path]) -> None:
    for path in paths:
        path.read_bytes()


def state_files(url: str, form: str) -> list[Path]:
    """Files of the states of a form, in order."""
    folder = Path(url) / (f"{layout.ZARR}/states/c" if form == "zarr" else layout.STATES)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def in_memory(paths: list[Path]) -> None:
    """Let the page cache hold the files."""
    read_plainly(paths)


def from_disk(paths: list[Path]) -> None:
    """Let the page cache forget the files."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def local(folder: Path, sizes: list[int], rounds: int, samples: int) -> None:
    """Random sentences out of memory and off the disk, and scans."""
    import h5py

    print("\nlocal disk: random sentences/s (one by one; 256 a call), scans of all states beside reading the files' bytes")
    columns = f"{'one by one':>11}{'x HDF5':>8}{'batched':>10}{'x HDF5':>8}{'scan MB/s':>11}{'of plain':>10}"
    print(f"{'sentences':>10} {'from':<7}{'form':<9}{columns}")
    for size in sizes:
        url = made(folder, Shape(size, CHANNELS))
        hdf5_path = folder / f"{size}x{CHANNELS}.hdf5"
        make_hdf5(hdf5_path, size, CHANNELS)
        random = np.random.default_rng(4)
        for place, prepare in (("memory", in_memory), ("disk", from_disk)):
            few = samples if place == "memory" else samples // 3
            with h5py.File(hdf5_path, "r") as hdf5:

                def from_hdf5(file: Any = hdf5, size: int = size, few: int = few, random: np.random.Generator = random) -> None:
                    for number in drawn(random, size, few):
                        file[str(number)][...]

                works: dict[str, Callable[[], Any]] = {"hdf5": from_hdf5}
                files = {"hdf5": [hdf5_path]}
                for form in layout.FORMS:
                    store = stores.open(url, form=form)
                    for name, work in ((f"{form} one", one_by_one), (f"{form} batched", batched)):
                        works[name] = partial(work, store, random, few)
                        files[name] = state_files(url, form)
                taken = in_turns(works, rounds, {name: partial(prepare, paths) for name, paths in files.items()})
            of_hdf5 = taken["hdf5"] / few
            print(f"{size:>10,} {place:<7}{'hdf5':<9}{1 / of_hdf5:>11,.0f}{1:>8.1f}")
            for form in layout.FORMS:
                one, many = taken[f"{form} one"] / few, taken[f"{form} batched"] / few
                line = f"{size:>10,} {place:<7}{form:<9}{1 / one:>11,.0f}{of_hdf5 / one:>8.1f}"
                line += f"{1 / many:>10,.0f}{of_hdf5 / many:>8.1f}"
                if place == "memory":
                    rates = scan_rates(url, form, rounds)
                    line += f"{rates[0]:>11,.0f}{rates[1]:>10.0%}"
                print(line, flush=True)


def scan_rates(url: str, form: str, rounds: int) -> tuple[float, float]:
    """MB/s of a scan of all states, and its share of the rate at which the files' bytes are read."""
    store = stores.open(url, form=form)
    paths = state_files(url, form)
    sentences = min(len(store), SCANNED)
    taken = in_turns({"scan": lambda: scan(store, sentences), "plain": lambda: read_plainly(paths)}, rounds)
    rows = store.sentence(sentences - 1).span[1]
    of_states = rows * len(store.states) * store.channels * store.dtype.itemsize
    of_files = sum(path.stat().st_size for path in paths)
    rate = of_states / taken["scan"]
    return rate / 1e6, rate / (of_files / taken["plain"])


def opening(folder: Path, sizes: list[int], rounds: int) -> None:
    """A process that opens a store and reads one sentence; a dataset of all its sentences."""
    from elmo_store.torch import SentenceDataset

    print("\na fresh process: import, then opening and the first sentence; SentenceDataset of all sentences")
    print(f"{'sentences':>10}{'import ms':>12}{'open+first ms':>15}{'peak MB':>10}{'dataset ms':>12}")
    for size in sizes:
        url = made(folder, Shape(size, CHANNELS))
        runs = []
        for _ in range(rounds):
            command = [sys.executable, "-c", OPEN, url, str(size // 2)]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            runs.append([float(value) for value in found])
        imported, first, peak, _ = (statistics.median(values) for values in zip(*runs, strict=True))
        store = stores.open(url)
        ready = statistics.median(seconds(partial(SentenceDataset, store)) for _ in range(rounds))
        print(f"{size:>10,}{imported * 1e3:>12.0f}{first * 1e3:>15.1f}{peak * 1.048576:>10.0f}{ready * 1e3:>12.2f}", flush=True)


def loader(folder: Path, rounds: int) -> None:
    """Mixed features by a DataLoader of two workers, in random order."""
    import torch
    from torch.utils.data import DataLoader

    from elmo_store.torch import ScalarMix, SentenceDataset, collate

    url = made(folder, WIDE)
    mix = ScalarMix(n_layers=3)
    print("\nDataLoader of 2 workers, 5 x 512 states in float16, shuffled, 64 sentences a batch, mixed to 1,024 in float32")
    print(f"{'items':<22}{'tokens/s':>10}")
    for name, text in (("vectors", False), ("vectors and text", True)):
        rates = []
        for _ in range(rounds):
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
        print(f"{name:<22}{statistics.median(rates):>10,.0f}", flush=True)


def made(folder: Path, shape: Shape) -> str:
    """Where the store of this shape lies, made if it is not there."""
    url = str(folder / shape.name)
    make_store(url, shape)
    return url


def main() -> int:
    """Make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="sentences (default: 10^4 10^5 10^6)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown (default: 3)")
    parser.add_argument("--samples", type=int, default=3000, help="random sentences a round (default: 3000)")
    parser.add_argument("--folder", type=Path, help="where stores lie, kept for the next run (default: a temporary one)")
    parser.add_argument("--make", action="store_true", help="make the stores and stop")
    args = parser.parse_args()
    for name in args.tables:
        if name not in TABLES:
            parser.error(f"no table {name!r}: known are {', '.join(TABLES)}")
    wanted = args.tables or TABLES
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if args.make:
            for size in args.sizes:
                made(folder, Shape(size, CHANNELS))
                make_hdf5(folder / f"{size}x{CHANNELS}.hdf5", size, CHANNELS)
            made(folder, WIDE)
            return 0
        print(f"{machine()}; medians of {args.rounds} rounds", flush=True)
        if "local" in wanted:
            local(folder, args.sizes, args.rounds, args.samples)
        if "open" in wanted:
            opening(folder, args.sizes, args.rounds)
        if "loader" in wanted:
            loader(folder, args.rounds)
        if "s3" in wanted:
            from benchmarks.store_remote import remote

            remote(folder)
        if "chunks" in wanted:
            from benchmarks.store_chunks import chunk_sizes

            chunk_sizes(folder, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
