"""Stores on the local disk, in memory: sentences and scans, a shuffled DataLoader, collections."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

import elmo_store as stores
from benchmarks.shared.made_stores import make_store
from benchmarks.shared.support import Table, in_turns
from elmo_store.collecting import collect
from elmo_store.torch import SentenceDataset, SentenceStream, collate
from elmo_store.torch.dataset import padded

SENTENCES, SAMPLES, BATCH, LOADED_BATCH, ROUNDS = 50_000, 3_200, 64, 32, 7
LOADED, LOADED_STORES, LOADER_SENTENCES, LOADER_ROUNDS = 100_000, (1, 30), 12_800, 5
IN_MEMBERS, MEMBER_WORDS = (
    90_000,
    100,
)  # sentences; words differ by member, and are few since each makes its own
Works = dict[str, Callable[[], object]]


class Reader(NamedTuple):
    """Reads a sentence by number, several at once, and all in order: arrays, each of which is looked at whole."""

    one: Callable[[int], Any]
    many: Callable[[list[int]], Any]
    scan: Callable[[], Iterable[Any]]

    def works(self, n_sentences: int) -> Works:
        """`SAMPLES` random sentences one by one, and `BATCH` a call; a scan."""
        random = np.random.default_rng(7)
        return {
            "one by one": lambda: [
                self.one(number) for number in random.integers(0, n_sentences, SAMPLES).tolist()
            ],
            f"{BATCH} a call": lambda: [
                self.many(numbers)
                for numbers in random.integers(0, n_sentences, (SAMPLES // BATCH, BATCH)).tolist()
            ],
            "scan": lambda: [rows.view(np.int16).max() for rows in self.scan()],
        }


def of_store(store: stores.Store) -> Reader:
    """This package's own."""
    return Reader(
        lambda number: store.sentence(number).read(),
        store.read_sentences,
        lambda: (
            batch.states.transpose(1, 0, 2) for batch in store.batches(BATCH)
        ),  # as they lie in memory
    )


def of_memmap(rows: Any, starts: Any) -> Reader:
    """One array of the rows; sentences are looked up in one array of their starts."""

    def many(numbers: list[int]) -> Any:
        spans = np.stack([starts[numbers], starts[np.array(numbers) + 1]], axis=1)
        offsets = np.append(0, np.cumsum(spans[:, 1] - spans[:, 0]))
        out = np.empty((int(offsets[-1]), *rows.shape[1:]), rows.dtype)
        for (first, stop), place in zip(spans.tolist(), offsets.tolist(), strict=False):
            out[place : place + stop - first] = rows[first:stop]
        return out

    def scan() -> Iterable[Any]:
        for first in range(0, len(starts) - 1, BATCH):
            yield rows[starts[first] : starts[min(first + BATCH, len(starts) - 1)]]

    return Reader(lambda number: np.array(rows[starts[number] : starts[number + 1]]), many, scan)


def arrow_rows(folder: Path, rows: Any, starts: Any, **columns: Any) -> Any:
    """A dataset of Hugging Face: a row per sentence, its numbers one list of a mapped file."""
    import datasets

    if not folder.exists():
        lists = pa.LargeListArray.from_arrays(
            np.asarray(starts) * rows[0].size, pa.array(np.asarray(rows).reshape(-1))
        )
        datasets.Dataset(pa.table({**columns, "states": lists})).save_to_disk(folder)
    return datasets.load_from_disk(str(folder))


def of_arrow(folder: Path, rows: Any, starts: Any) -> Reader:
    """Hugging Face datasets."""
    table = arrow_rows(folder, rows, starts).with_format("arrow")

    def read(key: int | slice | list[int]) -> Any:
        return np.concatenate(
            [
                chunk.flatten().to_numpy(zero_copy_only=False)
                for chunk in table[key].column("states").chunks
            ]
        )

    return Reader(
        read,
        read,
        lambda: (read(slice(first, first + BATCH)) for first in range(0, len(table), BATCH)),
    )


def of_lance(folder: Path, rows: Any, starts: Any) -> Reader:
    """Lance (pip install pylance): a row per sentence, its numbers as bytes."""
    import lance

    path = f"{folder}.lance"
    if not Path(path).exists():
        offsets = np.asarray(starts, np.int64) * rows[0].nbytes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
        lance.write_dataset(
            pa.table(
                {"states": pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers)}
            ),
            path,
        )
    data = lance.dataset(path)

    def read(numbers: list[int]) -> Any:
        return np.frombuffer(
            data.take(numbers, columns=["states"])["states"].chunk(0).buffers()[2], np.float16
        )

    def scan() -> Iterable[Any]:
        for batch in data.to_batches(batch_size=BATCH):
            yield np.frombuffer(batch.column("states").buffers()[2], np.float16)

    return Reader(lambda number: read([number]), read, scan)


def mapped_rows(folder: Path, store: stores.Store) -> tuple[Any, Any]:
    """The store's rows and starts, each as one mapped file."""
    paths = [folder / f"{what}-{store.n_rows}x{store.channels}.npy" for what in ("rows", "starts")]
    if not paths[0].exists():
        np.save(paths[0], np.concatenate([batch.states for batch in store.batches(1024)]))
        np.save(paths[1], np.append(store._view.spans(range(len(store)))[:, 0], store.n_rows))
    rows, starts = (np.load(path, mmap_mode="r").view(np.ndarray) for path in paths)
    return rows, starts


def reading(folder: Path) -> None:
    """Random sentences and scans, of two widths; and what PyTorch's datasets give, beside the same of the store itself."""
    for channels in (16, 128):
        store = stores.open(make_store(folder, SENTENCES, channels))
        rows, starts = mapped_rows(folder, store)
        readers = {"np.memmap": of_memmap(rows, starts), "the store": of_store(store)}
        readers |= {"Hugging Face datasets": of_arrow(folder / f"arrow-{channels}", rows, starts)}
        if find_spec("lance") is not None:
            readers["Lance"] = of_lance(folder / f"rows-{channels}", rows, starts)
        works = {
            (name, what): work
            for name, own in readers.items()
            for what, work in own.works(SENTENCES).items()
        }
        taken = in_turns(works, ROUNDS, clock=time.process_time)
        amounts = {
            "one by one": SAMPLES,
            f"{BATCH} a call": SAMPLES // BATCH * BATCH,
            "scan": SENTENCES,
        }
        columns = [column for what in amounts for column in (what, "of memmap")]
        table = Table(
            f"{SENTENCES:,} sentences of 5 x {channels}, sentences/s of CPU time",
            "reader",
            *columns,
        )
        for name in readers:
            rates = (
                (n / taken[name, what], f"{taken['np.memmap', what] / taken[name, what]:.2f}")
                for what, n in amounts.items()
            )
            table.row(name, *(cell for pair in rates for cell in pair))
        for_training(store)


def for_training(store: stores.Store) -> None:
    """What PyTorch's datasets give, without text, beside the store itself, in turns; all of them copy rows."""
    data, random = SentenceDataset(store, text=False), np.random.default_rng(7)
    stream, whole = (
        SentenceStream(store, text=False, batch_sentences=BATCH),
        Sentences(store.read_sentences),
    )

    def calls(n: int, sentences: int) -> Iterable[list[int]]:
        numbers = random.integers(0, SENTENCES, n).tolist()
        return (numbers[first : first + sentences] for first in range(0, n, sentences))

    def some() -> list[int]:
        return next(iter(calls(SAMPLES, SAMPLES)))

    def read(number: int) -> Any:
        return store.sentence(number).read()

    # The dataset, the store, and what PyTorch alone makes of the store's: its tensor, its DataLoader's loop.
    kinds: list[tuple[str, int, list[Callable[[], Iterable[object]]]]] = [
        ("SentenceDataset, one by one", SAMPLES, [
            lambda: map(data.__getitem__, some()),
            lambda: map(read, some()),
            lambda: map(torch.from_numpy, map(read, some())),
        ]),
        (f"DataLoader of {LOADED_BATCH}, {LOADED_BATCH} a call", SAMPLES, [
            lambda: DataLoader(data, LOADED_BATCH, sampler=some(), collate_fn=collate),
            lambda: map(store.read_sentences, calls(SAMPLES, LOADED_BATCH)),
            lambda: DataLoader(whole, None, sampler=list(calls(SAMPLES, LOADED_BATCH)), collate_fn=lambda batch: batch),
        ]),
        (f"SentenceStream, {BATCH} a call", SENTENCES, [
            lambda: stream,
            lambda: map(store.read_sentences, calls(SENTENCES, BATCH)),
        ]),
        (f"SentenceStream, a scan by {BATCH}", SENTENCES, [
            lambda: stream,
            lambda: (rows.copy("K") for batch in store.batches(BATCH) for _, rows in batch),
        ]),
    ]  # fmt: skip
    title = f"datasets of 5 x {store.channels} beside the store: random sentences; a scan in their order, copied one by one"
    table = Table(
        title,
        "sentences/s of CPU time",
        "dataset",
        "the store",
        "ratio",
        "PyTorch's own",
        label_width=36,
    )
    for kind, n, items in kinds:
        taken = in_turns(
            {i: partial(_drained, work) for i, work in enumerate(items)},
            ROUNDS,
            clock=time.process_time,
        )
        ratios = [f"{taken[1] / taken[i]:.2f}" if i in taken else "" for i in (0, 2)]
        table.row(kind, n / taken[0], n / taken[1], *ratios)


def _drained(items: Callable[[], Iterable[object]]) -> None:
    deque(items(), maxlen=0)


class Sentences(Dataset[Any]):
    """``LOADED`` sentences that a function reads by number."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return LOADED

    def __getitem__(self, number: Any) -> Any:
        return self.read(number)


def arrow_sentences(folder: Path, store: stores.Store, rows: Any, starts: Any) -> Sentences:
    """Sentences and their tokens of Hugging Face datasets."""
    table = arrow_rows(folder, rows, starts, tokens=store.table(["tokens"])["tokens"]).with_format(
        "numpy"
    )
    return Sentences(
        lambda number: table[number]["states"].reshape(-1, *rows.shape[1:])
    )  # the row is read with its tokens


def loader(folder: Path) -> None:
    """A shuffled DataLoader of 32, with the text and without."""
    title = "DataLoader of 32, shuffled, 5 x 16: sentences/s"
    table = Table(
        title,
        "sentences, workers",
        "with text",
        "without",
        "ratio",
        "memmap",
        "datasets",
        label_width=22,
    )
    for n_stores in LOADED_STORES:
        made = [
            stores.open(make_store(folder, LOADED, 16, words=20_000 + number))
            for number in range(n_stores)
        ]
        store, others = made[0], dict[str, Any]()
        if n_stores == 1:
            rows, starts = mapped_rows(folder, store)
            others = {"memmap": Sentences(of_memmap(rows, starts).one)}
            others["datasets"] = arrow_sentences(folder / "arrow-text", store, rows, starts)
        elif (folder / "loaded").exists():
            store = stores.open(folder / "loaded")
        else:
            collect(str(folder / "together"), made)
            together = stores.open(folder / "together")
            store = together[: n_stores * LOADED].write(folder / "loaded")
        # What is read once stays in memory, also of workers that are forked.
        store._view.texts(range(0, len(store), 64))
        data = {"text": SentenceDataset(store), "none": SentenceDataset(store, text=False)} | others
        for workers in (0, 2):
            taken = in_turns(
                {name: partial(_load, own, workers) for name, own in data.items()}, LOADER_ROUNDS
            )
            rates = {name: LOADER_SENTENCES / seconds for name, seconds in taken.items()}
            row = rates["text"], rates["none"], f"{rates['text'] / rates['none']:.2f}"
            table.row(
                f"{len(store):,}, {workers}",
                *row,
                *(rates.get(name, "") for name in ("memmap", "datasets")),
            )


def _load(data: Any, workers: int) -> None:
    chosen = np.random.default_rng().integers(0, len(data), LOADER_SENTENCES).tolist()
    together = (
        collate
        if isinstance(data, SentenceDataset)
        else lambda items: padded(list(map(torch.from_numpy, items)))
    )
    _drained(
        lambda: DataLoader(
            data, LOADED_BATCH, sampler=chosen, num_workers=workers, collate_fn=together
        )
    )


def members(folder: Path) -> None:
    """A collection beside one store of the same sentences."""
    for n_members in (100, 1000):
        url, made = (
            str(folder / f"collection-{n_members}"),
            partial(make_store, folder, channels=64, shard_rows=4096),
        )
        collect(
            url,
            [
                stores.open(made(IN_MEMBERS // n_members, words=MEMBER_WORDS + i))
                for i in range(n_members)
            ],
        )
        works: dict[tuple[str, str], Callable[[], object]] = {}
        for name, at in {"store": made(IN_MEMBERS), "members": url}.items():
            store = stores.open(at)
            works[name, "open"] = partial(stores.open, at)
            works |= {
                (name, what): work for what, work in of_store(store).works(len(store)).items()
            }
        taken = in_turns(works, ROUNDS, clock=time.process_time)
        table = Table(
            f"{n_members} members beside one store, 5 x 64, ms of CPU time",
            "",
            "store",
            "members",
            "ratio",
        )
        for what in dict.fromkeys(what for _, what in works):
            one, many = taken["store", what] * 1e3, taken["members", what] * 1e3
            table.row(what, one, many, f"{many / one:.2f}")
