"""Is the engine's time linear in tokens, and its memory flat? ``python -m benchmarks.scaling`` prints a table.

Each row is a process of its own: one call of the engine, either with many sentences of a real text's lengths or with one
endless sentence. Memory is the process's peak over the peak before the call, less the call's own result: what is left is the
plan, the tables of words as they fill, and the window of steps.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.processes import machine
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.files.registry import load_model
from model.warm import compute_warm

SENTENCE_TOKENS = 21  # mean and spread of English newspaper text
LONGEST = 120
WORDS = 20_000


@dataclass(frozen=True)
class Row:
    """One call: seconds, and bytes at the peak over those before it without its result."""

    seconds: float
    working_bytes: int
    lane_fill: float


def sentences(tokens: int, lengths: np.ndarray, seed: int = 0) -> list[list[str]]:
    """Words by Zipf's law in sentences of these lengths, over and over, ``tokens`` in all."""
    random = np.random.Generator(np.random.PCG64(seed))
    words = [f"w{min(int(number), WORDS)}" for number in random.zipf(1.2, tokens)]
    cut, at, i = [], 0, 0
    while at < tokens:
        cut.append(words[at : at + int(lengths[i % len(lengths)])])
        at += len(cut[-1])
        i += 1
    return cut


def measure(kind: str, tokens: int, model: str | None, precision: str) -> Row:
    """One call of an engine that has been warmed up with a small one."""
    _, weights = load_model(model)
    engine = Embedder(weights, compute_warm(weights), EngineSettings(precision=precision))  # type: ignore[arg-type]
    random = np.random.Generator(np.random.PCG64(1))
    usual = np.clip(random.gamma(2.0, SENTENCE_TOKENS / 2, 10_000), 1, LONGEST).astype(int)
    text = sentences(tokens, usual if kind == "sentences" else np.array([tokens]))
    engine.embed([SentenceRows(s, 0, len(s)) for s in sentences(4096, usual)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    cells, used = engine.stats.cells, engine.stats.cells_used
    began = time.perf_counter()
    states = engine.embed([SentenceRows(s, 0, len(s)) for s in text])
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    fill = (engine.stats.cells_used - used) / (engine.stats.cells - cells)
    return Row(seconds, max(0, after - before - states.nbytes), fill)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="NAME|FOLDER|URL (default: the default model)")
    parser.add_argument("--precision", default="float32", help="as for embed (default: float32)")
    parser.add_argument("--sentences", type=int, nargs="*", default=[16_384, 65_536, 262_144], help="tokens a call")
    parser.add_argument("--endless", type=int, nargs="*", default=[1_000, 10_000, 100_000], help="tokens of one sentence")
    args = parser.parse_args()
    print(f"{machine()}; precision {args.precision}; one call a process")
    print(f"{'call':<22}{'tokens':>10}{'seconds':>10}{'µs/token':>10}{'lane fill':>11}{'MiB beside the result':>24}")
    context = multiprocessing.get_context("spawn")
    for kind, sizes in (("sentences", args.sentences), ("one sentence", args.endless)):
        for tokens in sizes:
            with context.Pool(1) as pool:
                row = pool.apply(measure, (kind, tokens, args.model, args.precision))
            print(
                f"{kind:<22}{tokens:>10,}{row.seconds:>10.1f}{row.seconds / tokens * 1e6:>10.0f}{row.lane_fill:>11.1%}"
                f"{row.working_bytes / 2**20:>24,.0f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
