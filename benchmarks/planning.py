"""`python -m benchmarks.planning`: tokens/s of what the host does for a GPU before the GPU can compute. May import model.

Numbers of words, sequences of both directions, their plans, and slots of the gate table for each window: with 2,048 lanes, on
real text. A GPU that computes faster than the last line waits for its host.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import numpy as np
import torch

from benchmarks.engine import made_up_text, read_held_out, take
from benchmarks.processes import machine
from model.engine.cuda import LANES
from model.engine.cuda_direction import WINDOW
from model.engine.planner import DirectionPlan, plan_direction
from model.engine.sequences import Rows, sentence_rows
from model.engine.words import GateTable, WordBook

Result = TypeVar("Result")


class Table:
    """Medians of several calls of each step, printed as they are measured."""

    def __init__(self, tokens: int, repeats: int) -> None:
        self._tokens, self._repeats = tokens, repeats
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, step: Callable[[], Result]) -> Result:
        """Call a step several times; what it gave the last time."""
        seconds = []
        for _ in range(self._repeats):
            began = time.perf_counter()
            result = step()
            seconds.append(time.perf_counter() - began)
        self.seconds[name] = statistics.median(seconds)
        print(f"{name:46s} {self.seconds[name]:8.3f} s {self._tokens / self.seconds[name] / 1e6:8.2f} M tokens/s", flush=True)
        return result


def planned(side: Rows, lanes: int, n_words: int) -> DirectionPlan:
    """All that one direction needs before and while it runs."""
    plan = plan_direction(side.sequences, lanes, share=False)
    side.cells_and_rows(plan.cells, lanes)
    table = GateTable(max(1 << 17, WINDOW * lanes), lambda words, slots: None)
    for first in range(0, plan.steps, WINDOW):
        table.slots(plan.words[first : first + WINDOW], n_words, 0)
    return plan


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=450_000, help="of text (default: 450000)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"of the grid (default: {LANES})")
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts (default: 5)")
    args = parser.parse_args()
    sentences = take(read_held_out() or made_up_text(), args.tokens)
    tokens = sum(map(len, sentences))
    print(f"{machine()}; {tokens:,} tokens, {len(sentences):,} sentences, {args.lanes:,} lanes")
    book = WordBook(lambda words: torch.zeros(len(words), 1), 1, 1 << 20, 50)
    book.learn(chain.from_iterable(sentences))  # new words are the GPU's work, known ones the host's
    table = Table(tokens, args.repeats)
    flat = table.measure("numbers of words", lambda: book.numbered(sentences))
    stop = flat.lengths - 1
    forward, backward, _ = table.measure("sequences", lambda: sentence_rows(flat, np.ones_like(stop), stop, True))
    plan = table.measure("one direction: plan, cells, slots", lambda: planned(forward, args.lanes, len(book)))
    with ThreadPoolExecutor(2) as pool:
        table.measure(
            "both directions, a thread each",
            lambda: list(pool.map(lambda side: planned(side, args.lanes, len(book)), (forward, backward))),
        )
    total = sum(table.seconds[name] for name in ("numbers of words", "sequences", "both directions, a thread each"))
    print(f"all: {tokens / total / 1e6:.2f} M tokens/s; lane fill {plan.fill:.1%}")


if __name__ == "__main__":
    main()
