"""Rows in memory as training reads them, by CPU time, which the load of a shared machine moves less; and a loader's features."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import elmo_store as stores
from benchmarks.shared.made_stores import Shape, make_store
from benchmarks.shared.support import Table, in_turns
from benchmarks.store.local import ROUNDS, WIDE
from benchmarks.store.readers import Reader, for_training, of_store, readers
from elmo_store.format.layout import LAYOUTS

TRAINED = Shape(50_000, channels=128, forms=("zarr",))
SAMPLES, BATCH, CPU_ROUNDS = 6_400, 64, 9
TITLE = "50,000 sentences of 5 x 128 in float16 from memory, one process: sentences/s of its CPU time"
TITLE += f", medians of {CPU_ROUNDS} rounds"
WORKS = {"one": "one by one", "many": f"{BATCH} a call", "scan": "scan"}


def _opened(folder: Path) -> dict[str, stores.Store]:
    return {name: stores.open(make_store(folder, replace(TRAINED, layout=name))) for name in LAYOUTS}


def _cpu_seconds(compared: Mapping[str, Reader], n_sentences: int) -> dict[tuple[str, str], float]:
    """Of each reader's works."""
    works = {(name, what): work for name, r in compared.items() for what, work in r.works(n_sentences, SAMPLES, BATCH).items()}
    return in_turns(works, CPU_ROUNDS, clock=time.process_time)


def training(folder: Path) -> None:
    """Random sentences and scans beside np.memmap and an Arrow file."""
    store, by_row = _opened(folder).values()
    compared = readers(folder, store, by_row)
    taken = _cpu_seconds(compared, len(store))
    amounts = {"one": SAMPLES, "many": SAMPLES, "scan": store.n_rows * store.manifest.row_bytes / 1e9}
    table = Table(TITLE, "reader", "one by one", "of memmap", f"{BATCH} a call", "of memmap", "scan GB/s", "of memmap")
    for name in compared:
        rates = ((amounts[what] / taken[name, what], taken["np.memmap", what] / taken[name, what]) for what in amounts)
        table.row(name, *(cell for pair in rates for cell in pair))


def layouts(folder: Path) -> None:
    """Both layouts: random sentences and scans, of all states and of one."""
    opened = _opened(folder)
    kinds: dict[str, Callable[[stores.Store], Reader]] = {
        "all states": of_store,
        "one state": partial(of_store, states="fwd2"),
        "SentenceDataset, Stream": for_training,
    }
    n = TRAINED.sentences
    taken = _cpu_seconds({f"{name} {of}": reader(store) for name, store in opened.items() for of, reader in kinds.items()}, n)
    table = Table(TITLE, "", "states", "rows", "rows : states", label_width=36)
    for of in kinds:
        for what, amount in (("one", SAMPLES), ("many", SAMPLES), ("scan", n)):
            rates = [amount / taken[f"{name} {of}", what] for name in LAYOUTS]
            table.row(f"{of}, {WORKS[what]}", *rates, rates[1] / rates[0])


def loader(folder: Path) -> None:
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
