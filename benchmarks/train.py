"""``python -m benchmarks.train``: training tokens/s on this machine, and their share of its product rate in the same run.

    python -m benchmarks.train [--dim 1024] [--projection 128] [--lanes 256] [--sampled 1024] [--device cuda]

It prints the medians of some rounds. Text is drawn by Zipf's law from made-up words, so that nothing needs to be there; shape
and recipe are the default model's. The product rate is that of one step's gates, packed bfloat16, all cores at once, one thread
each: what a training loop that did nothing but its products would reach.
"""

import statistics
import time
from dataclasses import replace

from model.training.memory import keep_freed_memory

keep_freed_memory()

import torch  # noqa: E402

from benchmarks.support import Table, machine, options_of  # noqa: E402
from benchmarks.texts import made_up_text, made_up_words, take  # noqa: E402
from model.engine.products import PackedLinear  # noqa: E402
from model.files.registry import SMALL_OPTIONS  # noqa: E402
from model.options import BiLMOptions  # noqa: E402
from model.threads import direction_pool  # noqa: E402
from model.training.corpus import Corpus, Epoch  # noqa: E402
from model.training.trainer import Recipe, Trainer  # noqa: E402

TYPES = 100_000


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
    parser = options_of(__doc__)
    parser.add_argument("--batches", type=int, default=20, help="measured in a round, after 5 to warm up (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--lanes", type=int, default=256, help="(default: 256)")
    parser.add_argument("--sampled", type=int, default=1024, help="negatives (default: 1024)")
    parser.add_argument("--dim", type=int, default=1024, help="cells of a layer (default: 1024)")
    parser.add_argument("--projection", type=int, default=128, help="outputs of a layer and direction (default: 128)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    args = parser.parse_args()
    options = replace(SMALL_OPTIONS, dim=args.dim, projection_dim=args.projection)
    recipe = Recipe(lanes=args.lanes, sampled=args.sampled)
    text = take(made_up_text(TYPES), (args.rounds * args.batches + 6) * args.lanes * recipe.unroll)
    corpus = Corpus.encode(iter(text), TYPES, made_up_words(TYPES).tolist())
    epoch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed)
    trainer = Trainer.fresh(options, recipe, corpus, args.device)
    for index in range(5):
        trainer.step(trainer.prepare(epoch.batch(index), index))
    starts = [5 + number * args.batches for number in range(args.rounds)]
    rounds = [measured(trainer, epoch, range(first, first + args.batches)) for first in starts]
    row = {name: statistics.median(measures[name] for measures in rounds) for name in rounds[0]}
    row["gflop_per_s"] = flop_per_position(options, args.sampled) * recipe.lanes * recipe.unroll / row["ms_per_batch"] / 1e6
    if args.device == "cpu":
        row["product_gflop_per_s"] = product_rate(options, args.lanes, seconds=1.0) / 1e9
        row["share_of_product_rate"] = row["gflop_per_s"] / row["product_gflop_per_s"]
    table = Table(f"{machine()}; {args.dim}/{args.projection}, {args.lanes} lanes, {args.sampled} negatives", "", "median")
    for name, value in row.items():
        table.row(name, value)


if __name__ == "__main__":
    main()
