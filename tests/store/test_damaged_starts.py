"""A damaged ``sentence_start`` that gives sentences other rows is noticed by whatever reads their text too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

import elmo_store
from elmo_store.errors import ShardCorruptError
from elmo_store.exports.job import export
from elmo_store.format import layout
from elmo_store.torch import Elmo, SentenceDataset, SentenceStream, collate
from tests.store.support import Written, make_store

DAMAGED = 3  # the sentence whose start is moved; the one before it changes too
CONTRADICTION = r"sentence \d+ has \d+ tokens?, but rows \d+ … \d+"


def flip_bit_of_start(root: Any, number: int, bit: int) -> None:
    """Flip a bit of an entry of ``sentence_start``, as damage in memory or on a disk does."""
    rel = layout.zarr_sentence_chunk(0)
    entries = np.frombuffer(Zstd().decode(root.get(rel)), "<i8").copy()
    entries[number] ^= 1 << bit
    root.put(rel, Zstd(level=1).encode(entries.tobytes()))


@pytest.fixture(params=[False, True], ids=["without boundaries", "with boundaries"])
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Written:
    written = make_store(str(tmp_path / "store"), boundaries=request.param)
    flip_bit_of_start(written.root, DAMAGED, 0)
    return written


def test_the_damage_gives_other_rows_without_an_error(damaged: Written) -> None:
    sentence = elmo_store.open(damaged.root.url()).sentence(DAMAGED)
    assert sentence.span != (damaged.starts[DAMAGED], damaged.starts[DAMAGED + 1])
    assert sentence.n_rows == len(sentence.read())


READS: dict[str, Callable[[elmo_store.Store, Written], Any]] = {
    "tokens of a sentence": lambda store, _: store.sentence(DAMAGED).tokens,
    "tokens of the sentence before it": lambda store, _: store.sentence(DAMAGED - 1).tokens,
    "a sentence by text": lambda store, written: store.sentence(text=written.tokens[DAMAGED]),
    "sentences of a batch": lambda store, _: [s.id for s in store.read_sentences([0, 3]).sentences],
    "batches": lambda store, _: [s.tokens for batch in store.batches(4) for s, _ in batch],
    "texts beside rows": lambda store, _: (
        store._view.spans([DAMAGED]),
        store._view.texts([DAMAGED]),
    ),
    "an item": lambda store, _: SentenceDataset(store)[DAMAGED],
    "items": lambda store, _: collate(SentenceDataset(store).__getitems__([0, DAMAGED])),
    "a stream": lambda store, _: list(SentenceStream(store)),
    "a selection": lambda store, _: list(SentenceStream(store.select([1, DAMAGED]))),
    "a concatenation": lambda store, _: elmo_store.concat([store]).sentence(DAMAGED).tokens,
    "Elmo by text": lambda store, written: Elmo(store, 1)([written.tokens[DAMAGED]]),
    "the sentence of a row": lambda store, written: (
        store.sentence_at(written.starts[DAMAGED]).tokens
    ),
}


@pytest.mark.parametrize("read", READS)
def test_text_and_rows_that_contradict_are_an_error(damaged: Written, read: str) -> None:
    store = elmo_store.open(damaged.root.url())
    with pytest.raises(ShardCorruptError, match=CONTRADICTION):
        READS[read](store, damaged)


@pytest.mark.parametrize("form", ["npz", "allennlp", "safetensors", "webdataset", "datasets"])
def test_an_export_of_contradicting_rows_is_refused(
    damaged: Written, tmp_path: Path, form: str
) -> None:
    store = elmo_store.open(damaged.root.url())
    with pytest.raises(ShardCorruptError, match=CONTRADICTION):
        export(store, tmp_path / "out", form)


def test_a_view_of_contradicting_rows_is_not_written(damaged: Written, tmp_path: Path) -> None:
    store = elmo_store.open(damaged.root.url())
    with pytest.raises(ShardCorruptError, match=CONTRADICTION):
        store[:6].write(tmp_path / "view")


def test_sound_sentences_of_a_damaged_store_are_read(damaged: Written) -> None:
    store = elmo_store.open(damaged.root.url())
    for number in (0, 1, 4, 7):
        sentence = store.sentence(number)
        assert sentence.tokens == tuple(damaged.tokens[number])
        np.testing.assert_array_equal(sentence.read(), damaged.states[damaged.rows(number)])
