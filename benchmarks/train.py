"""``python -m benchmarks.train [--device cuda]``: training tokens/s here, the medians of some rounds.

Text is drawn by Zipf's law from made-up words, so that nothing needs to be there; shape and recipe are the default model's.
"""

import statistics
import time

from model.training.memory import keep_freed_memory

keep_freed_memory()


from benchmarks.shared.support import Table, machine, options_of  # noqa: E402
from benchmarks.shared.texts import made_up_text, made_up_words, take  # noqa: E402
from model.files.registry import SMALL_OPTIONS  # noqa: E402
from model.training.corpus import Corpus, Epoch  # noqa: E402
from model.training.trainer import Recipe, Trainer  # noqa: E402

TYPES, WARM_UP, BATCHES, ROUNDS = 100_000, 5, 20, 3


def measured(trainer: Trainer, epoch: Epoch, batches: range) -> dict[str, float]:
    """One round: what these batches took."""
    began, cpu, before = time.perf_counter(), time.process_time(), trainer.progress.tokens
    for index in batches:
        trainer.step(trainer.prepare(epoch.batch(index % epoch.n_batches), index))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"tokens/s": (trainer.progress.tokens - before) / seconds, "CPU ms a batch": 1e3 * cpu / len(batches)}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    args = parser.parse_args()
    recipe = Recipe(lanes=256, sampled=1024)
    text = take(made_up_text(TYPES), (ROUNDS * BATCHES + WARM_UP + 1) * recipe.lanes * recipe.unroll)
    corpus = Corpus.encode(iter(text), TYPES, made_up_words(TYPES).tolist())
    epoch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed)
    trainer = Trainer.fresh(SMALL_OPTIONS, recipe, corpus, args.device)
    measured(trainer, epoch, range(WARM_UP))
    firsts = [WARM_UP + number * BATCHES for number in range(ROUNDS)]
    rounds = [measured(trainer, epoch, range(first, first + BATCHES)) for first in firsts]
    row = {name: statistics.median(measures[name] for measures in rounds) for name in rounds[0]}
    table = Table(f"{machine()}; {recipe.lanes} lanes, {recipe.sampled} negatives", "", "median")
    for name, value in row.items():
        table.row(name, value)


if __name__ == "__main__":
    main()
