"""The numbers behind pictures: against counting by hand and brute force."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.figures import gather, text, vectors
from elmo_store.format.words import WordLimit
from tests.store.support import LENGTHS, make_store

Row = npt.NDArray[np.float64]
WORDS = st.sampled_from(
    ["the", "The", ",", "東京", "Москва", "x" * 49, "a\ufffdb", "7", "naïve", ""]
)


@given(st.lists(st.lists(st.lists(WORDS, max_size=6), max_size=5), max_size=4))
def test_text_is_counted_as_by_hand(parts: list[list[list[str]]]) -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    found = text.text_figures(
        (pa.table({"tokens": pa.array(part, kind)}) for part in parts), WordLimit()
    )
    sentences = [sentence for part in parts for sentence in part]
    tokens = [token for sentence in sentences for token in sentence]
    assert (found.n_sentences, found.n_tokens, found.n_distinct) == (
        len(sentences),
        len(tokens),
        len(set(tokens)),
    )
    assert found.n_blank == sum(not sentence for sentence in sentences)
    assert found.n_cut == sum(len(token.encode()) > 48 for token in tokens)
    assert found.n_strange == tokens.count("a\ufffdb")
    assert found.n_repeated == sum(
        count - 1 for count in Counter(tuple(s) for s in sentences if s).values()
    )
    assert dict(found.commonest) == Counter(tokens)
    assert sum(found.lengths) == len(sentences)


@given(st.integers(0, 500), st.integers(1, 40))
def test_even_choices_are_ends_and_no_more_than_asked_for(n: int, most: int) -> None:
    chosen = gather.evenly(n, most)
    assert len(chosen) == min(n, most)
    assert chosen == sorted(set(chosen))
    if n and most > 1:
        assert (chosen[0], chosen[-1]) == (0, n - 1)


def test_a_sample_knows_its_sentences_and_places(tmp_path: object) -> None:
    written = make_store(f"{tmp_path}/store", lengths=LENGTHS)
    sample = gather.sample_vectors(elmo_store.open(f"{tmp_path}/store")._view)
    assert np.array_equal(sample.states, written.states)
    assert np.array_equal(sample.sentence, written.sentence)
    assert np.array_equal(sample.position, written.index)
    assert list(sample.token) == written.row_tokens
    assert sample.context(4) == (
        written.row_tokens[3],
        written.row_tokens[4],
        " ".join(written.row_tokens[5:9]),
    )


def test_vectors_against_plain_numpy() -> None:
    random = np.random.default_rng(3)
    states = random.standard_normal((50, 5, 8)).astype(np.float16)
    assert vectors.layer_names(("x", "fwd1", "bwd1", "fwd2", "bwd2"), "states") == [
        "layer 0 (x)",
        "layer 1",
        "layer 2",
    ]
    layer = np.concatenate([states[:, 1], states[:, 2]], axis=1).astype(np.float32)
    assert np.array_equal(vectors.layers_of(states, "states")[:, 1], layer)


def cosine(a: Row, b: Row) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5))
def test_measures_of_contextual_vectors_are_their_definitions(
    seed: int, n: int, width: int
) -> None:
    """Pair by pair as Ethayarajh 2019 writes them, where the code has closed forms."""
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((n, width)) + 0.5).astype(np.float32)
    wide = rows.astype(np.float64)

    def of_pairs(chosen: list[int]) -> float:
        pairs = [cosine(wide[i], wide[j]) for i in chosen for j in chosen if i != j]
        return float(np.mean(pairs)) if pairs else 0.0

    assert vectors.anisotropy(rows) == pytest.approx(of_pairs([*range(n)]), abs=1e-5)
    groups = [[*range(0, n, 2)], [*range(n // 2, n)]]
    alike = vectors.self_similarity(rows, map(np.array, groups))
    assert alike == pytest.approx(np.mean([of_pairs(group) for group in groups]), abs=1e-5)
    sentence = np.sort(random.integers(0, 4, n))
    within = [
        np.mean(
            [cosine(row, wide[sentence == number].mean(axis=0)) for row in wide[sentence == number]]
        )
        for number in set(sentence.tolist())
        if (sentence == number).sum() > 1
    ]
    found = vectors.intra_sentence_similarity(rows, sentence)
    assert np.isnan(found) if not within else found == pytest.approx(np.mean(within), abs=1e-3)


def test_words_that_occur_often_are_measured() -> None:
    tokens = (
        ["bank"] * 10
        + ["tree"] * 40
        + ["the"] * 50
        + ["should"] * 60
        + ["rare"] * 4
        + ["Paris"] * 9
    )
    occurrences = vectors.occurrences(tokens)
    assert {word: len(rows) for word, rows in occurrences.items()} == {
        word: tokens.count(word) for word in set(tokens) - {"rare"}
    }
