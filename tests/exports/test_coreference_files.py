"""From the files of coreference programs to the files that those programs read: `embed`, then `export`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.exports import export
from elmo_store.store import Store
from pipeline.main import main
from tests.exports.test_hdf5 import datasets_of, dygie, e2e_coref, lsgn

DOCUMENTS: list[dict[str, Any]] = [
    {
        "doc_key": "bc/cctv/00/cctv_0000_0",
        "sentences": [["In", "1997", "."], ["A", "b"]],
        "clusters": [[[0, 0], [3, 3]]],
    },
    {
        "doc_key": "bc/cctv/00/cctv_0000_1",
        "sentences": [["One"], [], ["Two", "words"]],
        "clusters": [],
    },
    {"doc_key": "J01-1001", "sentences": [["Last", "one", "."]], "ner": [[[0, 1, "Task"]]]},
]


def embedded(folder: Path, model: Path, documents: list[dict[str, Any]]) -> Store:
    source = folder / "test.english.jsonlines"
    source.write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert (
        main(
            [
                "embed",
                str(source),
                "--output",
                str(folder / "store"),
                "--model",
                str(model),
                "--quiet",
                "--dtype",
                "float32",
            ]
        )
        == 0
    )
    return elmo_store.open(folder / "store")


def test_a_document_is_read_back_by_its_key_and_the_sentences_numbers(
    tmp_path: Path, tiny_model: Path
) -> None:
    store = embedded(tmp_path, tiny_model, DOCUMENTS)
    for name in ("e2e-coref", "lsgn", "dygie"):
        export(store, tmp_path / name, name)
    places = [
        (document["doc_key"], i)
        for document in DOCUMENTS
        for i in range(len(document["sentences"]))
    ]
    for number, (key, i) in enumerate(places):
        expected = store.sentence(number).layers()  # [n, 3, 32]
        assert np.array_equal(lsgn(tmp_path / "lsgn", key, i), expected.transpose(0, 2, 1))
        assert np.array_equal(dygie(tmp_path / "dygie", key, i), expected.transpose(0, 2, 1))
    for document in DOCUMENTS:
        lengths = [len(tokens) for tokens in document["sentences"]]
        read = e2e_coref(tmp_path / "e2e-coref", document["doc_key"], 32, 3)
        assert read.shape == (len(lengths), max(lengths), 32, 3)
        for i, n in enumerate(lengths):
            expected = store.sentence(places.index((document["doc_key"], i))).layers()
            assert np.array_equal(read[i, :n], expected.transpose(0, 2, 1))
    assert len(datasets_of(tmp_path / "dygie")) == len(places)


def test_a_key_that_comes_twice_is_kept_and_no_document_of_an_export(
    tmp_path: Path, tiny_model: Path
) -> None:
    store = embedded(tmp_path, tiny_model, [*DOCUMENTS, DOCUMENTS[0]])
    assert [sentence.id for sentence in store].count("bc/cctv/00/cctv_0000_0:1") == 2
    with pytest.raises(StoreError, match="'bc:cctv:00:cctv_0000_0/0' can't name a dataset"):
        export(store, tmp_path / "out.hdf5", "e2e-coref")
