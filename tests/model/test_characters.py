"""Character ids against a word-at-a-time oracle after bilm-tf, on any Unicode."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.format.characters import char_ids
from elmo_store.format.words import WordLimit
from model.characters import BOS, EOS

WORDS = st.lists(
    st.text(max_size=70) | st.sampled_from(["", BOS, EOS, "a" * 48, "a" * 49, "é" * 24, "日" * 17]),
    max_size=8,
)


def _oracle(word: str, length: int = 50) -> list[int]:
    """bilm-tf's UnicodeCharsVocabulary, one word."""
    if word in ("<S>", "</S>"):
        inside = [256 if word == "<S>" else 257]
    else:
        inside = list(word.encode("utf-8", "ignore")[: length - 2])
    ids = [258, *inside, 259]
    return [i + 1 for i in ids + [260] * (length - len(ids))]


@given(WORDS)
def test_ids_are_those_of_the_published_vocabulary(words: list[str]) -> None:
    ids = char_ids(words)
    assert ids.shape == (len(words), 50)
    assert ids.dtype == np.int16
    assert ids.tolist() == [_oracle(word) for word in words]


@given(WORDS)
def test_truncated_words_are_those_of_which_a_model_reads_less(words: list[str]) -> None:
    assert WordLimit().n_truncated(words) == sum(len(word.encode("utf-8")) > 48 for word in words)
    characters = WordLimit.of(
        {"char_cnn": {"max_characters_per_token": 30, "alphabet": "characters"}}
    )
    assert str(characters) == "28 characters"
    assert characters.n_truncated(words) == sum(len(word) > 28 for word in words)


@given(st.text(max_size=30), st.integers(3, 60))
def test_any_length_of_the_options_is_kept(word: str, length: int) -> None:
    assert char_ids([word], length).tolist() == [_oracle(word, length)]


def test_a_cut_may_fall_inside_a_character_as_in_training() -> None:
    row = char_ids(["a" + "é" * 30])[0]
    assert row[48] == 0xC3 + 1  # the first byte of an é whose second byte did not fit
    assert row[49] == 260


def test_lone_surrogates_are_left_out() -> None:
    assert char_ids(["a\ud800b"]).tolist() == char_ids(["ab"]).tolist()
    assert WordLimit().n_truncated(["\ud800" * 60]) == 0


def test_the_empty_word_and_no_words() -> None:
    assert char_ids([""])[0, :4].tolist() == [259, 260, 261, 261]
    assert char_ids([]).shape == (0, 50)
