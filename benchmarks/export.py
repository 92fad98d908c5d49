"""What an export costs beside plain writing and beside h5py alone: ``python -m benchmarks.export [FORMAT…]`` prints tables.

A store of made-up float16 states, exported in float32. `plain` writes as many bytes from memory to a file of the same folder;
`h5py` creates the same datasets from arrays that are in memory already. Every time includes the flush to the disk (fsync),
medians of three rounds in turns. Memory: peaks of the command itself, at a tenth of the tokens and at all of them. Aims: without
HDF5 at least half of plain's rate, HDF5 within 1.5 times h5py's own time, memory flat.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.shared.made_stores import Shape, make_store, pool, starts
from benchmarks.shared.support import Table, in_turns, machine, options_of, run_measured, working_folder
from elmo_store.exports import FORMATS, export
from elmo_store.exports.work import all_layers
from elmo_store.format.layout import state_names

PLAIN_BYTES = 1 << 22  # of a write
HDF5_AIM, PLAIN_AIM = 1.5, 0.5
ROUNDS = 3
ROWS = 4096  # of the arrays that h5py writes over and over


def empty(folder: Path) -> None:
    """An empty folder; what others have left to write is on the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()


def flushed(folder: Path, work: Callable[[Path], object]) -> int:
    """``work`` in the folder, and all that it wrote there on the disk: so many bytes."""
    work(folder)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return sum(path.stat().st_size for path in paths)


def write_plainly(folder: Path, n_bytes: int) -> None:
    """``n_bytes`` of random numbers."""
    data = np.random.default_rng(0).bytes(PLAIN_BYTES)
    with (folder / "plain").open("wb") as file:
        for start in range(0, n_bytes, PLAIN_BYTES):
            file.write(data[: n_bytes - start])


def write_by_h5py(folder: Path, sentences: int, channels: int, name: str) -> None:
    """The datasets of format ``name`` from arrays at hand, under names as long as its own: h5py's cost."""
    import h5py

    layers = np.empty((3, ROWS, 2 * channels), np.float32)
    all_layers(state_names(2), channels).fill(pool(channels)[:ROWS].astype(np.float16), layers)
    edges = starts(sentences).tolist()
    with h5py.File(folder / "plain.hdf5", "w") as file:
        for number in range(sentences):
            n = edges[number + 1] - edges[number]
            first = number * 31 % (ROWS - n)
            for key, data in datasets(name, str(number), layers[:, first : first + n]):
                file.create_dataset(key, data=data)


def datasets(name: str, key: str, layers: Any) -> list[tuple[str, Any]]:
    """Name and array of each dataset of one sentence, ``layers`` [L+1, n, 2p]."""
    if name == "elmoformanylangs":
        return [(f"{layer}/{key:*^80}", vectors) for layer, vectors in enumerate(layers)]  # 13 words
    if name == "tfhub":
        words = ("word_emb", layers[0, :, : layers.shape[2] // 2])
        others = (("lstm_outputs1", layers[1]), ("lstm_outputs2", layers[2]), ("elmo", layers[0]), ("default", layers[0, 0]))
        return [(f"{key}/{part}", vectors) for part, vectors in (words, *others)]
    return [(key, layers.transpose(1, 2, 0) if name in ("e2e-coref", "dygie") else layers)]


def measured(store: stores.Store, folder: Path, name: str) -> tuple[float, float, int]:
    """Seconds of format ``name``, and of what it is held against; bytes."""
    sizes: list[int] = []

    def ours() -> None:
        layers = "average" if FORMATS[name].one_vector else None
        write = partial(export, store, format=name, layers=layers, dtype="float32")
        sizes.append(flushed(folder, lambda at: write(output=at / "out")))

    def others() -> None:
        by_h5py = partial(write_by_h5py, sentences=store.n_sentences, channels=store.channels, name=name)
        flushed(folder, by_h5py if FORMATS[name].writer.startswith("hdf5.") else partial(write_plainly, n_bytes=sizes[-1]))

    works = {"ours": ours, "others": others}
    taken = in_turns(works, ROUNDS, dict.fromkeys(works, partial(empty, folder)))
    return taken["ours"], taken["others"], sizes[-1]


def rates(store: stores.Store, folder: Path, names: list[str]) -> None:
    """Times and rates, each beside what it is held against."""
    title = f"{store.n_tokens:,} tokens, 5 states of {store.channels} in float16; {ROUNDS} rounds"
    table = Table(title, "format", "GB", "seconds", "MB/s", "beside", "seconds", "ratio", "aim")
    for name in names:
        ours, others, n_bytes = measured(store, folder, name)
        ratio, hdf5 = ours / others, FORMATS[name].writer.startswith("hdf5.")
        kind = ("h5py", f"{ratio:.2f} x time") if hdf5 else ("plain", f"{1 / ratio:.0%} of rate")
        reached = "holds" if ratio <= (HDF5_AIM if hdf5 else 1 / PLAIN_AIM) else "not reached"
        table.row(name, n_bytes / 1e9, ours, n_bytes / ours / 1e6, kind[0], others, kind[1], reached)


def peak_mib(store: stores.Store, folder: Path, name: str) -> float:
    """Of the command."""
    empty(folder)
    command = ("export", store.url, "--format", name, "--output", str(folder / "out"), "--quiet")
    return run_measured(*command).peak_bytes / 2**20


def main() -> None:
    parser = options_of(__doc__, list(FORMATS), folder=True)
    parser.add_argument("--tokens", type=int, default=10**6, help="of the store (default: 10^6)")
    parser.add_argument("--channels", type=int, default=512, help="of a state: half a layer (default: 512, as published)")
    args = parser.parse_args()
    with working_folder(args.folder) as folder:
        sizes = (args.tokens // 10, args.tokens)
        small, large = (stores.open(make_store(folder, Shape.of_tokens(tokens, args.channels))) for tokens in sizes)
        print(machine(), flush=True)
        rates(large, folder / "export", args.tables)
        table = Table("peak MiB of the command", "format", *(f"{size:,} tokens" for size in sizes))
        for name in args.tables:
            table.row(name, *(peak_mib(store, folder / "export", name) for store in (small, large)))
        shutil.rmtree(folder / "export")


if __name__ == "__main__":
    main()
