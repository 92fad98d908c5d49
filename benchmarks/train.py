"""``python -m benchmarks.train [--device cuda]``: training tokens/s here, the median of some rounds.

Text is drawn by Zipf's law from made-up words, so that nothing needs to be there; shape and recipe are the default model's.
"""

import statistics

from benchmarks.shared.support import machine, options_of, seconds
from benchmarks.shared.texts import made_up_text, made_up_words, take
from model.files.registry import SMALL_OPTIONS
from model.training.corpus import Corpus
from model.training.trainer import Recipe, Trainer

TYPES, WARM_UP, ROUNDS = 100_000, 5, 3


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--lanes", type=int, default=256, help="(default: 256)")
    parser.add_argument("--batches", type=int, default=20, help="of a round (default: 20)")
    args = parser.parse_args()
    recipe = Recipe(lanes=args.lanes, sampled=1024)
    text = take(
        made_up_text(TYPES), (ROUNDS * args.batches + WARM_UP + 1) * recipe.lanes * recipe.unroll
    )
    corpus = Corpus.encode(iter(text), TYPES, made_up_words(TYPES).tolist())
    trainer = Trainer.fresh(SMALL_OPTIONS, recipe, corpus, args.device)
    steps = trainer.train()

    def train(batches: int) -> None:
        for _ in range(batches):
            next(steps)

    train(WARM_UP)
    rates = []
    for _ in range(ROUNDS):
        before = trainer.progress.tokens
        taken = seconds(lambda: train(args.batches))
        rates.append((trainer.progress.tokens - before) / taken)
    print(
        f"{machine()}; {recipe.lanes} lanes, {recipe.sampled} negatives: {statistics.median(rates):,.0f} tokens/s"
    )


if __name__ == "__main__":
    main()
