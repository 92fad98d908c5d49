"""Readers that are compared: this package's, np.memmap, and Hugging Face's Arrow file; and what they are asked for."""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import elmo_store as stores
from elmo_store.torch import SentenceDataset, SentenceStream, collate

SCAN_SENTENCES = 1024
STREAM_SENTENCES = 64
Works = dict[str, Callable[[], object]]


class Reader(NamedTuple):
    """Reads a sentence by number, several at once, and all in order."""

    one: Callable[[int], Any]
    many: Callable[[list[int]], Any]
    scan: Callable[[], Iterable[Any]]

    def works(self, n_sentences: int, samples: int, batch: int) -> Works:
        """So many random sentences one by one ("one") and ``batch`` a call ("many"), and a scan ("scan")."""
        random = np.random.default_rng(7)

        def drawn(*shape: int) -> Any:
            return random.integers(0, n_sentences, shape).tolist()

        return {
            "one": lambda: deque(map(self.one, drawn(samples)), 0),
            "many": lambda: deque(map(self.many, drawn(samples // batch, batch)), 0),
            "scan": lambda: deque(self.scan(), 0),
        }


def of_store(store: stores.Store, states: str | None = None, raw: bool = False) -> Reader:
    """This package's own, of all states or of one; ``raw``: as they are stored."""
    return Reader(
        lambda number: store.sentence(number).read_raw() if raw else store.sentence(number).read(states),
        lambda numbers: store.read_sentences(numbers, states=states, raw=raw),
        lambda: (batch.states[:1] for batch in store.batches(SCAN_SENTENCES, states, raw=raw)),
    )


def for_training(store: stores.Store) -> Reader:
    """A dataset's items and padded batches, and a stream's batches, of all states."""
    data = SentenceDataset(store, text=False)
    stream = SentenceStream(store, text=False, batch_sentences=STREAM_SENTENCES)
    return Reader(data.__getitem__, lambda numbers: collate(data.__getitems__(numbers)), lambda: stream)


def readers(folder: Path, store: stores.Store) -> dict[str, Reader]:
    """By name; the first is np.memmap. Files of the store's rows are written to ``folder``."""
    edges = [*store.spans(range(len(store)))[:, 0].tolist(), store.n_rows]
    shape = store.n_rows, len(store.states), store.channels
    path = folder / f"rows-{'x'.join(map(str, shape))}.bin"
    if not path.exists():
        with path.open("wb") as file:
            for batch in store.batches(SCAN_SENTENCES):
                file.write(np.ascontiguousarray(batch.states).data)
    rows = np.memmap(path, store.dtype, "r", shape=shape)
    return {
        "np.memmap": _memmap(rows, edges),
        "datasets' Arrow file": _arrow(folder / f"arrow-{path.stem}", rows, edges),
        "the store": of_store(store),
        "SentenceDataset, Stream": for_training(store),
    }


def _memmap(rows: Any, edges: list[int]) -> Reader:
    def one(number: int) -> Any:
        return np.array(rows[edges[number] : edges[number + 1]])

    def scan() -> Iterable[Any]:
        for first in range(0, len(edges) - 1, SCAN_SENTENCES):
            yield np.array(rows[edges[first] : edges[min(first + SCAN_SENTENCES, len(edges) - 1)]])

    return Reader(one, lambda numbers: np.concatenate([rows[edges[i] : edges[i + 1]] for i in numbers]), scan)


def _arrow(folder: Path, rows: Any, edges: list[int]) -> Reader:
    """A row a sentence, its numbers one list of a file that is mapped into memory."""
    import datasets

    if not folder.exists():
        numbers = pa.array(np.asarray(rows).reshape(-1))
        lists = pa.LargeListArray.from_arrays(np.array(edges, np.int64) * rows[0].size, numbers)
        datasets.Dataset(pa.table({"states": lists})).save_to_disk(folder)
    table = datasets.load_from_disk(str(folder)).with_format("arrow")

    def read(key: int | slice | list[int]) -> Any:
        column = table[key].column("states")
        return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks])

    def scan() -> Iterable[Any]:
        return (read(slice(first, first + SCAN_SENTENCES)) for first in range(0, len(table), SCAN_SENTENCES))

    return Reader(read, read, scan)
