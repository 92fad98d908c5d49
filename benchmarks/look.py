"""How long one waits for the report and the explorer: ``python -m benchmarks.look [report page drag neighbours index]``.

Stores of made-up states as wide as the default model's (5 x 128, float16); the index is of narrow ones (5 x 16), whose 10^7
rows fit a small machine.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

import elmo_store as stores
from benchmarks.shared.made_stores import Shape, make_store
from benchmarks.shared.support import COMMAND, Table, machine, options_of, run_measured, seconds, working_folder
from pipeline.explore.neighbours import INDEX, build
from pipeline.explore.service import ExplorerService

CHANNELS, INDEX_CHANNELS = 128, 16
SAMPLE_ROWS = 200_000
TOKENS, INDEX_TOKENS = 10**6, 10**7  # of the store that is looked at, and of the one that is indexed
ASKED = 20  # tokens whose neighbours are looked for
LAYERS, ROUNDS = 3, 3
DRAG_TOKENS, DRAG_WORDS, DRAG_SECONDS, AT_ONCE = 160_000, 100, 3.0, 50
Core = set[int] | None


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
    runs = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with explorer(url) as running:
            times = []
            for path in ("", "api/about", "api/search?q=the"):
                running.get(path)
                times.append(time.perf_counter() - began)
            running.wait()
            runs.append([*times, time.perf_counter() - began])
    table.row("median", *(statistics.median(values) for values in zip(*runs, strict=True)))


@dataclass(frozen=True)
class Explorer:
    """A running explorer."""

    address: str
    token: str
    pid: int

    def get(self, path: str) -> bytes:
        """The answer; HTTPError if it is refused."""
        request = urllib.request.Request(self.address + path, headers={"x-elmo-token": self.token})
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
            return data

    def ask(self, path: str, **parameters: str) -> Any:
        """The page's own question."""
        return json.loads(self.get(f"api/{path}?{urlencode(parameters)}"))

    def wait(self) -> None:
        """Until the sample is read."""
        while self.ask("about")["sample"] is None:
            time.sleep(0.05)

    def processor_seconds(self) -> float:
        """Of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def explorer(url: str, core: Core = None) -> Iterator[Explorer]:
    """``elmo-store explore`` of a store, on one ``core``."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*COMMAND, "explore", url], stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=lambda: _stay(core)
    )
    try:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().split(": ", 1)[1].strip().partition("#")
        yield Explorer(address, token, process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _stay(core: Core) -> None:
    if core:
        os.sched_setaffinity(0, core)


@contextmanager
def busy(core: int) -> Iterator[None]:
    """A loop on this core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: _stay({core})) as loop:
        try:
            yield
        finally:
            loop.kill()


@dataclass(frozen=True)
class Drag:
    """What a page asks as a slider is dragged over a word."""

    running: Explorer
    row: str
    word: str

    def neighbours(self, step: int) -> Any:
        return self.running.ask("neighbours", token=self.row, s=self._s(step), layers="0")

    def map(self, step: int) -> Any:
        return self.running.ask("word", word=self.word, s=self._s(step), layers="0")

    def _s(self, step: int) -> str:
        return f"{step % 50 / 50},1,0.5"


def drag(folder: Path) -> None:
    """A slider dragged over a frequent word, the explorer on one core, a loop on every other.

    As the page does it: neighbours and the mix's map, each asked for again when it was answered; then many questions at once.
    """
    url = make_store(folder, replace(Shape.of_tokens(DRAG_TOKENS, CHANNELS), words=DRAG_WORDS))
    tokens = stores.open(url).tokens()
    own, *others = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        running, pool = stack.enter_context(explorer(url, {own})), stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        for core in others:
            stack.enter_context(busy(core))
        running.wait()
        asked = Drag(running, "0", tokens[0])
        points = len(running.ask("word", word=tokens[0], s="1,1,1")["points"])
        asked.neighbours(0)
        title = f"a slider dragged {DRAG_SECONDS:g} s over {len(tokens):,} rows, the explorer on one core, the others busy"
        table = Table(title, "", "steps", "median ms", "slowest ms")
        began = running.processor_seconds()
        moved = list(pool.map(_dragged, (asked.neighbours, asked.map)))
        spent = running.processor_seconds() - began
        for name, steps in zip(("neighbours", f"map of {points:,}"), moved, strict=True):
            table.row(name, len(steps), statistics.median(steps), max(steps))
        print(f"processor: {spent:.2f} s")
        table = Table(f"{AT_ONCE} questions at once", "", "answered", "refused", "slowest s")
        for name, ask in (("neighbours", asked.neighbours), ("maps", asked.map)):
            answers = list(pool.map(partial(_answered, ask), range(AT_ONCE)))
            answered = sum(ok for ok, _ in answers)
            table.row(name, answered, AT_ONCE - answered, max(after for _, after in answers))


def _dragged(ask: Callable[[int], object]) -> list[float]:
    """Milliseconds of each step."""
    steps: list[float] = []
    end = time.perf_counter() + DRAG_SECONDS
    while time.perf_counter() < end:
        steps.append(1e3 * seconds(lambda: ask(len(steps))))
    return steps


def _answered(ask: Callable[[int], object], step: int) -> tuple[bool, float]:
    """Whether a question was answered, not refused, and after how many seconds."""
    began = time.perf_counter()
    try:
        ask(step)
    except urllib.error.HTTPError as error:
        if error.code != 429:
            raise
        return False, time.perf_counter() - began
    return True, time.perf_counter() - began


def neighbours(store: stores.Store, title: str, sample_rows: int, approximate: bool) -> None:
    """Of each layer alone, and as a slider moves, by a mix."""
    service = ExplorerService(store, sample_rows)
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


TABLES = {"report": report, "page": page, "drag": drag, "neighbours": exact, "index": index}


def main() -> None:
    args = options_of(__doc__, [*TABLES], folder=True).parse_args()
    print(machine())
    with working_folder(args.folder) as folder:
        for name in args.tables:
            TABLES[name](folder)


if __name__ == "__main__":
    main()
