"""What a notebook shows of a store and a sentence: what they are, with hostile text as text."""

import re
from pathlib import Path

import elmo_store
from elmo_store.torch import SentenceDataset, SentenceStream
from tests.store.support import make_store


def test_a_store_and_its_sentences_show_themselves(hostile_store: Path) -> None:
    store = elmo_store.open(hostile_store)
    shown = store._repr_html_()
    assert all(text in shown for text in (str(hostile_store), "2,450 tokens", "fwd2", "tiny", "complete"))
    sentence = store.sentence(270)._repr_html_()
    assert "bad-0:0" in sentence
    assert "&lt;script&gt;" in sentence
    assert "<script>" not in sentence
    assert "‹U+202E›" in store.sentence(271)._repr_html_()


def test_what_is_printed_says_what_it_is(hostile_store: Path) -> None:
    store = elmo_store.open(hostile_store)
    batch = next(iter(store.batches(3)))
    for one in (store, store["fwd1"], store.sentence(0), batch, SentenceDataset(store), SentenceStream(store)):
        assert re.match(r"<(Store|StateView|Sentence|Batch|SentenceDataset|SentenceStream)\b.*\d.*>$", repr(one))
        assert " object at 0x" not in repr(one)
        assert len(repr(one)) < 400


def test_an_empty_sentence_and_an_unfinished_store(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"))
    store = elmo_store.open(tmp_path / "store")
    assert "none" in store.sentence(2)._repr_html_()
