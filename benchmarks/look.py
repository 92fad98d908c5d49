"""How long one waits for the report and the explorer: ``python -m benchmarks.look [report page neighbours index]`` prints tables.

Stores of made-up states as wide as the default model's (5 x 128, float16); the index is of narrow ones (5 x 16), whose 10^7
rows fit a small machine. --folder keeps the stores and indexes for the next run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import Shape, make_store
from benchmarks.processes import elmo_store, machine, run_measured
from pipeline.explore import ann
from pipeline.explore.service import Service

TABLES = ("report", "page", "neighbours", "index")
ROWS_A_SENTENCE = 13.5
CHANNELS, INDEX_CHANNELS = 128, 16
SAMPLE_ROWS = 200_000
ASKED = 20  # tokens whose neighbours are looked for
LAYERS = 3


def made(folder: Path, rows: int, channels: int) -> str:
    """Where a store of about so many rows lies, made if it is not there."""
    shape = Shape(round(rows / ROWS_A_SENTENCE), channels=channels, forms=("zarr",))
    url = str(folder / shape.name)
    make_store(url, shape)
    return url


def median_ms(work: Callable[[int], Any], rows: list[int]) -> float:
    """Median milliseconds of ``work`` on each of ``rows``, the first of them once more beforehand."""
    work(rows[0])
    taken = []
    for row in rows:
        began = time.perf_counter()
        work(row)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def report(folder: Path, rows: list[int]) -> None:
    """Seconds, bytes of the page and peak memory of the command."""
    print(f"\nelmo-store report, 5 x {CHANNELS} in float16\n{'tokens':>12}{'s':>8}{'page MB':>10}{'peak MB':>10}")
    for n in rows:
        url, page = made(folder, n, CHANNELS), folder / "report.html"
        found = run_measured(elmo_store("report", url, "--output", str(page)))
        print(f"{n:>12,}{found.seconds:>8.1f}{page.stat().st_size / 1e6:>10.2f}{found.peak_bytes / 1e6:>10,.0f}", flush=True)


def page(folder: Path, rows: int, rounds: int) -> None:
    """From the start of ``elmo-store explore`` to its page, to the head's facts, and to a sample that is read."""
    url = made(folder, rows, CHANNELS)
    print(
        f"\nelmo-store explore, {rows:,} tokens: seconds after the command's start\n"
        f"{'page':>8}{'head':>8}{'search':>8}{'sample':>8}"
    )
    runs = []
    for _ in range(rounds):
        began = time.perf_counter()
        command = subprocess.Popen(
            elmo_store("explore", url), stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            assert command.stdout is not None
            address, _, token = command.stdout.readline().split(": ", 1)[1].strip().partition("#")
            times = []
            for path in ("", "api/about", "api/search?q=the"):
                _get(address + path, token)
                times.append(time.perf_counter() - began)
            while json.loads(_get(address + "api/about", token))["sample"] is None:
                time.sleep(0.05)
            runs.append([*times, time.perf_counter() - began])
        finally:
            command.terminate()
            command.wait(60)
    print("".join(f"{statistics.median(values):>8.2f}" for values in zip(*runs, strict=True)), flush=True)


def _get(address: str, token: str) -> bytes:
    request = urllib.request.Request(address, headers={"x-elmo-token": token})
    with urllib.request.urlopen(request, timeout=60) as answer:
        data: bytes = answer.read()
        return data


def neighbours(folder: Path, rows: int) -> None:
    """Exact neighbours over the sample: of each layer alone, and as a slider moves, by a mix."""
    store = stores.open(made(folder, rows, CHANNELS))
    service = Service(store, SAMPLE_ROWS)
    service.wait()
    size = service.about()["sample"]
    asked = np.random.default_rng(0).integers(0, store.n_rows, ASKED).tolist()
    layers = median_ms(lambda row: service.neighbours(str(row), None), asked)
    mix = median_ms(lambda row: service.neighbours(str(row), [0.2, 0.5, 0.3], layers=False), asked)
    print(f"\nexact neighbours of a token over {size:,} occurrences in memory, 5 x {CHANNELS}: median ms of {ASKED}")
    print(f"{'a layer':>10}{'a move of a slider':>22}\n{layers / LAYERS:>10.0f}{mix:>22.0f}", flush=True)


def index(folder: Path, rows: int) -> None:
    """Neighbours by the approximate index over all rows."""
    url = made(folder, rows, INDEX_CHANNELS)
    store = stores.open(url)
    built = ""
    if not (Path(url) / ann.INDEX).exists():
        began = time.perf_counter()
        ann.build(store, lambda done, of: None)
        built = f", built in {time.perf_counter() - began:,.0f} s"
    service = Service(store, 512)
    service.wait()
    asked = np.random.default_rng(0).integers(0, store.n_rows, ASKED).tolist()
    layers = median_ms(lambda row: service.neighbours(str(row), None, approximate=True), asked)
    mix = median_ms(lambda row: service.neighbours(str(row), [0.2, 0.5, 0.3], layers=False, approximate=True), asked)
    print(f"\nneighbours by the index over {service.about()['index']:,} rows, 5 x {INDEX_CHANNELS}{built}: median ms of {ASKED}")
    print(f"{'a layer':>10}{'a move of a slider':>22}\n{layers / LAYERS:>10.0f}{mix:>22.0f}", flush=True)


def main() -> int:
    """Make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--tokens", type=int, default=10**6, help="of the store that is looked at (default: 10^6)")
    parser.add_argument("--index-tokens", type=int, default=10**7, help="of the store that is indexed (default: 10^7)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of the explorer, of which the median is shown (default: 3)")
    parser.add_argument("--folder", type=Path, help="where stores lie, kept for the next run (default: a temporary one)")
    args = parser.parse_args()
    for name in args.tables:
        if name not in TABLES:
            parser.error(f"no table {name!r}: known are {', '.join(TABLES)}")
    wanted = args.tables or TABLES
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(machine())
        if "report" in wanted:
            report(folder, [args.tokens // 10, args.tokens])
        if "page" in wanted:
            page(folder, args.tokens, args.rounds)
        if "neighbours" in wanted:
            neighbours(folder, args.tokens)
        if "index" in wanted:
            index(folder, args.index_tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
