"""Rows in memory as training reads them, by CPU time, which the load of a shared machine moves less; and a loader's features."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import elmo_store as stores
from benchmarks.shared.made_stores import Shape, make_store
from benchmarks.shared.support import Table, in_turns
from benchmarks.store.local import ROUNDS, WIDE
from benchmarks.store.readers import Reader, readers

TRAINED = Shape(50_000, channels=128, forms=("zarr",))
SAMPLES, BATCH, CPU_ROUNDS = 6_400, 64, 9
TITLE = "50,000 sentences of 5 x 128 in float16 from memory, one process: sentences/s of its CPU time"
TITLE += f", medians of {CPU_ROUNDS} rounds"


def _cpu_seconds(compared: Mapping[str, Reader], n_sentences: int) -> dict[tuple[str, str], float]:
    """Of each reader's works."""
    works = {(name, what): work for name, r in compared.items() for what, work in r.works(n_sentences, SAMPLES, BATCH).items()}
    return in_turns(works, CPU_ROUNDS, clock=time.process_time)


def training(folder: Path) -> None:
    """Random sentences and scans beside np.memmap and an Arrow file."""
    store = stores.open(make_store(folder, TRAINED))
    compared = readers(folder, store)
    taken = _cpu_seconds(compared, len(store))
    amounts = {"one": SAMPLES, "many": SAMPLES, "scan": store.n_rows * store.manifest.row_bytes / 1e9}
    table = Table(TITLE, "reader", "one by one", "of memmap", f"{BATCH} a call", "of memmap", "scan GB/s", "of memmap")
    for name in compared:
        rates = ((amounts[what] / taken[name, what], taken["np.memmap", what] / taken[name, what]) for what in amounts)
        table.row(name, *(cell for pair in rates for cell in pair))


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
