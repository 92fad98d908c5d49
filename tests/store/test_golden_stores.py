"""Stores that version 1 wrote once are read for ever: every state, token, sentence and id, and they verify."""

from pathlib import Path

import numpy as np
import pytest

import elmo_store
from elmo_store.format import layout
from tests.store import support
from tests.store.deep import all_faults
from tests.store.write_goldens import (
    CHANNELS,
    COLLECTED,
    LENGTHS,
    REMOVED,
    STORES,
    expected,
    expected_raw,
)

FOLDER = Path(__file__).resolve().parent / "golden"
COLLECTION = FOLDER.with_name("golden-collection")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_a_golden_store(name: str) -> None:
    settings = STORES[name]
    n_rows = sum(n + 2 if settings.get("boundaries") and n else n for n in LENGTHS)
    sets = settings["mix"].weight_sets if "mix" in settings else ()
    states = settings.get("states") or tuple(one.name for one in sets) or layout.state_names(2)
    raw = expected_raw(n_rows, len(states))
    values = raw.floats() if settings.get("dtype") == "int8" else expected(n_rows, len(states))
    for form in settings["store_forms"]:
        store = elmo_store.open(FOLDER / name, form=form)
        assert (store.states, store.n_rows, store.channels) == (states, n_rows, CHANNELS)
        np.testing.assert_array_equal(store.read(), values)
        if store.is_int8:
            np.testing.assert_array_equal(store.read(raw=True).values, raw.values)
            np.testing.assert_array_equal(store.read(raw=True).scale, raw.scale)
        first = 0
        for i, length in enumerate(LENGTHS):
            sentence = store.sentence(id=f"doc.txt:{i}")
            rows = length + 2 if store.boundaries and length else length
            assert (sentence.index, sentence.first_row, sentence.n_rows) == (i, first, rows)
            assert sentence.tokens == tuple(support.token(first + j) for j in range(length))
            np.testing.assert_array_equal(sentence.read(), values[first : first + rows])
            first += rows
        assert all_faults(store) == []


@pytest.mark.parametrize(
    ("version", "n_stores", "removed"), [(1, 2, ()), (2, 3, ()), (3, 3, REMOVED)]
)
def test_the_golden_collection(version: int, n_stores: int, removed: tuple[str, ...]) -> None:
    store, ids, rows = elmo_store.open(COLLECTION, version=version), [], []
    for lengths, _ in COLLECTED[:n_stores]:
        values, first = expected(sum(lengths), 5), 0
        for number, length in enumerate(lengths):
            if f"doc.txt:{number}" not in removed:
                ids.append(f"doc.txt:{number}")
                rows.append(values[first : first + length])
            first += length
    assert [sentence.id for sentence in store] == ids
    np.testing.assert_array_equal(store.read(), np.concatenate(rows))
    for number, own in enumerate(rows):
        np.testing.assert_array_equal(store[number].read(), own)
        tokens = store[number].tokens
        assert len(tokens) == len(own)
        assert store.find_text([tokens])[0] is not None
    assert all_faults(store) == []


def test_there_is_a_golden_of_every_form_and_kind() -> None:
    there = {path.name for path in FOLDER.iterdir()}
    assert there == set(STORES)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 250_000
