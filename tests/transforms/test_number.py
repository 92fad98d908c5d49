"""Final parts: numbers, positions, ids and rejects of a scratch part in its place."""

import hashlib
import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elmo_store.layout import SENTENCES_SCHEMA, rejects_part, sentences_part
from elmo_store.storage import Root
from transforms.number import NumberTask, is_numbered, number_part
from transforms.plan import PartCounts, PartPlan

SENTENCES = [["a", "b"], [], ["c"], []]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def task(root: Root, *, rejects: bool = False, boundaries: bool = False, ids: tuple[str, ...] = ("", "", "x", "")) -> NumberTask:
    table = pa.table(
        {
            "id": list(ids),
            "source": ["s3://bucket/folder/a.txt"] * 4,
            "position": [0, 1, 2, 3],
            "ordinal": [-1, 5, -1, -1],
            "within": [-1, 2, -1, -1],
            "n_tokens": pa.array([len(s) for s in SENTENCES], pa.int32()),
            "tokens": pa.array(SENTENCES, pa.list_(pa.string())),
        }
    )
    sink = BytesIO()
    pq.write_table(table, sink)
    root.put("_work/parts/x.parquet", sink.getvalue())
    if rejects:
        reject = {"sentence": 3, "id": "", "source": "s3://bucket/folder/a.txt", "position": 3}
        reject |= {"ordinal": -1, "within": -1, "reason": "bad", "raw": "\u2028é"}
        root.put("_work/rejects/x.jsonl", (json.dumps(reject, ensure_ascii=False) + "\n").encode())
    counts = PartCounts(
        "_work/parts/x.parquet", "_work/rejects/x.jsonl" if rejects else "",
        4, 3, 2, int(rejects), 0, 100, 30, hashlib.sha256(sink.getvalue()).hexdigest(),
    )  # fmt: skip
    return NumberTask(PartPlan(7, counts, first_sentence=50, first_row=200, n_rows=counts.n_rows(boundaries)), boundaries)


def test_numbers_go_on_from_where_the_part_begins(root: Root) -> None:
    assert number_part(root, task(root)).n_sentences == 4
    table = pq.read_table(BytesIO(root.get(sentences_part(7))))
    assert table.schema.equals(SENTENCES_SCHEMA)
    assert table["sentence"].to_pylist() == [50, 51, 52, 53]
    assert table["first_row"].to_pylist() == [200, 202, 202, 203]
    assert table["position"].to_pylist() == [100, 101, 102, 103]
    assert table["id"].to_pylist() == ["a.txt:100", "a.txt:35:2", "x", "a.txt:103"]
    assert table["tokens"].to_pylist() == SENTENCES


def test_boundaries_add_two_rows_to_sentences_that_have_tokens(root: Root) -> None:
    number_part(root, task(root, boundaries=True))
    table = pq.read_table(BytesIO(root.get(sentences_part(7))), columns=["first_row"])
    assert table["first_row"].to_pylist() == [200, 204, 204, 207]


def test_rejects_get_the_sentence_they_hold_the_place_of(root: Root) -> None:
    number_part(root, task(root, rejects=True))
    lines = root.get(rejects_part(7)).decode().split("\n")
    assert len(lines) == 2
    reject = json.loads(lines[0])
    assert (reject["sentence"], reject["position"], reject["id"]) == (53, 103, "a.txt:103")
    assert reject["raw"] == "\u2028é"


def test_a_part_that_was_numbered_is_known_by_its_place_and_text(root: Root) -> None:
    done = task(root)
    assert not is_numbered(root, done)
    number_part(root, done)
    assert is_numbered(root, done)
    assert not is_numbered(root, task(root, boundaries=True))
    assert not is_numbered(root, task(root, ids=("", "", "y", "")))
    root.put(sentences_part(7), root.get(sentences_part(7))[:-3])
    assert not is_numbered(root, done)


def test_numbering_twice_gives_the_same_bytes(root: Root) -> None:
    number_part(root, task(root))
    first = root.get(sentences_part(7))
    number_part(root, task(root))
    assert root.get(sentences_part(7)) == first


def test_a_scratch_part_that_changed_is_refused_by_name(root: Root) -> None:
    given = task(root)
    root.put("_work/parts/x.parquet", root.get("_work/parts/x.parquet") + b" ")
    with pytest.raises(ValueError, match=r"_work/parts/x\.parquet"):
        number_part(root, given)
