"""What a store, a sentence, a batch print of themselves."""

import re
from pathlib import Path

import elmo_store
from elmo_store.torch import SentenceDataset, SentenceStream


def test_what_is_printed_says_what_it_is(hostile_store: Path) -> None:
    store = elmo_store.open(hostile_store)
    batch = next(iter(store.batches(3)))
    for one in (
        store,
        store["fwd1"],
        store.sentence(0),
        batch,
        SentenceDataset(store),
        SentenceStream(store),
    ):
        assert re.match(
            r"<(Store|StateView|Sentence|Batch|SentenceDataset|SentenceStream)\b.*\d.*>$", repr(one)
        )
        assert " object at 0x" not in repr(one)
        assert len(repr(one)) < 400
