"""Stores on the local disk, in memory: sentences and scans, a shuffled DataLoader, collections."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader

import elmo_store as stores
from benchmarks.shared.support import Table, in_turns
from benchmarks.shared.texts import make_store
from elmo_store.collecting import collect
from elmo_store.torch import SentenceDataset, SentenceStream, collate

TOKENS, SAMPLES, BATCH, SCANNED, ROUNDS = 700_000, 3_200, 64, 256, 7
LOADER_SENTENCES, LOADER_ROUNDS = 12_800, 3
MEMBERS, MEMBER_TOKENS = 100, 120_000
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
            "one by one": lambda: [self.one(number) for number in random.integers(0, n_sentences, SAMPLES).tolist()],
            f"{BATCH} a call": lambda: [
                self.many(numbers) for numbers in random.integers(0, n_sentences, (SAMPLES // BATCH, BATCH)).tolist()
            ],
            "scan": lambda: [rows.view(np.int16).max() for rows in self.scan()],
        }


def of_store(store: stores.Store) -> Reader:
    """This package's own."""
    return Reader(
        lambda number: store.sentence(number).read(),
        store.read_sentences,
        lambda: (batch.states.transpose(1, 0, 2) for batch in store.batches(SCANNED)),  # as they lie in memory
    )


def for_training(store: stores.Store) -> Reader:
    """A dataset's items and padded batches, and a stream's batches."""
    data, stream = SentenceDataset(store, text=False), SentenceStream(store, text=False, batch_sentences=BATCH, shuffle=False)
    return Reader(
        data.__getitem__,
        lambda numbers: collate(data.__getitems__(numbers)),
        lambda: (batch["states"].permute(2, 0, 1, 3).numpy() for batch in stream),
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

    n = len(starts) - 1
    edges = [(int(starts[first]), int(starts[min(first + SCANNED, n)])) for first in range(0, n, SCANNED)]
    return Reader(lambda number: np.array(rows[starts[number] : starts[number + 1]]), many, lambda: (rows[a:b] for a, b in edges))


def of_arrow(folder: Path, rows: Any, starts: Any) -> Reader:
    """Hugging Face datasets: a row per sentence, its numbers one list of a mapped file."""
    import datasets

    if not folder.exists():
        lists = pa.LargeListArray.from_arrays(np.asarray(starts) * rows[0].size, pa.array(np.asarray(rows).reshape(-1)))
        datasets.Dataset(pa.table({"states": lists})).save_to_disk(folder)
    table = datasets.load_from_disk(str(folder)).with_format("arrow")

    def read(key: int | slice | list[int]) -> Any:
        return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in table[key].column("states").chunks])

    return Reader(read, read, lambda: (read(slice(first, first + SCANNED)) for first in range(0, len(table), SCANNED)))


def mapped_rows(folder: Path, store: stores.Readable) -> tuple[Any, Any]:
    """The store's rows and starts, each as one mapped file."""
    paths = [folder / f"{what}-{store.n_rows}x{store.channels}.npy" for what in ("rows", "starts")]
    if not paths[0].exists():
        np.save(paths[0], np.concatenate([batch.states for batch in store.batches(1024)]))
        np.save(paths[1], np.append(store.spans(range(len(store)))[:, 0], store.n_rows))
    rows, starts = (np.load(path, mmap_mode="r").view(np.ndarray) for path in paths)
    return rows, starts


def reading(folder: Path) -> None:
    """Random sentences and scans, of two widths."""
    for channels in (16, 128):
        store = make_store(folder, f"reading-{channels}", TOKENS, channels)
        rows, starts = mapped_rows(folder, store)
        readers = {"np.memmap": of_memmap(rows, starts), "the store": of_store(store)}
        readers |= {"SentenceDataset, Stream": for_training(store)}
        readers |= {"Hugging Face datasets": of_arrow(folder / f"arrow-{channels}", rows, starts)}
        works = {(name, what): work for name, own in readers.items() for what, work in own.works(len(store)).items()}
        taken = in_turns(works, ROUNDS, clock=time.process_time)
        amounts = {"one by one": SAMPLES, f"{BATCH} a call": SAMPLES // BATCH * BATCH, "scan": len(store)}
        columns = [column for what in amounts for column in (what, "of memmap")]
        table = Table(f"{len(store):,} sentences of 5 x {channels}, sentences/s of CPU time", "reader", *columns)
        for name in readers:
            rates = (
                (n / taken[name, what], f"{taken['np.memmap', what] / taken[name, what]:.2f}") for what, n in amounts.items()
            )
            table.row(name, *(cell for pair in rates for cell in pair))


def loader(folder: Path) -> None:
    """A shuffled DataLoader of 32, with the text and without."""
    store = make_store(folder, "reading-16", TOKENS, 16)
    store.texts(range(0, len(store), 64))  # what is read once stays in memory, also of workers that are forked
    title = f"DataLoader of 32, shuffled, {len(store):,} sentences of 5 x 16: sentences/s"
    table = Table(title, "workers", "with text", "without", "ratio")
    for workers in (0, 2):
        data = {text: SentenceDataset(store, text=text) for text in (True, False)}
        taken = in_turns({text: partial(_load, own, workers) for text, own in data.items()}, LOADER_ROUNDS)
        with_text, without = (LOADER_SENTENCES / taken[text] for text in (True, False))
        table.row(f"{workers}", with_text, without, f"{with_text / without:.2f}")


def _load(data: SentenceDataset, workers: int) -> None:
    chosen = torch.randperm(len(data))[:LOADER_SENTENCES].tolist()
    for _ in DataLoader(data, 32, sampler=chosen, num_workers=workers, collate_fn=collate):
        pass


def members(folder: Path) -> None:
    """A collection beside one store of the same sentences."""
    source, url = make_store(folder, "members", MEMBER_TOKENS, 64), str(folder / "collection")
    if not Path(url).exists():
        edges = np.linspace(0, len(source), MEMBERS + 1).astype(int)
        parts = [source.slice(first, stop).write(folder / f"member-{first}") for first, stop in pairwise(edges.tolist())]
        collect(url, parts)
    works: dict[tuple[str, str], Callable[[], object]] = {}
    for name, at in {"store": source.url, "members": url}.items():
        store = stores.open(at)
        works[name, "open"] = partial(stores.open, at)
        works |= {(name, what): work for what, work in of_store(store).works(len(store)).items()}
    taken = in_turns(works, ROUNDS, clock=time.process_time)
    table = Table(f"{MEMBERS} members beside one store, 5 x 64, ms of CPU time", "", "store", "members", "ratio")
    for what in dict.fromkeys(what for _, what in works):
        one, many = taken["store", what] * 1e3, taken["members", what] * 1e3
        table.row(what, one, many, f"{many / one:.2f}")
