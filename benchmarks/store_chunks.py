"""Sizes of inner chunks and of row groups compared: the table ``chunks`` of benchmarks.store."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

import elmo_store as stores
from benchmarks.made_stores import LAYERS, Shape, make_store, pool, pool_rows
from elmo_store.format import layout
from elmo_store.forms import parquet_form, zarr_shard

CHUNKS = (64, 128, 256, 512)
ROW_GROUPS = (64, 128, 256, 512, 1024)
SENTENCES = 2_000
CHANNELS = 512
SHARD_ROWS = 16_384
SAMPLES = 20


class CountingStore(LocalStore):
    """A folder for zarr, with a count of the requests and of the bytes that it gave out."""

    requests = 0
    bytes = 0

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As LocalStore."""
        found = await super().get(key, prototype, byte_range)
        self.requests += 1
        self.bytes += 0 if found is None else len(found)
        return found


def median_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median of some calls, after one that does not count."""
    taken = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        work()
        if number:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def chunk_sizes(folder: Path, rounds: int) -> None:
    """Both tables."""
    states = pool_rows(pool(CHANNELS, "float16"), 0, SHARD_ROWS)  # [rows, 2L+1, channels]
    print("\ninner chunks, 5 x 512 states in float16, shards of 16,384 rows: one sentence, and a scan, by zarr itself")
    moved = f"{'requests':>10}{'bytes moved':>13}{'of wanted':>11}{'ms':>7}"
    print(f"{'rows':>6}{'index bytes':>13}{moved}{'scan MB/s':>11}{'encode MB/s':>13}")
    for rows in CHUNKS:
        shape = Shape(SENTENCES, channels=CHANNELS, forms=("zarr",), chunk_rows=rows)
        url = str(folder / shape.name)
        make_store(url, shape)
        index = zarr_shard.index_bytes(SHARD_ROWS // rows, 2 * LAYERS + 1)
        one = partial(zarr_shard.encode, states, shard_rows=SHARD_ROWS, chunk_rows=rows, compression="none")
        encode = median_seconds(one, rounds)
        requests, n_bytes, share, spent = by_zarr(url)
        array = zarr.open_array(LocalStore(f"{url}/{layout.ZARR}/states", read_only=True), mode="r")
        whole = median_seconds(partial(array.__getitem__, slice(SHARD_ROWS)), rounds)
        size = states[: min(SHARD_ROWS, array.shape[0])].nbytes
        print(
            f"{rows:>6}{index:>13,}{requests:>10g}{n_bytes:>13,.0f}{share:>11.1f}{spent * 1e3:>7.1f}{size / whole / 1e6:>11,.0f}"
            f"{states.nbytes / encode / 1e6:>13,.0f}",
            flush=True,
        )
    print("\nrow groups of the Parquet form, the same states: a sentence and a scan by this package; footer and encoding")
    print(f"{'rows':>6}{'footer bytes':>14}{'ms a sentence':>15}{'scan MB/s':>11}{'encode MB/s':>13}")
    for rows in ROW_GROUPS:
        print(row_group_line(folder, rows, states, rounds), flush=True)


def row_group_line(folder: Path, rows: int, states: Any, rounds: int) -> str:
    """One line of the second table."""
    import pyarrow.parquet as pq

    shape = Shape(SENTENCES, channels=CHANNELS, forms=("parquet",))
    url = str(folder / f"{shape.name}-groups-{rows}")
    with patch.object(layout, "ROW_GROUP_ROWS", rows):
        make_store(url, shape)
        store = stores.open(url)
        numbers = np.arange(SHARD_ROWS)
        shard = (states, ["word"] * SHARD_ROWS, numbers, numbers.astype(np.int32))
        encode = median_seconds(lambda: parquet_form.encode_shard(store.manifest, 0, *shard), 1)
    footer = pq.read_metadata(f"{url}/{layout.states_part(0)}").serialized_size
    wanted = np.random.default_rng(7).integers(0, SENTENCES, SAMPLES).tolist()
    one = median_seconds(lambda: [store.sentence(number).read() for number in wanted], rounds) / SAMPLES
    whole = median_seconds(lambda: [batch.states for batch in store.batches(1024)], rounds)
    size = store.n_rows * states[0].nbytes
    return f"{rows:>6}{footer:>14,}{one * 1e3:>15.2f}{size / whole / 1e6:>11,.0f}{states.nbytes / encode / 1e6:>13,.0f}"


def by_zarr(url: str) -> tuple[float, ...]:
    """Medians of one sentence by zarr itself: requests, bytes moved, bytes moved / wanted, seconds."""
    store = stores.open(url)
    files = CountingStore(f"{url}/{layout.ZARR}/states", read_only=True)
    array = zarr.open_array(files, mode="r")
    runs = []
    for number in np.random.default_rng(7).integers(0, SENTENCES, SAMPLES).tolist():
        first, stop = store.sentence(number).span
        files.requests = files.bytes = 0
        began = time.perf_counter()
        rows = np.asarray(array[first:stop])
        runs.append((files.requests, files.bytes, files.bytes / rows.nbytes, time.perf_counter() - began))
    return tuple(statistics.median(values) for values in zip(*runs, strict=True))
