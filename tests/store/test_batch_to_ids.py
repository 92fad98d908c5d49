"""`elmo_store.torch.batch_to_ids`: against AllenNLP's numbers, its own mapper, and the model's spelling."""

import os
from pathlib import Path

import pytest
import torch

from elmo_store.format.characters import char_ids
from elmo_store.torch import batch_to_ids
from elmo_store.torch.characters import tokens_of_ids
from tests.store import allennlp_elmo

BATCH = [
    ["the", "naïve", "東京", "", "<S>", "x" * 60],
    [],
    ["</S>", "é" * 24, "a" + "é" * 30, "\x00\x7f", "<S>\ud800", "</s>", "."],
]


def test_the_published_numbers() -> None:
    """Markers and bytes one higher than in the paper's vocabulary: 0 is the padding of words."""
    ids = batch_to_ids([["<S>", "</S>", "\u0397", "a" * 60], ["", "Ab"]])
    assert ids.dtype == torch.int64
    assert ids.shape == (2, 4, 50)
    words = ids.tolist()
    assert words[0][0] == [259, 257, 260] + [261] * 47
    assert words[0][1] == [259, 258, 260] + [261] * 47
    assert words[0][2] == [259, 207, 152, 260] + [261] * 46
    assert words[0][3] == [259] + [98] * 48 + [260]
    assert words[1][0] == [259, 260] + [261] * 48
    assert words[1][1] == [259, 66, 99, 260] + [261] * 46
    assert words[1][2] == words[1][3] == [0] * 50
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[]]).shape == (1, 0, 50)


def test_the_models_spelling_and_the_way_back() -> None:
    ids = batch_to_ids(BATCH)
    for own, sentence in zip(ids, BATCH, strict=True):
        assert torch.equal(own[: len(sentence)], torch.from_numpy(char_ids(sentence)).long())
        assert not own[len(sentence) :].any()
    assert tokens_of_ids(ids.numpy()) == [
        [word.encode("utf-8", "ignore")[:48] for word in sentence] for sentence in BATCH
    ]


def test_their_own_mapper() -> None:
    wheel = os.environ.get("ELMO_STORE_ALLENNLP")
    if not wheel:
        pytest.skip(
            "no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP"
        )
    mapper = allennlp_elmo.original(Path(wheel)).ELMoCharacterMapper()
    words = [chr(i) for i in range(0x250)] + [
        chr(i) * n for i in (0x41, 0x3B1, 0x4E00, 0x1F600) for n in (1, 11, 12, 16, 17, 24, 48, 49)
    ]
    for batch in (BATCH, [words], [["one"], ["and", "another"]]):
        assert torch.equal(batch_to_ids(batch), allennlp_elmo.padded_ids(mapper, batch))


@pytest.mark.parametrize("batch", ["a sentence", ["a sentence"], [["a"], "sentence"]])
def test_a_string_for_a_sentence(batch: list[list[str]]) -> None:
    with pytest.raises(TypeError, match="a string for a sentence"):
        batch_to_ids(batch)
