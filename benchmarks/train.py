"""``python -m benchmarks.train [--device cuda]``: training tokens/s here, and on a CPU their share of its product rate.

It prints the medians of some rounds. Text is drawn by Zipf's law from made-up words, so that nothing needs to be there; shape
and recipe are the default model's. The product rate is that of one step's gates, packed bfloat16, all cores at once, one thread
each: what a training loop that did nothing but its products would reach.
"""

import statistics
import time

from model.training.memory import keep_freed_memory

keep_freed_memory()

import torch  # noqa: E402

from benchmarks.shared.support import Table, machine, options_of  # noqa: E402
from benchmarks.shared.texts import made_up_text, made_up_words, take  # noqa: E402
from model.engine.products import PackedLinear  # noqa: E402
from model.files.registry import SMALL_OPTIONS  # noqa: E402
from model.threads import direction_pool  # noqa: E402
from model.training.corpus import Corpus, Epoch  # noqa: E402
from model.training.trainer import Recipe, Trainer  # noqa: E402

TYPES, WARM_UP, BATCHES, ROUNDS = 100_000, 5, 20, 3


def flop_per_position(sampled: int) -> float:
    """Products of a position in both directions: recurrence and sampled softmax, forward, and twice as much backward."""
    p, d = SMALL_OPTIONS.projection_dim, SMALL_OPTIONS.dim
    return 3.0 * 2 * (SMALL_OPTIONS.n_layers * 2 * (2 * p * 4 * d + d * p) + 2 * sampled * p)


def product_rate(lanes: int, seconds: float) -> float:
    """FLOP/s of gate products on all cores, each on one thread."""
    p, d = SMALL_OPTIONS.projection_dim, SMALL_OPTIONS.dim
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


def measured(trainer: Trainer, epoch: Epoch, batches: range) -> dict[str, float]:
    """One round: what these batches took."""
    began, cpu, before = time.perf_counter(), time.process_time(), trainer.progress.tokens
    for index in batches:
        trainer.step(trainer.prepare(epoch.batch(index % epoch.n_batches), index))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "tokens/s": (trainer.progress.tokens - before) / seconds,
        "ms a batch": 1e3 * seconds / len(batches),
        "CPU ms a batch": 1e3 * cpu / len(batches),
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--lanes", type=int, default=256, help="(default: 256)")
    args = parser.parse_args()
    recipe = Recipe(lanes=args.lanes, sampled=1024)
    text = take(made_up_text(TYPES), (ROUNDS * BATCHES + WARM_UP + 1) * args.lanes * recipe.unroll)
    corpus = Corpus.encode(iter(text), TYPES, made_up_words(TYPES).tolist())
    epoch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed)
    trainer = Trainer.fresh(SMALL_OPTIONS, recipe, corpus, args.device)
    measured(trainer, epoch, range(WARM_UP))
    firsts = [WARM_UP + number * BATCHES for number in range(ROUNDS)]
    rounds = [measured(trainer, epoch, range(first, first + BATCHES)) for first in firsts]
    row = {name: statistics.median(measures[name] for measures in rounds) for name in rounds[0]}
    row["GFLOP/s"] = flop_per_position(recipe.sampled) * recipe.lanes * recipe.unroll / row["ms a batch"] / 1e6
    if args.device == "cpu":
        row["GFLOP/s of products"] = product_rate(args.lanes, seconds=1.0) / 1e9
        row["share"] = row["GFLOP/s"] / row["GFLOP/s of products"]
    table = Table(f"{machine()}; {args.lanes} lanes, {recipe.sampled} negatives", "", "median")
    for name, value in row.items():
        table.row(name, value)


if __name__ == "__main__":
    main()
