"""What an export costs beside plain writing and beside h5py alone: ``python -m benchmarks.export`` prints a table.

A store of made-up float16 states (benchmarks.made_stores), exported in float32. `plain` writes as many bytes from memory to a
file of the same folder; `h5py` creates the same datasets from arrays that are in memory already. Every time includes the flush
to the disk (fsync), medians of --rounds in turns. Memory: peaks of the command itself, at a tenth of the tokens and at all of
them. Aims: without HDF5 at least half of plain's rate, HDF5 within 1.5 times h5py's own time, memory flat.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import Shape, make_store, pool, starts
from benchmarks.processes import elmo_store, machine, run_measured
from elmo_store.exports import FORMATS, export
from elmo_store.exports.vectors import AllLayers
from elmo_store.format.layout import state_names
from elmo_store.store import Store

TOKENS_A_SENTENCE = 13.5  # of made_stores
PIECE_BYTES = 1 << 22
HDF5_AIM, PLAIN_AIM = 1.5, 0.5


def flushed(folder: Path) -> int:
    """Flush every file below ``folder`` to the disk; their bytes."""
    total = 0
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        total += path.stat().st_size
    return total


def taken(folder: Path, work: Callable[[Path], None]) -> tuple[float, int]:
    """Seconds of ``work`` in an empty folder, with the flush, and the bytes it wrote there; removed again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()  # what others have left to write is not ours
    began = time.perf_counter()
    work(folder)
    n_bytes = flushed(folder)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds, n_bytes


def write_plainly(folder: Path, n_bytes: int) -> None:
    """``n_bytes`` of random numbers, piece by piece."""
    piece = np.random.default_rng(0).bytes(PIECE_BYTES)
    with (folder / "plain").open("wb") as file:
        for start in range(0, n_bytes, PIECE_BYTES):
            file.write(piece[: n_bytes - start])


def write_by_h5py(folder: Path, sentences: int, channels: int, name: str) -> None:
    """The datasets of format ``name`` from arrays at hand, under names as long as its own: h5py's cost."""
    import h5py

    put = {"elmoformanylangs": _put_each, "tfhub": _put_names, "e2e-coref": _put_last, "dygie": _put_last}.get(name, _put_one)
    states = pool(channels, "float16")
    layers = np.empty((3, 4096, 2 * channels), np.float32)
    AllLayers(state_names(2), channels).fill(states[:4096], layers)
    edges = starts(sentences).tolist()
    with h5py.File(folder / "plain.hdf5", "w") as file:
        for number in range(sentences):
            n = edges[number + 1] - edges[number]
            first = number * 31 % (4096 - n)
            put(file, str(number), layers[:, first : first + n])


def _put_one(file: Any, key: str, layers: Any) -> None:
    file.create_dataset(key, data=layers)


def _put_last(file: Any, key: str, layers: Any) -> None:
    file.create_dataset(key, data=layers.transpose(1, 2, 0))


def _put_each(file: Any, key: str, layers: Any) -> None:
    for layer, one in enumerate(layers):
        file.create_dataset(f"{layer}/{key:*^80}", data=one)  # 13 words


def _put_names(file: Any, key: str, layers: Any) -> None:
    group = file.create_group(key)
    group.create_dataset("word_emb", data=layers[0, :, : layers.shape[2] // 2])
    for name, one in (("lstm_outputs1", layers[1]), ("lstm_outputs2", layers[2]), ("elmo", layers[0]), ("default", layers[0, 0])):
        group.create_dataset(name, data=one)


def written(store: Store, folder: Path, name: str) -> None:
    """One export."""
    layers = "average" if FORMATS[name].one_vector else None
    export(store, folder / "out", name, layers=layers, dtype="float32", documents="source")


def peak_mib(store: Store, folder: Path, name: str) -> float:
    """Of the command."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--documents", "source"] if FORMATS[name].by_document else []
    command = elmo_store("export", store.url, "--format", name, "--output", str(folder / "out"), "--quiet", *options)
    found = run_measured(command).peak_bytes / (1 << 20)
    shutil.rmtree(folder)
    return found


def made(folder: Path, tokens: int, channels: int) -> Store:
    """A store of about so many tokens, made if it is not there."""
    shape = Shape(max(1, round(tokens / TOKENS_A_SENTENCE)), channels, forms=("zarr",))
    make_store(str(folder / shape.name), shape)
    return stores.open(folder / shape.name)


def rates(store: Store, folder: Path, names: list[str], rounds: int) -> bool:
    """Print times and rates; whether every aim holds."""
    holds = True
    print(f"{'format':<18}{'GB':>7}{'seconds':>9}{'MB/s':>8}{'beside':>8}{'seconds':>9}{'':>3}ratio")
    for name in names:
        hdf5 = FORMATS[name].module == "hdf5"
        ours: list[float] = []
        others: list[float] = []
        n_bytes = 0
        for _ in range(rounds):
            seconds, n_bytes = taken(folder, partial(written, store, name=name))
            ours.append(seconds)
            if hdf5:
                plain, _ = taken(folder, partial(write_by_h5py, sentences=store.n_sentences, channels=store.channels, name=name))
            else:
                plain, _ = taken(folder, partial(write_plainly, n_bytes=n_bytes))
            others.append(plain)
        mine, other = statistics.median(ours), statistics.median(others)
        shown = f"{mine / other:.2f} x time" if hdf5 else f"{other / mine:.0%} of rate"
        kept = mine / other <= HDF5_AIM if hdf5 else other / mine >= PLAIN_AIM
        holds &= kept
        print(
            f"{name:<18}{n_bytes / 1e9:>7.2f}{mine:>9.2f}{n_bytes / mine / 1e6:>8,.0f}"
            f"{'h5py' if hdf5 else 'plain':>8}{other:>9.2f}   {shown}{'' if kept else '  (not reached)'}",
            flush=True,
        )
    return holds


def main() -> int:
    """Make the stores, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", help=f"of {', '.join(FORMATS)} (default: all)")
    parser.add_argument("--tokens", type=int, default=10**6, help="of the store (default: 10^6)")
    parser.add_argument("--channels", type=int, default=512, help="of a state: half a layer (default: 512, as published)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown (default: 3)")
    parser.add_argument("--no-rates", action="store_true", help="memory only")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--make", action="store_true", help="make the stores and stop")
    parser.add_argument("--folder", type=Path, help="where stores and exports lie; stores are kept (default: a temporary one)")
    args = parser.parse_args()
    for name in args.formats:
        if name not in FORMATS:
            parser.error(f"no format {name!r}: known are {', '.join(FORMATS)}")
    names = args.formats or list(FORMATS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = [args.tokens // 10, args.tokens]
        found = [made(folder, tokens, args.channels) for tokens in sizes]
        if args.make:
            return 0
        what = f"{found[1].n_tokens:,} tokens, 5 states of {args.channels} in float16"
        print(f"{machine()}; {args.rounds} rounds; {what}", flush=True)
        if not args.no_rates:
            rates(found[1], folder / "export", names, args.rounds)
        if not args.no_memory:
            print(f"\npeak MiB of the command{'':>4}{sizes[0]:>12,}{sizes[1]:>12,} tokens")
            for name in names:
                small, large = (peak_mib(store, folder / "export", name) for store in found)
                print(f"{name:<18}{'':>9}{small:>12,.0f}{large:>12,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
