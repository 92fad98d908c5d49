"""Documents of sentences that are tokenised already: lists of lists in a field, and the files of coreference programs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.transforms.reading import records, rejects, tokens, write
from transforms.inputs.records import ReadSentence, ReadSettings, Reject
from transforms.stages.number import sentence_id

DOCUMENTS: list[dict[str, Any]] = [
    # as e2e-coref's minimised OntoNotes has them: `doc_key` ends with the number of the document's part
    {
        "doc_key": "bc/cctv/00/cctv_0000_0",
        "sentences": [["In", "1997", "."], [], ["a b", "don't", "/."]],
        "speakers": [["-", "-", "-"], [], ["-", "-", "-"]],
        "clusters": [[[0, 0], [3, 3]]],
        "text": "a field that is there too",
    },
    {"doc_key": "nw/wsj/23/wsj_2301_0", "sentences": []},
    {"doc_key": 17, "sentences": [["X"]], "ner": [], "relations": []},  # DyGIE's
]
IDS = [
    "bc/cctv/00/cctv_0000_0:0",
    "bc/cctv/00/cctv_0000_0:1",
    "bc/cctv/00/cctv_0000_0:2",
    "nw/wsj/23/wsj_2301_0:0",
    "17:0",
]
TOKENS = [["In", "1997", "."], [], ["a b", "don't", "/."], [], ["X"]]


def ids(path: Path, settings: ReadSettings | None = None) -> list[str]:
    """The ids that the records of a file get in a store."""
    return [
        sentence_id(r.id, str(path), r.position, r.within) for r in records(path, settings=settings)
    ]


def as_lines(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonlines",
        "a.english.v4_gold.JSONLINES.gz",
        "a.jsonl",
        "a.ndjson",
        "a.json",
        "array.json",
    ],
)
def test_files_of_coreference_are_documents_without_options(tmp_path: Path, name: str) -> None:
    data = json.dumps(DOCUMENTS).encode() if name.startswith("array") else as_lines(DOCUMENTS)
    path = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    found = records(path)
    assert tokens(found) == TOKENS
    assert ids(path) == IDS
    assert [record.position for record in found] == [0, 0, 0, 1, 2]
    assert not rejects(found)


def test_a_field_or_an_id_that_is_asked_for_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonlines", as_lines([DOCUMENTS[0] | {"key": "k"}]))
    assert tokens(records(path, settings=ReadSettings(text_field="text"))) == [
        ["a", "field", "that", "is", "there", "too"]
    ]
    assert ids(path, ReadSettings(id_field="key")) == ["k:0", "k:1", "k:2"]
    settings = ReadSettings(text_field="speakers")
    assert tokens(records(path, settings=settings)) == [["-"] * 3, [], ["-"] * 3]
    assert ids(path, settings) == ["a.jsonlines:0:0", "a.jsonlines:0:1", "a.jsonlines:0:2"]


@pytest.mark.parametrize("value", [3, "two", None])
def test_sentences_that_are_no_list_leave_a_text_as_it_is(tmp_path: Path, value: object) -> None:
    path = write(
        tmp_path / "a.jsonl", as_lines([{"doc_key": "d", "sentences": value, "text": "One. Two."}])
    )
    assert tokens(records(path)) == [["One", "."], ["Two", "."]]


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ([1, 2], "token 0 of sentence 1 of field 'sentences' is a number, not a string"),
        (["a", ["b"]], "token 1 of sentence 1 of field 'sentences' is a list, not a string"),
        ("a b", "sentence 1 of field 'sentences' is a string, not a list of strings"),
        (None, "sentence 1 of field 'sentences' is null, not a list of strings"),
        (["a", ""], "token 1 of sentence 1 of field 'sentences' is an empty string"),
        (["a\0"], "token 0 of sentence 1 of field 'sentences' has a NUL character"),
    ],
)
def test_a_sentence_that_cant_be_used_is_refused_in_its_place(
    tmp_path: Path, sentence: object, reason: str
) -> None:
    line = as_lines([{"doc_key": "d", "sentences": [["a"], sentence, ["c"]]}])
    first, refused, last = records(write(tmp_path / "a.jsonlines", line))
    assert (first, last) == (
        ReadSentence(("a",), "d", 0, within=0),
        ReadSentence(("c",), "d", 0, within=2),
    )
    assert refused == Reject(0, reason, line.decode().strip(), "d", within=1)


@pytest.mark.parametrize(
    ("document", "reason", "own_id"),
    [
        ({"doc_key": "", "sentences": [["a"]]}, "id field 'doc_key' is empty", "a.jsonlines:1:0"),
        (
            {"doc_key": None, "sentences": [["a"]]},
            "id field 'doc_key' is null, not a string or an integer",
            "a.jsonlines:1:0",
        ),
        (
            {"doc_key": ["d"], "sentences": [["a"]]},
            "id field 'doc_key' is a list, not a string or an integer",
            "a.jsonlines:1:0",
        ),
        (
            {"doc_key": "d:1", "sentences": 3},
            "field 'sentences' is a number, not a list of lists of strings",
            "d:1:0",
        ),
        (
            {"doc_key": "d:1", "sentences": "a b"},
            "field 'sentences' is a string, not a list of lists of strings",
            "d:1:0",
        ),
        (
            {"doc_key": "d:1", "sentences": None},
            "field 'sentences' is null, not a list of lists of strings",
            "d:1:0",
        ),
    ],
)
def test_a_document_that_cant_be_used_is_one_reject(
    tmp_path: Path, document: Any, reason: str, own_id: str
) -> None:
    good = {"doc_key": "d", "sentences": [["a"], ["b"]]}
    path = write(tmp_path / "a.jsonlines", as_lines([good, document, good | {"doc_key": "e"}]))
    (reject,) = rejects(records(path))
    assert reject.reason == reason
    assert ids(path) == ["d:0", "d:1", own_id, "e:0", "e:1"]


def test_ids_of_documents_whose_names_hold_numbers_differ(tmp_path: Path) -> None:
    documents = [
        {"doc_key": key, "sentences": [["a"], ["b"]]}
        for key in ("d", "d:0", "d:1", "d:1:0", "d/1", "d_1", "d:")
    ]
    made = ids(write(tmp_path / "a.jsonlines", as_lines(documents)))
    assert len(set(made)) == len(made) == 14


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_lists_of_lists_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    values = [
        [
            [token.encode() if kind == pa.binary() else token for token in each]
            for each in doc["sentences"]
        ]
        for doc in DOCUMENTS
    ]
    columns = {
        "doc_key": pa.array(["a", "b", "c"]),
        "sentences": pa.array(values, pa.list_(pa.large_list(kind))),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert tokens(records(tmp_path / "a.parquet")) == TOKENS
    assert ids(tmp_path / "a.parquet") == ["a:0", "a:1", "a:2", "b:0", "c:0"]
    settings = ReadSettings(text_field="sentences", id_field="doc_key")
    assert tokens(records(tmp_path / "a.parquet", settings=settings)) == TOKENS
