"""What is computed with: held-out text of the data folder, made-up text, random weights of some shapes."""

import lzma
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.files.registry import random_weights
from model.options import BiLMOptions
from tests.data import data_folder

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SHAPES = {
    "full": BiLMOptions(3.0, 3.0, True, 512, 4096, 2, "relu", PUBLISHED_FILTERS, 2, 16),
    "small": BiLMOptions(3.0, 3.0, True, 128, 1024, 2, "relu", PUBLISHED_FILTERS, 1, 16),
    "wide": BiLMOptions(
        3.0, 3.0, True, 512, 16, 2, "relu", ((1, 8), (2, 8)), 1, 4
    ),  # of nothing but rows as wide as full ones
    "narrow": BiLMOptions(3.0, 3.0, True, 32, 64, 2, "relu", ((1, 16), (2, 16), (3, 32)), 1, 8),
    "tiny": BiLMOptions(3.0, 3.0, True, 16, 32, 2, "relu", ((1, 8), (2, 8), (3, 16)), 1, 4),
}
SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sample"
HELD_OUT = data_folder() / "corpus" / "tokenised" / "heldout"
MEAN_TOKENS, LONGEST = 21, 120  # of a made-up sentence; mean and spread of English newspaper text

Sentences = list[list[str]]


def running_text() -> Iterator[list[str]]:
    """Endless tokenised sentences: held-out Wikipedia and fiction, one a line, or else made up."""
    files = [
        path
        for name in ("wikipedia", "gutenberg")
        if (path := HELD_OUT / f"{name}.txt.xz").is_file()
    ]
    return (
        chain.from_iterable(map(_sentences, chain.from_iterable(repeat(files))))
        if files
        else made_up_text()
    )


def _sentences(path: Path) -> Iterator[list[str]]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from (line.split() for line in file)


def made_up_words(types: int) -> npt.NDArray[Any]:
    """Words [types] of letters, all different, 2 to 9 characters and more."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    return np.array(
        [f"{''.join(random.choice(letters, 2 + i % 8))}{i:x}" for i in range(types)], object
    )


def made_up_text(types: int = 20_000) -> Iterator[list[str]]:
    """Endless sentences of words by Zipf's law; repeats less than real text does."""
    random, words = np.random.default_rng(0), made_up_words(types)
    while True:
        lengths = np.clip(random.gamma(2.0, MEAN_TOKENS / 2, 2000), 1, LONGEST).astype(int)
        ranks = np.exp(random.random(lengths.sum()) * np.log(types)).astype(int) - 1
        for sentence in np.split(words[ranks], np.cumsum(lengths)[:-1]):
            yield sentence.tolist()


def take(text: Iterator[list[str]], tokens: int) -> Sentences:
    """The next sentences, at least so many tokens."""
    taken, n = [], 0
    while n < tokens:
        taken.append(next(text))
        n += len(taken[-1])
    return taken


def write_lines(path: Path, text: Iterator[list[str]], tokens: int) -> Path:
    """At least so many tokens, one sentence a line."""
    path.write_text(
        "".join(" ".join(sentence) + "\n" for sentence in take(text, tokens)), encoding="utf-8"
    )
    return path


def write_model(path: Path, shape: str) -> Path:
    """Random weights of this shape as a safetensors file."""
    random_weights(SHAPES[shape]).save_safetensors(path)
    return path
