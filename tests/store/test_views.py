"""Views of views read as a plain list of sentences that is sliced and joined in the same way."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store import collecting
from elmo_store.errors import AmbiguousIdError, OverlapError, SentenceNotFoundError
from elmo_store.storage.root import Root
from elmo_store.torch import SentenceDataset, SentenceStream
from tests.examples import examples
from tests.store import support

SIZES = ((3, 7, 0, 21, 1, 0, 12, 5), (4, 0, 9), (0, 0, 2), (30, 1, 1, 0, 6))


@dataclass(frozen=True)
class Expected:
    """One sentence, as a plain list has it."""

    id: str
    tokens: tuple[str, ...]
    states: npt.NDArray[Any]  # [n, states, channels]


@dataclass(frozen=True)
class Case:
    """A store that was composed, and the plain list that it must read as."""

    store: elmo_store.Store
    sentences: list[Expected]


Step = tuple[str, Any]
Bases = list[Case]


def written_store(folder: Path, number: int) -> elmo_store.Store:
    """Write one of the stores; ids, tokens and states are its own."""
    random = np.random.default_rng(number)
    lengths = SIZES[number]
    support.make_store(
        str(folder),
        lengths=lengths,
        parts=(len(lengths),),
        values=lambda rows, states: random.standard_normal((rows, states, 8)),
        token=lambda row: f"w{number}-{row}",
        job={"document": f"doc-{number}.txt"},
    )
    return elmo_store.open(folder)


def case_of(store: elmo_store.Store) -> Case:
    """Read a base store sentence by sentence."""
    return Case(store, [Expected(one.id, one.tokens, one.read()) for one in store])


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Three stores, and a collection of two of them without two of its sentences."""
    folder = tmp_path_factory.mktemp("bases")
    stores = [written_store(folder / f"store-{number}", number) for number in range(len(SIZES))]
    collecting.collect(folder / "collection", stores[1:3])
    collecting.remove(Root(folder / "collection"), ["doc-1.txt:1", "doc-2.txt:2"])
    cases = [case_of(store) for store in stores[:3]]
    kept = [cases[1].sentences[0], cases[1].sentences[2], *cases[2].sentences[:2]]
    cases.append(Case(elmo_store.open(folder / "collection"), kept))
    return cases


def index_of(draw: Callable[[Any], Any], n: int) -> Any:
    """Draw an index of any kind that NumPy would accept for ``n`` sentences."""
    kind = draw(st.sampled_from(["slice", "list", "array", "mask", "range"]))
    if kind == "slice":
        edge = st.none() | st.integers(-n - 2, n + 2)
        step = draw(st.sampled_from([None, 1, 2, -1, -3]))
        return slice(draw(edge), draw(edge), step)
    if kind == "mask":
        return np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    if kind == "range":
        first, stop = sorted([draw(st.integers(0, n)), draw(st.integers(0, n))])
        return range(first, stop)
    numbers = draw(st.lists(st.integers(-n, n - 1), max_size=12)) if n else []
    return numbers if kind == "list" else np.array(numbers, np.int32)


def composed(draw: Callable[[Any], Any], bases: Bases) -> Case:
    """Draw a base, or a composition of others, and compose the plain lists alike."""
    case = bases[draw(st.integers(0, len(bases) - 1))]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 3)) == 0:
            other = bases[draw(st.integers(0, len(bases) - 1))]
            both = elmo_store.concat([case.store, other.store])
            case = Case(both, case.sentences + other.sentences)
            continue
        index = index_of(draw, len(case.sentences))
        numbers = np.arange(len(case.sentences))[index].tolist()
        case = Case(case.store[index], [case.sentences[number] for number in numbers])
    return case


def rows_of(sentences: list[Expected]) -> npt.NDArray[Any]:
    """Return all rows of the plain list."""
    empty = np.zeros((0, 5, 8), np.float16)
    return np.concatenate([empty, *(one.states for one in sentences)])


@given(data=st.data())
@examples(300)
def test_compositions_read_as_the_plain_list(bases: Bases, data: st.DataObject) -> None:
    store, sentences = (case := composed(data.draw, bases)).store, case.sentences

    rows = rows_of(sentences)
    assert (len(store), store.n_rows, store.n_tokens) == (len(sentences), len(rows), len(rows))
    np.testing.assert_array_equal(store.read(), rows)
    np.testing.assert_array_equal(store["bwd1"][:], rows[:, 2])
    assert store.tokens() == [token for one in sentences for token in one.tokens]
    assert [(one.id, one.tokens) for one in store] == [(one.id, one.tokens) for one in sentences]
    assert [one.index for one in store] == list(range(len(sentences)))


@given(data=st.data())
@examples(100)
def test_compositions_read_sentences_in_any_order(bases: Bases, data: st.DataObject) -> None:
    store, sentences = (case := composed(data.draw, bases)).store, case.sentences
    index = index_of(data.draw, len(sentences))
    chosen = [sentences[number] for number in np.arange(len(sentences))[index].tolist()]

    batch = store.read_sentences(index)
    np.testing.assert_array_equal(batch.states, rows_of(chosen))
    assert [sentence.tokens for sentence in batch.sentences] == [one.tokens for one in chosen]
    assert store.table(["id", "tokens"], index).to_pylist() == [
        {"id": one.id, "tokens": list(one.tokens)} for one in chosen
    ]
    for number in range(-len(sentences), len(sentences), 3):
        np.testing.assert_array_equal(store[number].read(), sentences[number].states)
        assert store.sentence(number).id == sentences[number].id
    for row in range(0, store.n_rows, 7):
        sentence = store.sentence_at(row)
        assert sentence.span[0] <= row < sentence.span[1]


@given(data=st.data())
@examples(60)
def test_compositions_give_batches_and_datasets(bases: Bases, data: st.DataObject) -> None:
    store, sentences = (case := composed(data.draw, bases)).store, case.sentences

    size = data.draw(st.integers(1, 5))
    read = [states for batch in store.batches(size) for _, states in batch]
    dataset: Any = SentenceDataset(store)
    stream = SentenceStream(store, shuffle=False, bucket=False, batch_sentences=size)
    streamed = [number for batch in stream for number in batch["index"]]

    assert len(read) == len(dataset) == len(sentences)
    for one, rows, item in zip(sentences, read, dataset, strict=True):
        np.testing.assert_array_equal(rows, one.states)
        np.testing.assert_array_equal(item["states"].numpy(), one.states)
        assert (item["id"], item["tokens"]) == (one.id, one.tokens)
    assert streamed == list(range(len(sentences)))


@given(data=st.data())
@examples(20)
def test_written_compositions_are_stores_that_verify(
    bases: Bases, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store, sentences = (case := composed(data.draw, bases)).store, case.sentences
    folder = tmp_path_factory.mktemp("written")

    written = store.write(folder / "store", shard_rows=16)

    assert not written.verify().faults
    np.testing.assert_array_equal(written.read(), rows_of(sentences))
    assert [one.tokens for one in written] == [one.tokens for one in sentences]
    assert [one.id for one in written] == [one.id for one in sentences]


@given(data=st.data())
@examples(20)
def test_exported_compositions_hold_their_sentences(
    bases: Bases, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store, sentences = (case := composed(data.draw, bases)).store, case.sentences
    path = tmp_path_factory.mktemp("exported") / "out.hdf5"

    store.export(path, "bilm")

    with h5py.File(path) as file:
        assert sorted(map(int, file)) == list(range(len(sentences)))
        for number, one in enumerate(sentences):
            fwd2 = file[str(number)][2, :, :8]
            np.testing.assert_array_equal(fwd2, one.states[:, 3].astype(np.float32))


@given(data=st.data())
@examples(30)
def test_compositions_survive_pickling(bases: Bases, data: st.DataObject) -> None:
    case = composed(data.draw, bases)

    again = pickle.loads(pickle.dumps(case.store))

    np.testing.assert_array_equal(again.read(), rows_of(case.sentences))
    assert repr(again) == repr(case.store)


def test_ids_are_found_in_views_and_repeated_sentences(bases: Bases) -> None:
    store = bases[0].store

    view = store[[3, 1, 3]]

    assert view.sentence(id="doc-0.txt:3").index == 0
    assert view.find_text([store[1].tokens]) == [1]
    with pytest.raises(SentenceNotFoundError, match=r"doc-0.txt:0"):
        view.sentence(id="doc-0.txt:0")


def test_an_id_of_two_stores_is_ambiguous(bases: Bases, tmp_path: Path) -> None:
    bases[0].store.write(tmp_path / "copy")
    both = elmo_store.concat([bases[0].store, elmo_store.open(tmp_path / "copy")])

    with pytest.raises(AmbiguousIdError, match="2 sentences"):
        both.sentence(id="doc-0.txt:3")


def test_a_view_is_not_written_into_its_own_store(bases: Bases) -> None:
    store = bases[0].store

    with pytest.raises(OverlapError):
        store[:2].write(f"{store.url}/part")


def test_a_closed_store_reads_again(bases: Bases) -> None:
    case = bases[0]

    with elmo_store.open(case.store.url) as store:
        first = store.read()

    np.testing.assert_array_equal(store.read(), first)
