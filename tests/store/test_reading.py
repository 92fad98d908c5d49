"""Reading as NumPy and as Hugging Face datasets do it, batched, from several threads, and through views over stores."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import (
    AmbiguousIdError,
    SentenceNotFoundError,
    ShardCorruptError,
    ShardMissingError,
    StoreError,
)
from elmo_store.format import layout
from elmo_store.reading import row_readers, sentences
from elmo_store.storage.failures import is_transient
from tests.examples import examples
from tests.store.deep import all_faults
from tests.store.support import LENGTHS, Written, make_store

FORMS = pytest.mark.parametrize("form", layout.FORMS)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Written:
    url = str(tmp_path_factory.mktemp("reading") / "store")
    return make_store(url, boundaries=True)


def indices(size: int) -> st.SearchStrategy[Any]:
    number = st.integers(-size, size - 1)
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(np.array)
    numbers = st.lists(number, max_size=8)
    return st.one_of(
        number, st.slices(size), numbers, numbers.map(lambda n: np.array(n, np.int64)), mask
    )


@examples(60)
@given(data=st.data())
@FORMS
def test_rows_are_chosen_as_numpy_chooses_them(
    stored: Written, form: str, data: st.DataObject
) -> None:
    store = elmo_store.open(stored.root.url(), form=form)
    rows = data.draw(indices(store.n_rows))
    wanted = stored.states[rows if not isinstance(rows, list) or rows else np.zeros(0, int)]
    np.testing.assert_array_equal(store.read(("bwd2", "x"), rows), wanted[..., [4, 0], :])
    np.testing.assert_array_equal(store["fwd1"][rows], wanted[..., 1, :])


@pytest.mark.parametrize(
    ("rows", "message"),
    [(99, "no row 99 in .*: it has 61 rows"), (-62, "no row -62 in"), ([0, 61], "no row 61 in"),
     ([True], "a mask of 1 values .* 61 rows")],
)  # fmt: skip
def test_rows_that_are_not_there(stored: Written, rows: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        elmo_store.open(stored.root.url()).read("x", rows)


def test_items_are_sentences_as_in_a_list(stored: Written) -> None:
    store = elmo_store.open(stored.root.url())
    n = len(LENGTHS)
    for index, numbers in (
        (slice(2, 7, 2), [2, 4, 6]),
        ([6, -1, 0], [6, n - 1, 0]),
        (np.arange(n) % 2 == 1, [1, 3, 5, 7]),
    ):
        view = store[index]
        assert [sentence.id for sentence in view] == [f"doc.txt:{number}" for number in numbers]
        assert [sentence.index for sentence in view] == list(range(len(numbers)))
    assert (store[-1].index, store[np.int64(3)].index) == (n - 1, 3)
    assert store[3].tokens == tuple(stored.tokens[3])
    assert store[3] == store.sentence(3) != store[4]
    with pytest.raises(IndexError, match=f"no sentence {n} in .*: it has {n} sentences"):
        store[n]


@FORMS
def test_without_the_rows_of_boundaries(stored: Written, form: str) -> None:
    store = elmo_store.open(stored.root.url(), form=form)
    inner = [
        stored.states[a + 1 : b - 1] if b > a else stored.states[a:b]
        for a, b in zip(stored.starts, stored.starts[1:], strict=False)
    ]
    for sentence, rows in zip(store, inner, strict=True):
        np.testing.assert_array_equal(sentence.read(boundaries=False), rows)
        assert len(rows) == len(sentence.tokens)
    batches = [rows for batch in store.batches(3, boundaries=False) for _, rows in batch]
    some = store.read_sentences([7, 2, 3], boundaries=False)
    for found, wanted in zip(
        [*batches, *(rows for _, rows in some)], [*inner, inner[7], inner[2], inner[3]], strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@examples(40)
@given(numbers=st.lists(st.integers(0, len(LENGTHS) - 1), max_size=12))
@FORMS
def test_sentences_in_any_order_in_one_call(stored: Written, form: str, numbers: list[int]) -> None:
    store = elmo_store.open(stored.root.url(), form=form)
    batch = store.read_sentences(numbers, states=("fwd1", "bwd2"))
    by_id = store.read_sentences(ids=[f"doc.txt:{n}" for n in numbers], states=("fwd1", "bwd2"))
    assert [s.index for s in batch.sentences] == [s.index for s in by_id.sentences] == numbers
    np.testing.assert_array_equal(batch.states, by_id.states)
    for number, (sentence, rows) in zip(numbers, batch, strict=True):
        np.testing.assert_array_equal(rows, stored.states[stored.rows(number)][:, [1, 4]])
        assert sentence.tokens == tuple(stored.tokens[number])
    with pytest.raises(SentenceNotFoundError, match="no sentence 8 in"):
        store.read_sentences([0, 8])
    with pytest.raises(SentenceNotFoundError, match="the id 'nobody'"):
        store.read_sentences(ids=["doc.txt:1", "nobody"])
    with pytest.raises(TypeError, match="not both"):
        store.read_sentences([1], ids=["doc.txt:1"])


def test_a_row_leads_to_its_sentence(stored: Written) -> None:
    store = elmo_store.open(stored.root.url())
    assert [store.sentence_at(row).index for row in range(store.n_rows)] == stored.sentence.tolist()
    with pytest.raises(IndexError, match=r"no row 61 in .*: it has 61 rows"):
        store.sentence_at(61)


@pytest.mark.slow
@FORMS
def test_many_threads_read_one_store(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, tokens and rows from eight threads, with caches so small that everything is dropped while others hold it."""
    for module, name in ((sentences, "START_BYTES"), (sentences, "TEXT_BYTES"), (sentences, "FOOTERS_KEPT"),
                         (row_readers, "MAPS_KEPT"), (row_readers, "FOOTERS_KEPT"), (row_readers, "GROUP_BYTES")):  # fmt: skip
        monkeypatch.setattr(module, name, 1)
    lengths = [i % 5 for i in range(400)]
    written = make_store(str(tmp_path / "store"), lengths=lengths, parts=(50,) * 8, shard_rows=64)
    store = elmo_store.open(tmp_path / "store", form=form)
    barrier = threading.Barrier(8)

    def read(worker: int) -> int:
        barrier.wait(30)
        order = np.random.default_rng(worker).permutation(len(lengths))
        for number in order[:60].tolist():
            sentence = store.sentence(id=f"doc.txt:{number}")
            assert (sentence.index, sentence.tokens) == (number, tuple(written.tokens[number]))
            np.testing.assert_array_equal(sentence.read(), written.states[written.rows(number)])
            rows = written.rows(number)
            assert store.tokens(rows) == written.row_tokens[rows]
        return worker

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(read, range(8))) == list(range(8))


@FORMS
@pytest.mark.parametrize("place", ["disk", "memory"])
def test_an_object_that_vanishes_after_it_was_read_is_no_zeros(
    tmp_path: Path, form: str, place: str
) -> None:
    written = make_store(str(tmp_path / "store") if place == "disk" else f"memory://{uuid4()}")
    store = elmo_store.open(written.root.url(), form=form)
    np.testing.assert_array_equal(store.read(rows=slice(16, 20)), written.states[16:20])
    name = layout.zarr_states_shard(1) if form == "zarr" else layout.states_part(1)
    written.root.remove(name)
    if (
        place == "disk" or form == "parquet"
    ):  # a mapped file outlives its name, and a row group is kept
        np.testing.assert_array_equal(store.read(rows=slice(20, 24)), written.states[20:24])
        store = elmo_store.open(written.root.url(), form=form)
    with pytest.raises(ShardMissingError, match=name):
        store.read(rows=slice(20, 24))


@FORMS
def test_a_file_that_is_replaced_while_it_is_read_is_read_on_as_it_was(
    tmp_path: Path, form: str
) -> None:
    written = make_store(str(tmp_path / "store"))
    store = elmo_store.open(tmp_path / "store", form=form)
    np.testing.assert_array_equal(store.read(rows=slice(16, 20)), written.states[16:20])
    name = layout.zarr_states_shard(1) if form == "zarr" else layout.states_part(1)
    written.root.put(name, bytes(len(written.root.get(name))))
    np.testing.assert_array_equal(store.read(rows=slice(20, 24)), written.states[20:24])


class FailingFileSystem(MemoryFileSystem):
    """A filesystem in memory whose reads fail as a network does, when told so."""

    protocol = ("failing", "memory")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    error: ClassVar[BaseException | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("failing://")))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        if self.error is not None and "elmo_store.json" not in path:
            raise self.error
        return bytes(super().cat_file(path, start, end, **kwargs))


@FORMS
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("Session is closed"), RuntimeError),
        (ExceptionGroup("many", [OSError(5, "I/O")]), ExceptionGroup),
        (TimeoutError("slow"), ConnectionError),
    ],
)
def test_trouble_of_the_network_is_not_called_damage(
    form: str, error: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    written = make_store(f"failing://{uuid4()}/store")
    store = elmo_store.open(written.root.url(), form=form)
    monkeypatch.setattr(FailingFileSystem, "error", error)
    for read in (
        store.read,
        store.tokens,
        lambda: store.sentence(1),
        lambda: store.sentence(id="doc.txt:1"),
    ):
        with pytest.raises(told):
            read()
    monkeypatch.setattr(FailingFileSystem, "error", None)
    np.testing.assert_array_equal(store.read(), written.states)


def test_a_client_that_is_broken_is_neither_damage_nor_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    written = make_store(f"failing://{uuid4()}/store", compression="zstd")
    store = elmo_store.open(written.root.url(), form="zarr")
    monkeypatch.setattr(FailingFileSystem, "error", RuntimeError("Session is closed"))
    with pytest.raises(StoreError, match="can't be read: Session is closed") as raised:
        store.read()
    assert not isinstance(raised.value, ShardCorruptError)
    assert not is_transient(raised.value)


def test_further_columns_and_objects_are_ignored(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    for name in (layout.sentences_part(0), layout.states_part(0), layout.SENTENCE_INDEX):
        path = tmp_path / "store" / name
        table = pq.read_table(path)
        pq.write_table(table.append_column("colour", pa.array(["blue"] * len(table))), path)
    (tmp_path / "store" / "notes.txt").write_text("not ours")
    for form in layout.FORMS:
        store = elmo_store.open(tmp_path / "store", form=form)
        np.testing.assert_array_equal(store.read(), written.states)
        assert [s.tokens for s in store] == [tuple(tokens) for tokens in written.tokens]
    faults = make_and_verify(tmp_path / "other")
    assert faults == []


def make_and_verify(folder: Path) -> list[str]:
    make_store(str(folder))
    (folder / "notes.txt").write_text("not ours")
    (folder / "exports").mkdir()
    (folder / "exports" / "all.hdf5").write_text("not ours either")
    return all_faults(elmo_store.open(folder))


def test_xarray_of_a_store(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    data = elmo_store.open(tmp_path / "store").to_xarray()
    assert data.states.dims == ("row", "state", "channel")
    assert "row" not in data.indexes
    np.testing.assert_array_equal(data.states.sel(state="fwd2")[5:9].values, written.states[5:9, 3])
    parquet = make_store(str(tmp_path / "parquet"), store_forms=("parquet",))
    with pytest.raises(StoreError, match="has no Zarr form, which xarray reads: it has parquet"):
        elmo_store.open(parquet.root.url()).to_xarray()


def test_xarray_is_given_what_a_variable_of_the_environment_holds(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = make_store(f"{s3_url}/secret")
    monkeypatch.setenv("ELMO_TEST_ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    options = {"client_kwargs": {"endpoint_url": "env:ELMO_TEST_ENDPOINT"}}
    store = elmo_store.open(written.root.url(), storage_options=options)
    np.testing.assert_array_equal(store.to_xarray().states[3:7].values, written.states[3:7])


def same(store: elmo_store.Store, tokens: list[list[str]], states: list[npt.NDArray[Any]]) -> None:
    """Sentences, their tokens and rows are these, one by one, in batches, as rows, and by the rows' own tokens."""
    assert [list(s.tokens) for s in store] == tokens
    assert [s.index for s in store] == list(range(len(tokens)))
    assert (len(store), store.n_rows) == (len(tokens), sum(map(len, states)))
    for sentence, rows in zip(store, states, strict=True):
        np.testing.assert_array_equal(sentence.read(), rows)
        np.testing.assert_array_equal(store.sentence(sentence.index).read("fwd1")[:, 0], rows[:, 1])
    np.testing.assert_array_equal(store.read(), np.concatenate(states))
    batches = [rows for batch in store.batches(3) for _, rows in batch]
    assert all(np.array_equal(a, b) for a, b in zip(batches, states, strict=True))
    assert len(store.tokens()) == store.n_rows
    assert [store.sentence_at(row).index for row in range(store.n_rows)] == [
        i for i, rows in enumerate(states) for _ in rows
    ]


@pytest.mark.parametrize("numbers", [range(1, 5), [7, 3, 2, 3], [0], list(range(8))])
def test_a_selection_and_the_store_that_it_becomes(
    stored: Written, tmp_path: Path, numbers: Any
) -> None:
    store = elmo_store.open(stored.root.url())
    chosen = store[1:5] if isinstance(numbers, range) else store.select(numbers)
    tokens = [stored.tokens[n] for n in numbers]
    states = [stored.states[stored.rows(n)] for n in numbers]
    same(chosen, tokens, states)
    assert chosen.n_tokens == sum(map(len, tokens))
    assert chosen.sentence(id=f"doc.txt:{numbers[-1]}").index == list(numbers).index(numbers[-1])
    written = chosen.write(tmp_path / "smaller", shard_rows=8)
    same(written, tokens, states)
    assert all_faults(written) == []
    assert written.manifest.model == store.manifest.model
    assert written.manifest.input.fingerprint != store.manifest.input.fingerprint
    with pytest.raises(StoreError, match="is not empty: give another folder"):
        chosen.write(tmp_path / "smaller")


def test_an_id_that_several_sentences_have_is_refused_by_name(
    stored: Written, tmp_path: Path
) -> None:
    twice = elmo_store.open(stored.root.url()).select([3, 0, 3, 0]).write(tmp_path / "twice")
    with pytest.raises(
        AmbiguousIdError,
        match=r"2 sentences of .*twice have the id 'doc\.txt:3', 0, 2: read one of them by num",
    ):
        twice.sentence(id="doc.txt:3")
    with pytest.raises(AmbiguousIdError, match=r"the id 'doc\.txt:0', 1, 3"):
        twice.read_sentences(ids=["doc.txt:0"])
    assert all_faults(twice) == []
    assert twice[1:].sentence(id="doc.txt:3").index == 1
    assert twice[:3].sentence(id="doc.txt:0").index == 1
    chosen = twice.select([3, 2, 3, 2])
    assert [chosen.sentence(id=f"doc.txt:{n}").index for n in (0, 3)] == [
        0,
        1,
    ]  # one sentence, twice in the view
    assert chosen.read_sentences(ids=["doc.txt:3", "doc.txt:0"]).numbers == [1, 0]
    with pytest.raises(
        AmbiguousIdError,
        match=r"2 sentences of this view of .* have the id 'doc\.txt:3', 1, 2: read",
    ):
        twice.select([1, 0, 2]).sentence(id="doc.txt:3")
    with pytest.raises(
        SentenceNotFoundError, match=r"no sentence with the id 'doc\.txt:0' in this view of"
    ):
        twice.select([0, 2]).sentence(id="doc.txt:0")


def test_a_selection_of_nobody(stored: Written) -> None:
    store = elmo_store.open(stored.root.url())
    with pytest.raises(SentenceNotFoundError, match="no sentence 8 in"):
        store.select([0, 8])
    with pytest.raises(
        SentenceNotFoundError, match=r"no sentence with the id 'doc\.txt:0' in this view of"
    ):
        store[1:].sentence(id="doc.txt:0")
    assert len(store[3:3]) == 0


def test_stores_one_after_the_other(stored: Written, tmp_path: Path) -> None:
    other = make_store(
        str(tmp_path / "other"),
        boundaries=True,
        lengths=(2, 0, 4),
        parts=(3,),
        store_forms=("zarr",),
    )
    first, second = elmo_store.open(stored.root.url()), elmo_store.open(other.root.url())
    both = elmo_store.concat([first, second])
    tokens = [*stored.tokens, *other.tokens]
    states = [w.states[w.rows(i)] for w in (stored, other) for i in range(len(w.tokens))]
    same(both, tokens, states)
    assert both.read_sentences([9, 1, 10]).states.shape[0] == sum(
        len(states[n]) for n in (9, 1, 10)
    )
    with pytest.raises(AmbiguousIdError, match=r"have the id 'doc\.txt:2', 2, 10"):
        both.sentence(id="doc.txt:2")
    third = make_store(str(tmp_path / "third"))
    with pytest.raises(StoreError, match="its boundaries is False, not True"):
        elmo_store.concat([first, elmo_store.open(third.root.url())])
    with pytest.raises(ValueError, match="no store"):
        elmo_store.concat([])


def test_no_sentences_are_a_table_without_rows(tmp_path: Path) -> None:
    store = elmo_store.open(make_store(str(tmp_path)).root.url())
    for first, stop in ((len(store), None), (5, 3), (len(store) + 5, None)):
        assert store.table(["id"], slice(first, stop)).num_rows == 0
    assert len(store.read_sentences([])) == 0


def test_a_view_is_not_written_with_settings_that_no_store_has(tmp_path: Path) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"store_forms": "parquet"}, "give a list of one or both of zarr, parquet"),
        ({"dtype": "float64"}, "dtype is 'float64': known are float16"),
        ({"compression": "gzip"}, "compression is 'gzip'"),
    ]
    for settings, said in wrong:
        with pytest.raises(ValueError, match=said):
            store.select([1]).write(tmp_path / "out", **settings)
        assert not (tmp_path / "out").exists()
