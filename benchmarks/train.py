"""``python -m benchmarks.train``: training tokens/s on this machine, and their share of its product rate in the same run.

    python -m benchmarks.train [--dim 1024] [--projection 128] [--lanes 256] [--sampled 1024] [--device cuda]

It prints the medians of some rounds. Text is drawn by Zipf's law from made-up words, so that nothing needs to be there; shape
and recipe are the default model's. The product rate is that of one step's gates, packed bfloat16, all cores at once, one thread
each: what a training loop that did nothing but its products would reach.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace

from model.training.memory import keep_freed_memory

keep_freed_memory()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from model.engine.products import PackedLinear  # noqa: E402
from model.files.registry import SMALL_OPTIONS  # noqa: E402
from model.options import BiLMOptions  # noqa: E402
from model.threads import direction_pool  # noqa: E402
from model.training.corpus import Corpus, Epoch  # noqa: E402
from model.training.trainer import Recipe, Trainer  # noqa: E402

TYPES = 100_000


def made_up_text(sentences: int, seed: int = 0) -> Corpus:
    """Sentences of about 23 words, Zipf-distributed over TYPES words of 1 to 12 letters."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(generator.choice(letters, size=length)) for length in generator.integers(1, 13, TYPES)]
    words = [f"{word}{i}" if i > 2000 else word for i, word in enumerate(words)]
    lengths = generator.poisson(23, sentences).clip(2, 100)
    rank = (np.exp(generator.random(int(lengths.sum())) * np.log(TYPES)) - 1).astype(np.int64)
    text = np.split(np.array(words, dtype=object)[rank], np.cumsum(lengths)[:-1])
    return Corpus.encode((list(sentence) for sentence in text), TYPES, list(dict.fromkeys(words)))


def flop_per_position(options: BiLMOptions, sampled: int) -> float:
    """Products of a position in both directions: recurrence and sampled softmax, forward, and twice as much backward."""
    p, d = options.projection_dim, options.dim
    layer = 2 * (2 * p * 4 * d + d * p)
    return 3.0 * 2 * (options.n_layers * layer + 2 * sampled * p)


def product_rate(options: BiLMOptions, lanes: int, seconds: float) -> float:
    """FLOP/s of gate products on all cores, each on one thread."""
    p, d = options.projection_dim, options.dim
    threads = torch.get_num_threads()
    pool = direction_pool(threads, 1)

    def work(_: int) -> int:
        linear = PackedLinear(torch.randn(4 * d, 2 * p) * 0.05, None, torch.bfloat16, lanes)
        x = torch.randn(lanes, 2 * p).to(torch.bfloat16)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            linear(x)
            count += 1
        return count

    done = sum(pool.map(work, range(threads)))
    pool.shutdown()
    return done * 2.0 * lanes * 2 * p * 4 * d / seconds


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--batches", type=int, default=20, help="measured in a round, after 5 to warm up (default: 20)")
    found.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    found.add_argument("--lanes", type=int, default=256, help="(default: 256)")
    found.add_argument("--sampled", type=int, default=1024, help="negatives (default: 1024)")
    found.add_argument("--dim", type=int, default=1024, help="cells of a layer (default: 1024)")
    found.add_argument("--projection", type=int, default=128, help="outputs of a layer and direction (default: 128)")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    return found


def measured(trainer: Trainer, epoch: Epoch, batches: range) -> dict[str, float]:
    """One round: what these batches took."""
    began, cpu, before = time.perf_counter(), time.process_time(), trainer.progress.tokens
    for index in batches:
        trainer.step(trainer.prepare(epoch.batch(index % epoch.n_batches), index))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "tokens_per_s": (trainer.progress.tokens - before) / seconds,
        "ms_per_batch": 1e3 * seconds / len(batches),
        "cpu_ms_per_batch": 1e3 * cpu / len(batches),
    }


def main() -> None:
    """Measure; print a table, and one line of JSON after it."""
    args = parser().parse_args()
    options = replace(SMALL_OPTIONS, dim=args.dim, projection_dim=args.projection)
    recipe = Recipe(lanes=args.lanes, sampled=args.sampled)
    corpus = made_up_text((args.batches + 6) * args.lanes * recipe.unroll // 20)
    epoch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed)
    trainer = Trainer.fresh(options, recipe, corpus, args.device)
    for index in range(5):
        trainer.step(trainer.prepare(epoch.batch(index), index))
    starts = [5 + number * args.batches for number in range(args.rounds)]
    rounds = [measured(trainer, epoch, range(first, first + args.batches)) for first in starts]
    row = {name: statistics.median(measures[name] for measures in rounds) for name in rounds[0]}
    row["gflop_per_s"] = flop_per_position(options, args.sampled) * recipe.lanes * recipe.unroll / row["ms_per_batch"] / 1e6
    rate = product_rate(options, args.lanes, seconds=1.0) if args.device == "cpu" else None
    if rate is not None:
        row["share_of_product_rate"] = row["gflop_per_s"] * 1e9 / rate
    print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
    print("| " + " | ".join(f"{value:,.2f}" for value in row.values()) + " |")
    shape = {"dim": args.dim, "projection": args.projection, "lanes": args.lanes, "sampled": args.sampled}
    print(json.dumps({**shape, "threads": torch.get_num_threads(), "product_gflop_per_s": rate and rate / 1e9, **row}))


if __name__ == "__main__":
    main()
