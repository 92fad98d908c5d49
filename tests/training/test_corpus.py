"""Numbering, epochs and batches: what is predicted from what."""

from itertools import pairwise

import numpy as np
import pytest

from model.errors import TrainingError
from model.training.corpus import (
    BOS_TYPE,
    EOS_TYPE,
    FIRST_WORD,
    UNKNOWN,
    Corpus,
    Epoch,
    reverse_sentences,
    shuffle_sentences,
)

TEXT = [["b", "a"], ["a", "c", "a"], [], ["a"]]


def test_types_are_numbered_by_frequency_and_rare_words_share_a_class() -> None:
    corpus = Corpus.encode(TEXT, 2)
    assert corpus.vocabulary == ("</S>", "<S>", "<UNK>", "a", "b", "c")
    assert corpus.types.tolist() == [1, 4, 3, 0, 1, 3, 5, 3, 0, 1, 3, 0]
    assert corpus.starts.tolist() == [0, 4, 9, 12]
    assert corpus.n_words == 6
    assert corpus.classes(corpus.types).tolist() == [1, 4, 3, 0, 1, 3, UNKNOWN, 3, 0, 1, 3, 0]


def test_a_given_vocabulary_keeps_its_classes_whatever_the_text() -> None:
    corpus = Corpus.encode(TEXT, 3, order=["c", "zebra", "a", "b"])
    assert corpus.vocabulary[FIRST_WORD:] == ("c", "zebra", "a", "b")
    assert corpus.n_classes == FIRST_WORD + 3
    assert corpus.types[1] == FIRST_WORD + 3  # b: known, but no class of its own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([], "no sentences"),
        ([[]], "no sentences"),
        ([["a", "a"]] * 9, "at least 2"),
        ([["<S>"]], "at least 2"),
    ],
)
def test_texts_that_nothing_can_be_learned_from(text: list[list[str]], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Corpus.encode(text, 10)


def test_backward_reads_each_sentence_from_its_end() -> None:
    corpus = Corpus.encode(TEXT, 5)
    assert reverse_sentences(corpus.types, corpus.starts).tolist() == [
        0,
        3,
        4,
        1,
        0,
        3,
        5,
        3,
        1,
        0,
        3,
        1,
    ]


def test_a_shuffle_moves_whole_sentences(corpus: Corpus) -> None:
    def cut(types: np.ndarray, starts: np.ndarray) -> list[tuple[int, ...]]:
        return [tuple(types[a:b].tolist()) for a, b in pairwise(starts.tolist())]

    types, starts = shuffle_sentences(corpus.types, corpus.starts, 4, 0)
    before, after = cut(corpus.types, corpus.starts), cut(types, starts)
    assert before != after
    assert sorted(before) == sorted(after)


def test_batches_tile_the_lanes_and_predict_the_next_token_of_each_direction(
    corpus: Corpus,
) -> None:
    lanes, unroll = 4, 5
    epoch = Epoch(corpus, 0, lanes, unroll, seed=1)
    length = (len(corpus.types) - 1) // lanes
    types, starts = shuffle_sentences(corpus.types, corpus.starts, 1, 0)
    rows = types, reverse_sentences(types, starts)
    assert epoch.n_batches == length // unroll
    for index in (0, 1, epoch.n_batches - 1):
        batch = epoch.batch(index)
        for k, opener in enumerate((BOS_TYPE, EOS_TYPE)):
            read = batch.words[batch.inputs[k]]
            for lane in range(lanes):
                first = lane * length + index * unroll
                np.testing.assert_array_equal(read[:, lane], rows[k][first : first + unroll])
                following = rows[k][first + 1 : first + unroll + 1]
                np.testing.assert_array_equal(batch.targets[k][:, lane], following)
                np.testing.assert_array_equal(batch.weights[k][:, lane], following != opener)
        assert batch.n_words == int((batch.words[batch.inputs[0]] > BOS_TYPE).sum())


def test_epochs_have_an_order_of_their_own_that_the_seed_fixes(corpus: Corpus) -> None:
    def first(number: int, seed: int) -> list[int]:
        batch = Epoch(corpus, number, 4, 5, seed).batch(0)
        return batch.words[batch.inputs[0]].flatten().tolist()

    assert first(1, 9) == first(1, 9)
    assert len({tuple(first(*which)) for which in ((0, 9), (1, 9), (2, 9), (1, 8))}) == 4


def test_a_text_too_short_for_a_batch_is_refused() -> None:
    with pytest.raises(TrainingError, match="fewer lanes"):
        Epoch(Corpus.encode(TEXT, 5), 0, 8, 20, 1)
