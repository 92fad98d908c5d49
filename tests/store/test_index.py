"""An index chooses sentences and rows as NumPy's does, in every call that takes one; anything else is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import SentenceNotFoundError
from elmo_store.reading.index import resolve_index, resolve_number
from elmo_store.torch import Elmo, SentenceDataset, SentenceStream
from tests.examples import examples
from tests.store.support import LENGTHS, Written, make_store

N = len(LENGTHS)
WHERE = "a store"
INTEGER_DTYPES = ("int8", "uint8", "int32", "uint16", "int64", "uint64")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return make_store(str(tmp_path_factory.mktemp("index") / "store"))


@pytest.fixture(scope="module")
def store(written: Written) -> elmo_store.Store:
    return elmo_store.open(written.root.url())


@st.composite
def sizes_and_indices(draw: st.DrawFn) -> tuple[int, Any]:
    """A size, and an index that NumPy accepts or finds out of range: of every kind that we document."""
    size = draw(st.integers(0, 300))
    number = st.integers(-size - 2, size + 1)
    numbers = st.lists(number, max_size=8)
    dtype = draw(st.sampled_from(INTEGER_DTYPES))
    limits = np.iinfo(dtype)
    fitting = st.lists(
        st.integers(max(limits.min, -size - 2), min(limits.max, size + 1)), max_size=8
    )
    mask = st.lists(st.booleans(), min_size=size, max_size=size)
    index: Any = draw(
        st.one_of(
            number,
            number.map(np.int64),
            number.map(np.array),
            numbers,
            numbers.map(tuple),
            fitting.map(lambda values: np.array(values, dtype)),
            st.slices(size),
            st.builds(range, number, number, st.sampled_from([-3, -1, 1, 2])),
            mask,
            mask.map(lambda values: np.array(values, bool)),
        )
    )
    return size, index


@examples(400)
@given(case=sizes_and_indices())
def test_numbers_are_those_that_numpy_chooses(case: tuple[int, Any]) -> None:
    size, index = case
    as_list = isinstance(index, tuple | range)  # NumPy takes a tuple for an index of several axes
    try:
        expected = np.arange(size)[list(index) if as_list else index]
    except IndexError:
        with pytest.raises(SentenceNotFoundError, match=f"it has {size} sentence"):
            resolve_index(index, size, "sentence", WHERE)
        return
    except ValueError:  # a step of 0
        with pytest.raises(ValueError, match="step"):
            resolve_index(index, size, "sentence", WHERE)
        return
    found = resolve_index(index, size, "sentence", WHERE)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert isinstance(found, int) == (np.ndim(expected) == 0)


NOT_INDICES: list[Any] = [
    "5", b"5", "", True, np.True_, 1.9, np.float64(1.0), None, ..., object(), {0, 1}, {0: 1}, iter([0]),
    ["5", "4"], [1.9], [1.0], [None], [[0]], [[0], [1, 2]], [True, 2], [np.True_, 2], ["0", 1], [2**70, "x"],
    np.array([0.0]), np.array([]), np.array([[0]]), np.array(True), np.array([0], object), np.array(["0"]),
    np.ones((N, 1), bool), torch.tensor([0.5]), torch.tensor(True), slice("0", None), slice(0.5), slice(True, None),
]  # fmt: skip


def _kind(index: Any) -> str:
    return type(index).__name__


@pytest.mark.parametrize("index", NOT_INDICES, ids=_kind)
def test_what_is_no_index_is_a_type_error_that_shows_it(index: Any) -> None:
    with pytest.raises(TypeError, match=r"sentences of a store can't be chosen by .+: pass"):
        resolve_index(index, N, "sentence", WHERE)


@pytest.mark.parametrize("index", [slice(2), [1], np.array([1]), range(2), *NOT_INDICES], ids=_kind)
def test_a_number_is_one_integer(index: Any) -> None:
    with pytest.raises(TypeError, match=r"a sentence of a store can't be chosen by .+: pass"):
        resolve_number(index, N, "sentence", WHERE)


@pytest.mark.parametrize("index", [2**70, [2**70], [0, -(2**70)], [2**63, -1], np.uint64(2**63)])
def test_an_integer_of_any_size_is_out_of_range(index: Any) -> None:
    with pytest.raises(IndexError, match=r"no sentence -?\d+ in a store: it has 8 sentences"):
        resolve_index(index, N, "sentence", WHERE)


def test_a_mask_of_another_length_is_an_index_error() -> None:
    for mask in ([True], np.ones(N + 1, bool), np.zeros(0, bool)):
        with pytest.raises(IndexError, match=rf"a mask of {len(mask)} values .* 8 sentences"):
            resolve_index(mask, N, "sentence", WHERE)


def _items(data: SentenceDataset) -> list[Any]:
    return [data[item] for item in range(len(data))]


def _ids(view: elmo_store.Store) -> list[int]:
    return [int(sentence.id[8:]) for sentence in view]


def _numbers_of(source: Any) -> list[int]:
    return [sentence.index for sentence in source]


# How each call names the sentences that an index of several chooses.
CALLS: dict[str, Callable[[elmo_store.Store, Any], list[int]]] = {
    "[]": lambda store, index: _ids(store[index]),
    "select": lambda store, index: _ids(store.select(index)),
    "read_sentences": lambda store, index: list(store.read_sentences(index).numbers),
    "records": lambda store, index: [record.index for record in store._view.records(index)],
    "table": lambda store, index: store.table(["sentence"], index)["sentence"].to_pylist(),
    "texts": lambda store, index: [int(name[8:]) for name in store._view.texts(index)[0]],
    "spans": lambda store, index: [
        [span.span for span in store].index(tuple(span))
        for span in store._view.spans(index).tolist()
    ],
    "dataset": lambda store, index: [
        item["index"] for item in _items(SentenceDataset(store, indices=index))
    ],
    "stream": lambda store, index: [
        number
        for batch in SentenceStream(store.select(index), shuffle=False, bucket=False)
        for number in [int(name[8:]) for name in batch["id"]]
    ],
    "of a selection": lambda store, index: [int(sentence.id[8:]) for sentence in store[:N][index]],
    "records of a concatenation": lambda store, index: [
        record.index for record in elmo_store.concat([store])._view.records(index)
    ],
    "table of a concatenation": lambda store, index: (
        elmo_store.concat([store]).table(["sentence"], index)["sentence"].to_pylist()
    ),
}
INDICES: dict[str, Any] = {
    "list": [6, 0, 3],
    "negative": [-1, -N, 3],
    "mask": np.arange(N) % 3 == 0,
    "list of booleans": [number in (1, 4) for number in range(N)],
    "small dtype": np.array([7, 1], np.uint8),
    "range": range(7, 0, -3),
    "negative range": range(-3, 0),
    "slice": slice(None, None, -2),
    "empty": [],
    "tensor": torch.tensor([4, 3]),
}
CHOSEN: dict[str, list[int]] = {
    "list": [6, 0, 3],
    "negative": [7, 0, 3],
    "mask": [0, 3, 6],
    "list of booleans": [1, 4],
    "small dtype": [7, 1],
    "range": [7, 4, 1],
    "negative range": [5, 6, 7],
    "slice": [7, 5, 3, 1],
    "empty": [],
    "tensor": [4, 3],
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", INDICES)
def test_every_call_takes_every_kind_of_index(
    store: elmo_store.Store, call: str, kind: str
) -> None:
    assert CALLS[call](store, INDICES[kind]) == CHOSEN[kind]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("index", [["5", "4"], [1.9], [[1]], None, 1.9, True], ids=repr)
def test_every_call_refuses_what_is_no_index(
    store: elmo_store.Store, call: str, index: Any
) -> None:
    if (index is None and call in ("dataset", "read_sentences")) or (
        index is None and "table" in call
    ):
        return  # it stands for all sentences, or for ids
    with pytest.raises(TypeError, match="can't be chosen by"):
        CALLS[call](store, index)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_names_a_sentence_that_is_not_there(store: elmo_store.Store, call: str) -> None:
    for index in ([0, N], [-N - 1]):
        with pytest.raises(
            SentenceNotFoundError, match=f"no sentence {index[-1]} in .*8 sentences"
        ):
            CALLS[call](store, index)


@pytest.mark.parametrize("index", ["5", 1.9, True, np.True_, [1], slice(3)], ids=repr)
def test_one_sentence_is_chosen_by_an_integer_only(store: elmo_store.Store, index: Any) -> None:
    data = SentenceDataset(store)
    for call in (store.sentence, store._view.span, store.sentence_at, data.__getitem__):
        with pytest.raises(TypeError, match="can't be chosen by"):
            call(index)


def test_one_sentence_is_counted_from_the_end(store: elmo_store.Store) -> None:
    assert store.sentence(-1) == store.sentence(N - 1) == store[-1]
    assert store._view.span(-1) == store._view.span(N - 1)
    assert store.sentence_at(-1) == store[-1]
    assert SentenceDataset(store)[-2]["index"] == N - 2


EDGES = [(0, None), (2, 5), (-3, None), (None, -2), (5, 3), (0, 99), (-99, 4), (99, None)]


@pytest.mark.parametrize(("first", "stop"), EDGES)
def test_first_and_stop_are_those_of_a_slice(
    store: elmo_store.Store, first: Any, stop: Any
) -> None:
    expected = list(range(N))[first:stop]
    chosen = slice(first, stop)
    assert _numbers_of(store.sentences(chosen)) == expected
    assert store.table(["sentence"], chosen)["sentence"].to_pylist() == expected
    assert _ids(store[first:stop]) == expected
    batches = store[chosen].batches(3)
    assert [sentence.id for batch in batches for sentence in batch.sentences] == [
        f"doc.txt:{number}" for number in expected
    ]


@pytest.mark.parametrize("edge", ["3", 1.5, True, [1]], ids=repr)
def test_an_edge_that_is_no_integer_is_refused(store: elmo_store.Store, edge: Any) -> None:
    for call in (
        lambda: store[edge:],
        lambda: store[:edge],
        lambda: list(store.sentences(slice(edge))),
        lambda: store.table(["id"], slice(0, edge)),
    ):
        with pytest.raises(TypeError, match="can't be chosen by"):
            call()


def test_rows_follow_the_same_rules(store: elmo_store.Store, written: Written) -> None:
    mask = written.index == 0
    np.testing.assert_array_equal(store.read("x", mask)[:, 0], written.states[mask, 0])
    np.testing.assert_array_equal(store["x"][range(-3, 0)], written.states[-3:, 0])
    row_tokens = np.array(written.row_tokens)
    for rows in ([5, -1, 5], slice(40, 3, -7), range(30, 10, -3), mask, [], 0, -1):
        numpy_rows = np.array(rows, int) if isinstance(rows, list) else rows
        assert store.tokens(rows) == np.atleast_1d(row_tokens[numpy_rows]).tolist()
    wrong: list[Any] = ["5", [1.5], True, [[1]]]
    for rows in wrong:
        for call in (store["x"].__getitem__, lambda rows: store.read("x", rows), store.tokens):
            with pytest.raises(TypeError, match=r"rows of .* can't be chosen by"):
                call(rows)
    with pytest.raises(IndexError, match=r"no row 49 in .*: it has 49 rows"):
        store.read("x", [0, 49])


def test_an_index_of_two_axes_is_refused(store: elmo_store.Store) -> None:
    views: list[Any] = [store, store["x"]]
    for view in views:
        for index in ((1, 2), (slice(3), 0), ("x", 1)):
            with pytest.raises(TypeError, match="one axis"):
                view[index]


def test_elmo_reads_the_sentences_that_numbers_choose(store: elmo_store.Store) -> None:
    elmo = Elmo(store, 1, dropout=0.0)
    expected = elmo([N - 1, 1, N - 1])["elmo_representations"][0]
    for numbers in ([-1, 1, N - 1], torch.tensor([-1, 1, -1]), np.array([7, -7, 7], np.int8)):
        assert torch.equal(elmo(numbers)["elmo_representations"][0], expected)
    masks: list[Any] = [[True, False], np.ones(N, bool), torch.ones(N, dtype=torch.bool)]
    for mask in masks:
        with pytest.raises(TypeError, match="sentence numbers"):
            elmo(mask)


def test_one_string_stands_for_a_list_of_it(tmp_path: Path) -> None:
    lengths, parts = (2,) * 60, (60,)
    store = elmo_store.open(make_store(str(tmp_path), lengths=lengths, parts=parts).root.url())
    assert store._view.find_ids(["doc.txt:54"]) == [[54]]
    for readable in (store, elmo_store.concat([store]), store[:60]):
        assert readable.read_sentences(ids="doc.txt:54").numbers == [54]
    text = " ".join(store.sentence(54).tokens)
    assert store.find_text(text) == store.find_text([text]) == [54]
    assert store.table("id").column_names == ["id"]
    assert store.table("id", [1]).column_names == ["id"]
    data = SentenceDataset(store, states="fwd1")
    stream = SentenceStream(store, states="fwd1")
    assert data.states == stream.states == ("fwd1",)
    assert data[0]["states"].shape[-2] == next(iter(stream))["states"].shape[-2] == 1


def test_ids_and_texts_of_another_kind_are_refused(store: elmo_store.Store) -> None:
    wrong: Sequence[Any] = (54, [54], b"54", None)
    for ids in wrong:
        with pytest.raises(TypeError):
            store.read_sentences(ids=ids)
    for texts in (54, [54], b"w0 .", [b"w0"]):
        with pytest.raises(TypeError):
            store.find_text(texts)  # type: ignore[arg-type]


def test_a_selection_keeps_plain_numbers(store: elmo_store.Store) -> None:
    chosen: npt.NDArray[Any] = np.array([3, 1], np.uint8)
    numbers = store.read_sentences(chosen).numbers
    assert numbers == [3, 1]
    assert {type(number) for number in numbers} == {int}
