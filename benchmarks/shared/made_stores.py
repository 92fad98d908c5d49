"""Stores of made-up states, any number of sentences. A store that exists is taken as it is: a folder is a cache between runs."""

from pathlib import Path

import numpy as np

from benchmarks.shared.texts import made_up_words
from elmo_store.format import layout
from tests.store import support

SHORTEST, LONGEST = 8, 19  # tokens of a sentence
PART_SENTENCES = 16_384
POOL_ROWS = (
    1 << 12
)  # distinct rows of states, used over and over: making random numbers would take longer than writing


def make_store(
    folder: Path, sentences: int, channels: int, *, shard_rows: int = 16_384, words: int = 20_000
) -> str:
    """The URL of a complete store in ``folder``, written if it is not there: float16, Zarr alone, 5 states a row.

    ``words``: of which the tokens are; another number gives another store.
    """
    place = folder / f"{sentences}x{channels}-{shard_rows}-{words}words"
    if not (place / layout.MANIFEST).exists():
        random, vocabulary = np.random.default_rng(0), made_up_words(words)
        lengths = random.integers(SHORTEST, LONGEST + 1, sentences).tolist()
        drawn = random.integers(0, words, sum(lengths))
        rows = random.standard_normal((POOL_ROWS, 5, channels), np.float32).astype(np.float16)
        support.make_store(
            str(place), lengths=lengths, store_forms=("zarr",), channels=channels, shard_rows=shard_rows,
            parts=[min(PART_SENTENCES, sentences - first) for first in range(0, sentences, PART_SENTENCES)],
            values=lambda n, _: np.resize(rows, (n, 5, channels)), token=lambda row: str(vocabulary[drawn[row]]),
        )  # fmt: skip
    return str(place)
