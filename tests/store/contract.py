"""What every form of a store must do, wherever it lies: `StoreContract`, subclassed once for each form and place."""

import pickle

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import SentenceNotFoundError, StateNotFoundError
from tests.store.deep import all_faults
from tests.store.support import LENGTHS, Written


class StoreContract:
    """Subclasses give the fixture `written`, and may override `form`."""

    form: str | None = None

    @pytest.fixture
    def store(self, written: Written) -> elmo_store.Store:
        return elmo_store.open(
            written.root.url(), storage_options=written.root.storage_options or None, form=self.form
        )

    def test_sizes(self, store: elmo_store.Store, written: Written) -> None:
        assert len(store) == store.n_sentences == len(LENGTHS)
        assert store.n_tokens == sum(LENGTHS)
        assert store.n_rows == len(written.states)
        assert store.states == written.manifest.states
        assert store.dtype == written.states.dtype
        assert store.manifest == written.manifest

    def test_all_rows_of_all_states(self, store: elmo_store.Store, written: Written) -> None:
        found = store.read()
        assert found.dtype == written.states.dtype
        np.testing.assert_array_equal(found, written.states)

    @pytest.mark.parametrize(
        "rows",
        [slice(0, 0), slice(3, 9), slice(15, 33), slice(-5, None), slice(40, 3), slice(2, 40, 7)],
    )
    def test_some_rows_of_some_states_in_the_order_asked_for(
        self, store: elmo_store.Store, written: Written, rows: slice
    ) -> None:
        np.testing.assert_array_equal(
            store.read(("bwd2", "x", "fwd1"), rows), written.states[rows][:, [4, 0, 1]]
        )

    def test_rows_backwards(self, store: elmo_store.Store, written: Written) -> None:
        np.testing.assert_array_equal(
            store.read("x", slice(30, 2, -3)), written.states[30:2:-3, :1]
        )
        assert store.read("x", slice(2, 30, -1)).shape == (0, 1, store.channels)

    def test_one_state_as_an_array(self, store: elmo_store.Store, written: Written) -> None:
        view = store["fwd2"]
        assert (len(view), view.shape) == (store.n_rows, (store.n_rows, store.channels))
        np.testing.assert_array_equal(view[10:20], written.states[10:20, 3])
        np.testing.assert_array_equal(view[-1], written.states[-1, 3])
        np.testing.assert_array_equal(np.asarray(view), written.states[:, 3])
        with pytest.raises(IndexError, match=f"no row {store.n_rows} in"):
            view[store.n_rows]

    def test_each_sentence(self, store: elmo_store.Store, written: Written) -> None:
        for i, tokens in enumerate(written.tokens):
            sentence = store.sentence(i)
            assert (sentence.index, sentence.id, sentence.tokens) == (
                i,
                f"doc.txt:{i}",
                tuple(tokens),
            )
            assert (sentence.source, sentence.position) == ("in/doc.txt", i)
            np.testing.assert_array_equal(sentence.read(), written.states[written.rows(i)])
            np.testing.assert_array_equal(sentence["bwd1"], written.states[written.rows(i), 2])
        assert [s.tokens for s in store] == [tuple(t) for t in written.tokens]

    def test_sentences_without_tokens_have_no_rows(self, store: elmo_store.Store) -> None:
        assert [store.sentence(i).read().shape[0] for i in (2, 5)] == [0, 0]

    def test_a_sentence_by_id(self, store: elmo_store.Store) -> None:
        assert [store.sentence(id=f"doc.txt:{i}").index for i in (6, 0, 2)] == [6, 0, 2]
        with pytest.raises(SentenceNotFoundError, match=r"doc\.txt:99"):
            store.sentence(id="doc.txt:99")

    @pytest.mark.parametrize("index", [-len(LENGTHS) - 1, len(LENGTHS)])
    def test_no_such_sentence(self, store: elmo_store.Store, index: int) -> None:
        with pytest.raises(SentenceNotFoundError, match=f"no sentence {index} in"):
            store.sentence(index)

    def test_number_and_id_together_are_refused(self, store: elmo_store.Store) -> None:
        with pytest.raises(TypeError, match="one of them only"):
            store.sentence(1, id="doc.txt:1")

    def test_no_such_state(self, store: elmo_store.Store) -> None:
        with pytest.raises(StateNotFoundError, match="no state 'fwd3': it has x, fwd1"):
            store["fwd3"]
        assert "fwd1" in store
        assert "fwd3" not in store

    @pytest.mark.parametrize("size", [1, 3, 100])
    def test_batches(self, store: elmo_store.Store, written: Written, size: int) -> None:
        batches = list(store.batches(size, ("fwd1", "bwd1")))
        assert [s.index for b in batches for s in b.sentences] == list(range(len(LENGTHS)))
        assert {len(b) for b in batches[:-1]} <= {size}
        for batch in batches:
            for sentence, rows in batch:
                np.testing.assert_array_equal(
                    rows, written.states[written.rows(sentence.index)][:, [1, 2]]
                )

    def test_tokens_of_rows(self, store: elmo_store.Store, written: Written) -> None:
        assert store.tokens() == written.row_tokens
        assert store.tokens(slice(14, 35)) == written.row_tokens[14:35]

    def test_layers(self, store: elmo_store.Store, written: Written) -> None:
        rows = written.states[written.rows(1)]
        layers = store.sentence(1).layers()
        np.testing.assert_array_equal(
            layers[:, 0], np.concatenate([rows[:, 0], rows[:, 0]], axis=1)
        )
        np.testing.assert_array_equal(
            layers[:, 2], np.concatenate([rows[:, 3], rows[:, 4]], axis=1)
        )

    def test_a_pickled_store_reads(self, store: elmo_store.Store, written: Written) -> None:
        store.sentence(0)
        again = pickle.loads(pickle.dumps(store))
        np.testing.assert_array_equal(again.sentence(3).read(), written.states[written.rows(3)])

    def test_verify(self, store: elmo_store.Store, written: Written) -> None:
        report = store.verify()
        sizes = written.root.sizes()
        assert report.shards == written.manifest.sizes.shards
        assert report.sentences == len(LENGTHS)
        unmarked = ("elmo_store.json", "_shards/", "_parts/", "_ids/")  # what says so of the others
        assert report.bytes == sum(
            size for name, size in sizes.items() if not name.startswith(unmarked)
        )
        assert all_faults(store) == []
