"""What a store on an S3-compatible server is asked for: the table ``s3`` of benchmarks.store. Needs moto[server] and s3fs."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import Shape, make_store
from benchmarks.s3 import Traffic, counted, server

# Few sentences, since moto reads the whole object for each range of it; wide, so that vectors outweigh the tables that lead to
# them, and narrow as on the local disk.
SHAPES = (Shape(600, channels=512, forms=("zarr",)), Shape(600, channels=512, forms=("parquet",)), Shape(2_000))
SENTENCES = 6
BATCH = 16


def remote(folder: Path) -> None:
    """Copy stores to a server on loopback, read cold and warm sentences, print rounds, requests and bytes a sentence."""
    import fsspec

    print("\nS3-compatible server on loopback, medians: a cold sentence (a store just opened), a warm one beside it")
    head = f"{'in sequence':>12}{'requests':>10}{'bytes':>12}{'of wanted':>11}{'ms':>9}"
    print(f"{'states':<12}{'form':<9}{'sentence':<11}{head}")
    with server() as bucket:
        for shape in SHAPES:
            local = folder / shape.name
            make_store(str(local), shape)
            filesystem = fsspec.filesystem("s3", skip_instance_cache=False)
            url = f"{bucket}/{shape.name}"
            filesystem.put(str(local), url, recursive=True)
            traffic = counted(stores.open(url).root.filesystem)
            for form in shape.forms:
                rows = measured(url, form, traffic)
                for name, (rounds, requests, n_bytes, share, spent) in rows.items():
                    asked = f"{rounds:>12g}{requests:>10g}{n_bytes:>12,.0f}{share:>11.2f}"
                    print(f"{f'5 x {shape.channels}':<12}{form:<9}{name:<11}{asked}{spent * 1e3:>9.1f}", flush=True)
            filesystem.rm(url, recursive=True)


def measured(url: str, form: str, traffic: Traffic) -> dict[str, tuple[float, ...]]:
    """Rounds, requests, bytes, bytes / bytes wanted and seconds of a cold and of a warm sentence, and of a batch."""
    size = len(stores.open(url))
    numbers = np.random.default_rng(5).integers(0, size, SENTENCES).tolist()
    cold, warm = [], []
    for number in numbers:
        store = stores.open(url, form=form)
        cold.append(once(partial(sentence, store, number), traffic))
        beside = number + 1 if number + 1 < size else number - 1
        warm.append(once(partial(sentence, store, beside), traffic))
    store = stores.open(url, form=form)
    many = np.random.default_rng(6).integers(0, size, BATCH)
    store.read_sentences(many)
    batch = once(lambda: store.read_sentences(many + 1 - 2 * (many + 1 == size)).states, traffic)
    return {"cold": medians(cold), "warm": medians(warm), f"{BATCH} a call": batch}


def sentence(store: stores.Store, number: int) -> Any:
    return store.sentence(number).read()


def once(work: Callable[[], Any], traffic: Traffic) -> tuple[float, ...]:
    """One call: rounds, requests, bytes, bytes / bytes of its result, seconds."""
    traffic.reset()
    began = time.perf_counter()
    wanted = work().nbytes
    spent = time.perf_counter() - began
    return traffic.rounds, traffic.requests, traffic.bytes, traffic.bytes / wanted, spent


def medians(runs: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.median(values) for values in zip(*runs, strict=True))
