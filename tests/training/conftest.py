"""A small model, a small language and their trainer, shared by the tests of training."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from model.files.registry import SMALL_OPTIONS
from model.options import BiLMOptions
from model.training.corpus import Corpus
from model.training.trainer import Recipe


@pytest.fixture(scope="module", autouse=True)
def small_batches(one_thread: None) -> None:
    """Which are not worth two threads."""


@pytest.fixture(scope="session")
def small_options() -> BiLMOptions:
    return replace(
        SMALL_OPTIONS,
        projection_dim=16,
        dim=24,
        filters=((1, 4), (2, 6), (3, 8)),
        char_embedding_dim=6,
    )


@pytest.fixture(scope="session")
def sentences() -> list[list[str]]:
    """A language with something to learn: the verb follows from the noun, the full stop from the verb."""
    chance = random.Random(5)
    pairs = [
        ("dog", "barks"),
        ("cat", "purrs"),
        ("bird", "sings"),
        ("horse", "neighs"),
        ("frog", "croaks"),
    ]
    said = []
    for _ in range(1500):
        noun, verb = chance.choice(pairs)
        said.append(
            [
                chance.choice(["the", "a", "one"]),
                noun,
                verb,
                chance.choice(["loudly", "often"]),
                ".",
            ]
        )
    return said


@pytest.fixture(scope="session")
def corpus(sentences: list[list[str]]) -> Corpus:
    return Corpus.encode(sentences, 1000)


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return Recipe(
        seed=3, lanes=8, unroll=6, n_words=1000, sampled=6, warmup=500, rate=1e-2, softmax_rate=0.2
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
