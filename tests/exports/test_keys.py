"""Exports by document: names of datasets, read as the consumers' own code asks for them, and refused names."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.exports import export
from elmo_store.exports.hdf5 import NUMBERED, write_sentences
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.store import Store
from tests.exports.conftest import layers, say
from tests.exports.test_hdf5 import datasets_of, dygie, e2e_coref, lsgn
from tests.store.support import make_store

Array = npt.NDArray[Any]
Make = Callable[..., Store]


@pytest.fixture
def store_of(tmp_path: Path) -> Make:
    """A store with these ids, by default of sentences of 2, 3, 4, 2, … tokens of one file."""

    def make(
        ids: Sequence[str],
        tokens: Sequence[Sequence[str]] | None = None,
    ) -> Store:
        texts = tokens or [[f"w{i}"] * (2 + i % 3) for i in range(len(ids))]
        url = str(tmp_path / "plain")
        shutil.rmtree(url, ignore_errors=True)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        written = make_store(url, lengths=[len(text) for text in texts], parts=(len(ids),))
        view = elmo_store.open(written.root.url()).select(range(len(ids)))
        records = [
            SentenceRecord(
                i,
                ids[i],
                "in/doc.txt",
                i,
                written.starts[i],
                written.starts[i + 1] - written.starts[i],
                tuple(texts[i]),
            )
            for i in range(len(ids))
        ]
        say(view, records)
        return view.write(str(tmp_path / "store"))

    return make


def by_document(store: Store, path: Path, format: str, document: str, number: int) -> Array:
    """A sentence's vectors [n, 2p, K] as the format's own program asks for them."""
    export(store, path, format, overwrite=True)
    if format == "e2e-coref":
        n_tokens = int(np.count_nonzero(e2e_coref(path, document, 16, 3)[number].any(axis=(1, 2))))
        return e2e_coref(path, document, 16, 3)[number, :n_tokens]
    return {"lsgn": lsgn, "dygie": dygie}[format](path, document, number)


@pytest.mark.parametrize("format", ["e2e-coref", "lsgn", "dygie"])
def test_sentences_stand_where_their_ids_say(store_of: Make, tmp_path: Path, format: str) -> None:
    ids = [
        "a:1",
        "b:2",
        "a:0",
        "b:0",
        "b:1",
        "bc/cctv/00/cctv_0000_12/1",
        "bc/cctv/00/cctv_0000_12/0",
        "x:7:0",
    ]
    store = store_of(ids)
    for number, own in enumerate(ids):
        document, within = own[:-2], int(own[-1])
        expected = layers(store, number).transpose(1, 2, 0)
        assert np.array_equal(
            by_document(store, tmp_path / "out.hdf5", format, document, within), expected
        )
    assert len(datasets_of(tmp_path / "out.hdf5")) == len(ids)


def place_of(sentence_id: str) -> tuple[str, int] | None:
    match = NUMBERED.fullmatch(sentence_id)
    return None if match is None else (match[1], int(match[2]))


def test_ids_name_documents_and_numbers() -> None:
    assert (
        place_of("bc/cctv/00/cctv_0000_12/7")
        == place_of("bc/cctv/00/cctv_0000_12:7")
        == ("bc/cctv/00/cctv_0000_12", 7)
    )
    assert place_of("a:b:0") == ("a:b", 0)
    assert place_of("a:7/0") == ("a:7", 0)
    assert place_of("wsj/24:10") == ("wsj/24", 10)
    assert place_of("a\nb:0") == ("a\nb", 0)
    for own in (
        "a",
        "a:",
        ":1",
        "a:b",
        "a:-1",
        "a:²",
        "a:٣",
        "bc/cctv/00",
        "bc/cctv/00/cctv_0000_12",
        "a:01",
        "a:0\n",
        "",
    ):
        assert place_of(own) is None
    assert place_of("a:" + "9" * 5000) is None


@pytest.mark.parametrize("format", ["e2e-coref", "lsgn", "dygie"])
@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (["a:0", "a:1", "a:3", "b:0"], r"document 'a' has no sentence 2, but 3"),
        (["a/1", "a/2"], r"no sentence 0, but 2"),
        (["a:0", "a:99999999999999999999"], r"'a:99999999999999999999', is not DOCUMENT:NUMBER"),
        (
            ["a:0", "title", "a:1"],
            r"sentence 1, 'title', is not DOCUMENT:NUMBER or DOCUMENT/NUMBER: ",
        ),
        (["title", "a:0"], r"sentence 0, 'title', is not DOCUMENT:NUMBER or DOCUMENT/NUMBER: "),
    ],
)
def test_ids_that_do_not_say_which_sentence_each_is(
    store_of: Make, tmp_path: Path, ids: list[str], says: str, format: str
) -> None:
    store = store_of(ids)
    with pytest.raises(StoreError, match=says) as error:
        export(store, tmp_path / "out.hdf5", format)
    assert "embed the text with ids DOCUMENT:0, DOCUMENT:1, …" in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {
        "plain",
        "store",
    }  # nothing is written, no record either


def test_documents_that_stand_in_each_others_way(store_of: Make, tmp_path: Path) -> None:
    for ids, format, name in (
        (["a:0", "b:0", "a:0"], "lsgn", "a/0"),
        (["a:0", "a/0"], "dygie", "a_0"),
        (["a/b:0", "a:b:0"], "e2e-coref", "a:b/0"),
        (["a/b:0", "a/b_0/c:0"], "dygie", "a/b_0/c_0"),
    ):
        with pytest.raises(StoreError, match=rf"'{name}' can't name a dataset in HDF5 \(.*exists"):
            export(store_of(ids), tmp_path / "out.hdf5", format)
        assert {path.name for path in tmp_path.iterdir()} == {"plain", "store"}


@pytest.mark.parametrize(
    "keys",
    [
        ["a b", "c", "a b"],
        ["a", "a/b"],
        ["a/b", "a//b"],
        ["b /"],
        ["and/or and/."],
        ["."],
        [""],
        ["a", "a\0b"],
    ],
)
def test_names_that_hdf5_can_not_hold(tmp_path: Path, keys: list[str]) -> None:
    with (
        h5py.File(tmp_path / "out.hdf5", "w") as file,
        pytest.raises(StoreError, match="can't name a dataset in HDF5") as error,
    ):
        write_sentences(file, [(key, "", np.zeros(2)) for key in keys], index=False)
    assert repr(keys[-1]) in str(error.value)


def test_names_with_slashes_are_read_back(tmp_path: Path) -> None:
    keys = ["and/or not", "/ 5", "1/2 cup", "see http://example.com"]
    with h5py.File(tmp_path / "out.hdf5", "w") as file:
        write_sentences(
            file, [(key, "", np.full(1, number)) for number, key in enumerate(keys)], index=False
        )
        assert [file[key][0] for key in keys] == [0, 1, 2, 3]
