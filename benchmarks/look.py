"""How long one waits for the report and the explorer: ``python -m benchmarks.look [report page neighbours index]`` prints tables.

Stores of made-up states as wide as the default model's (5 x 128, float16); the index is of narrow ones (5 x 16), whose 10^7
rows fit a small machine.
"""

import json
import os
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np

import elmo_store as stores
from benchmarks.made_stores import Shape, make_store
from benchmarks.support import COMMAND, Table, machine, options_of, run_measured, seconds, working_folder
from pipeline.explore.neighbours import INDEX, build
from pipeline.explore.service import Service

CHANNELS, INDEX_CHANNELS = 128, 16
SAMPLE_ROWS = 200_000
TOKENS, INDEX_TOKENS = 10**6, 10**7  # of the store that is looked at, and of the one that is indexed
ASKED = 20  # tokens whose neighbours are looked for
LAYERS, ROUNDS = 3, 3


def report(folder: Path) -> None:
    """Seconds, bytes of the page and peak memory of the command."""
    table = Table(f"elmo-store report, 5 x {CHANNELS} in float16", "tokens", "seconds", "page MB", "peak MB")
    page = folder / "report.html"
    for n in (TOKENS // 10, TOKENS):
        measured = run_measured("report", make_store(folder, Shape.of_tokens(n, CHANNELS)), "--output", str(page))
        table.row(f"{n:,}", measured.seconds, page.stat().st_size / 1e6, measured.peak_bytes / 1e6)


def page(folder: Path) -> None:
    """From the start of ``elmo-store explore`` to its page, to the head's facts, and to a sample that is read."""
    url = make_store(folder, Shape.of_tokens(TOKENS, CHANNELS))
    title = f"elmo-store explore, {TOKENS:,} tokens: seconds after the command's start"
    table = Table(title, "", "page", "head", "search", "sample")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    runs = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        explorer = subprocess.Popen([*COMMAND, "explore", url], stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert explorer.stdout is not None
            address, _, token = explorer.stdout.readline().split(": ", 1)[1].strip().partition("#")
            times = []
            for path in ("", "api/about", "api/search?q=the"):
                _get(address + path, token)
                times.append(time.perf_counter() - began)
            while json.loads(_get(address + "api/about", token))["sample"] is None:
                time.sleep(0.05)
            runs.append([*times, time.perf_counter() - began])
        finally:
            explorer.terminate()
            explorer.wait(60)
    table.row("median", *(statistics.median(values) for values in zip(*runs, strict=True)))


def _get(address: str, token: str) -> bytes:
    request = urllib.request.Request(address, headers={"x-elmo-token": token})
    with urllib.request.urlopen(request, timeout=60) as answer:
        data: bytes = answer.read()
        return data


def neighbours(store: stores.Store, title: str, sample_rows: int, approximate: bool) -> None:
    """Of each layer alone, and as a slider moves, by a mix."""
    service = Service(store, sample_rows)
    service.wait()
    asked = np.random.default_rng(0).integers(0, store.n_rows, ASKED).tolist()
    about = service.about()

    def ms(row: int, mix: list[float] | None = None) -> float:
        return 1e3 * seconds(lambda: service.neighbours(str(row), mix, approximate=approximate, layers=mix is None))

    def median_ms(mixes: list[list[float]] | None = None) -> float:
        """Of other tokens by layer, or of one token by a mix that moves."""
        return statistics.median([ms(row) for row in asked] if mixes is None else [ms(asked[0], mix) for mix in mixes])

    rows = about["index"] if approximate else about["sample"]
    table = Table(f"{title}: median ms of {ASKED}", "rows", "a layer", "a move of a slider")
    table.row(f"{rows:,}", median_ms() / LAYERS, median_ms([[0.2, 0.5, step / ASKED] for step in range(ASKED)]))


def index(folder: Path) -> None:
    store = stores.open(make_store(folder, Shape.of_tokens(INDEX_TOKENS, INDEX_CHANNELS)))
    if not (Path(store.url) / INDEX).exists():
        print(f"\nindex built in {seconds(lambda: build(store, lambda done, of: None)):,.0f} s")
    neighbours(store, f"neighbours by the index, 5 x {INDEX_CHANNELS}", 512, True)


def exact(folder: Path) -> None:
    store = stores.open(make_store(folder, Shape.of_tokens(TOKENS, CHANNELS)))
    neighbours(store, f"exact neighbours of a token over occurrences in memory, 5 x {CHANNELS}", SAMPLE_ROWS, False)


TABLES = {"report": report, "page": page, "neighbours": exact, "index": index}


def main() -> None:
    args = options_of(__doc__, [*TABLES], folder=True).parse_args()
    print(machine())
    with working_folder(args.folder) as folder:
        for name in args.tables:
            TABLES[name](folder)


if __name__ == "__main__":
    main()
