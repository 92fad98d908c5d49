"""What 8 bits cost and save in a store: ``python -m benchmarks.int8_store`` prints a table.

Stores of made-up states (benchmarks.made_stores) on the local disk, in the page cache: bytes of a token, encoding a shard (from
float32), a scan of all states, random sentences one by one and 64 at a time, all as numbers that can be computed with, and int8
also as it is stored (`raw`). Medians of --rounds, the stores in turns.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import elmo_store as stores
from benchmarks.made_stores import Shape, make_store, pool
from benchmarks.processes import machine
from elmo_store.forms import shards as forms
from elmo_store.store import Store

TOKENS_A_SENTENCE = 13.5  # of made_stores
SINGLE, TOGETHER = 192, 64  # sentences that are read one by one, and in a batch


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bytes_a_token(store: Store) -> float:
    """Of the vectors' objects."""
    objects = [rel for shard in range(store.manifest.sizes.shards) for rel in forms.shard_objects(store.manifest, shard)]
    return sum(store.root.size(rel) or 0 for rel in objects if "/token/" not in rel) / store.n_tokens


def encode(store: Store, states: npt.NDArray[Any]) -> None:
    """The objects of the first shard."""
    m = store.manifest
    n = m.shard_range(0)[1]
    states = states[:n] if m.is_int8 else states[:n].astype(m.dtype, copy=False)
    forms.encode_shard(m, 0, states, ["w"] * n, np.zeros(n, np.int64), np.zeros(n, np.int32))


def scan(store: Store, raw: bool) -> None:
    """Every row of every state."""
    for batch in store.batches(256, raw=raw):
        batch.states[-1:].sum()


def singly(store: Store, numbers: list[int], raw: bool) -> None:
    """Random sentences, one by one."""
    for number in numbers:
        sentence = store.sentence(number)
        _ = sentence.read_raw() if raw else sentence.read()


def together(store: Store, numbers: list[int], raw: bool) -> None:
    """Random sentences, in batches."""
    for first in range(0, len(numbers), TOGETHER):
        store.read_sentences(numbers[first : first + TOGETHER], raw=raw)


def main() -> int:
    """Make the stores, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="of a store (default: 100,000)")
    parser.add_argument("--channels", type=int, default=512, help="of a state (default: 512, as published)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is shown (default: 5)")
    parser.add_argument("--folder", type=Path, help="where the stores lie; they are kept (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made: list[tuple[str, Store, bool]] = []
        for form in ("zarr", "parquet"):
            for dtype in ("float32", "float16", "int8"):
                shape = Shape(round(args.tokens / TOKENS_A_SENTENCE), args.channels, dtype, (form,))
                url = str((args.folder or Path(scratch)) / shape.name)
                make_store(url, shape)
                made.append((f"{form}, {dtype}", stores.open(url), False))
            made.append((f"{form}, int8 raw", made[-1][1], True))
        store = made[0][1]
        states = pool(args.channels, "float32")  # what a model gives
        print(f"{machine()}; {args.rounds} rounds; {store.n_tokens:,} tokens, 5 states of {args.channels}; rates in tokens/s")
        print(f"{'':<18}{'bytes a token':>14}{'encode':>12}{'scan':>12}{'one by one':>12}{'64 at once':>12}")
        times: dict[str, list[list[float]]] = {name: [] for name, _, _ in made}
        for _ in range(args.rounds):
            for name, one, raw in made:
                numbers = np.random.default_rng(0).integers(0, one.n_sentences, SINGLE).tolist()
                works = [lambda one=one: encode(one, states), lambda one=one, raw=raw: scan(one, raw)]  # type: ignore[misc]
                works += [lambda one=one, n=numbers, raw=raw, f=f: f(one, n, raw) for f in (singly, together)]  # type: ignore[misc]
                times[name].append([seconds(work) for work in works])
        for name, one, _ in made:
            mine = [statistics.median(column) for column in zip(*times[name], strict=True)]
            rows = [one.manifest.shard_range(0)[1], one.n_tokens, *[SINGLE * TOKENS_A_SENTENCE] * 2]
            rates = "".join(f"{n / t:>12,.0f}" for n, t in zip(rows, mine, strict=True))
            print(f"{name:<18}{bytes_a_token(one):>14,.0f}{rates}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
