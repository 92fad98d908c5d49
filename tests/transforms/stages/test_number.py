"""Final parts: numbers, positions, ids and rejects of scratch parts in their place; where rows begin; hashes of ids."""

import hashlib
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.format import layout
from elmo_store.format.fields import sentences_schema
from elmo_store.format.ids import hashes
from elmo_store.format.layout import rejects_part, sentences_part
from elmo_store.format.manifest import write_manifest
from elmo_store.format.markers import PartGroupMarker, PartRange, read_marker
from elmo_store.format.texts import hash_texts
from elmo_store.reading.sentences import read_sentence_chunks
from elmo_store.storage.root import Root
from tests.examples import examples
from tests.store.support import make_manifest
from transforms.inputs.records import (
    FileIdentity,
    ReadSettings,
    ReadTask,
    ScratchPart,
    Split,
    TaskResult,
)
from transforms.runtime.work import PLAN, id_hashes
from transforms.stages import plan
from transforms.stages.number import merge_ids, number_parts, runs_to_do
from transforms.stages.plan import PartGroup, PartPlan, make_plan, part_groups

SENTENCES = [["a", "b"], [], ["c"], []]
N_SENTENCES, N_ROWS = 54, 203  # of the corpus, whose part 7 is `SENTENCES`


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    put_manifest(root)
    root.put_json(PLAN, {"id": "plan", "resumed": False})
    return root


def put_manifest(root: Root, boundaries: bool = False) -> None:
    lengths = (N_ROWS, *[0] * (N_SENTENCES - 1))
    manifest = make_manifest(lengths=lengths, parts=(N_SENTENCES,), shard_rows=64)
    write_manifest(root, replace(manifest, boundaries=boundaries))


def task(
    root: Root, *, rejects: bool = False, ids: tuple[str, ...] = ("", "", "x", "")
) -> PartGroup:
    table = pa.table(
        {
            "id": list(ids),
            "source": ["s3://bucket/folder/a.txt"] * 4,
            "position": [0, 1, 2, 3],
            "ordinal": [-1, 5, -1, -1],
            "within": [-1, 2, -1, -1],
            "document_sentence": [3, -1, -1, 0],
            "document_start": [-1, -1, -1, 3],
            "document": [""] * 4,
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
    scratch = ScratchPart(
        "_work/parts/x.parquet", "_work/rejects/x.jsonl" if rejects else "",
        4, 3, 2, int(rejects), 0, len(sink.getvalue()), hashlib.sha256(sink.getvalue()).hexdigest(),
    )  # fmt: skip
    part = PartPlan(
        scratch,
        100,
        30,
        ("of before", 9),
        PartRange(7, first_sentence=50, n_sentences=4, first_row=200, n_rows=3),
    )
    return PartGroup(3, (part,), (), 1, 1)  # its sentences begin no chunk


def test_numbers_go_on_from_where_the_part_begins(root: Root) -> None:
    number_parts(task(root), root)
    table = pq.read_table(BytesIO(root.get(sentences_part(7))))
    assert table.schema.equals(sentences_schema(()))
    assert table["sentence"].to_pylist() == [50, 51, 52, 53]
    assert table["first_row"].to_pylist() == [200, 202, 202, 203]
    assert table["position"].to_pylist() == [100, 101, 102, 103]
    assert table["id"].to_pylist() == ["a.txt:100", "a.txt:35:2", "x", "a.txt:103"]
    assert table["tokens"].to_pylist() == SENTENCES
    assert table["document"].to_pylist() == ["of before", "a.txt:35", "x", "a.txt:103"]
    assert table["document_sentence"].to_pylist() == [12, 2, 0, 0]


def test_boundaries_add_two_rows_to_sentences_that_have_tokens(root: Root) -> None:
    put_manifest(root, boundaries=True)
    number_parts(task(root), root)
    table = pq.read_table(BytesIO(root.get(sentences_part(7))), columns=["first_row"])
    assert table["first_row"].to_pylist() == [200, 204, 204, 207]


def test_rejects_get_the_sentence_they_hold_the_place_of(root: Root) -> None:
    number_parts(task(root, rejects=True), root)
    lines = root.get(rejects_part(7)).decode().split("\n")
    assert len(lines) == 2
    reject = json.loads(lines[0])
    assert (reject["sentence"], reject["position"], reject["id"]) == (53, 103, "a.txt:103")
    assert reject["raw"] == "\u2028é"


def test_numbering_twice_gives_the_same_bytes(root: Root) -> None:
    number_parts(task(root), root)
    first = root.get(sentences_part(7))
    number_parts(task(root), root)
    assert root.get(sentences_part(7)) == first


def test_a_scratch_part_that_changed_is_refused_by_name(root: Root) -> None:
    given = task(root)
    root.put("_work/parts/x.parquet", root.get("_work/parts/x.parquet") + b" ")
    with pytest.raises(ValueError, match=r"_work/parts/x\.parquet"):
        number_parts(given, root)


def result(number: int, part: ScratchPart) -> TaskResult:
    task = ReadTask(number, (Split(number, "a.txt", "lines", FileIdentity(1, "v")),))
    return TaskResult(task, ReadSettings(), (part,), part.n_sentences, 0, "whitespace")


def part_of(n_sentences: int, n_tokens: int) -> ScratchPart:
    return ScratchPart(
        "x", "", n_sentences, n_tokens, min(n_sentences, n_tokens), 0, 0, 9, "0" * 64
    )


@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(1, 5),
)
def test_groups_tile_the_parts_and_the_chunks(
    sizes: list[int], chunk: int, most: int, most_parts: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "GROUP_SENTENCES", most)
        patch.setattr(plan, "GROUP_PARTS", most_parts)
        parts = make_plan(
            [result(i, part_of(n, n)) for i, n in enumerate(sizes)], shard_rows=4, boundaries=False
        ).parts
        found = part_groups(parts, sum(sizes), chunk)
    assert [part.range.part for one in found for part in one.parts] == list(range(len(sizes)))
    assert [c for one in found for c in range(one.first_chunk, one.stop_chunk)] == list(
        range(-(-(sum(sizes) + 1) // chunk))
    )
    for one in found:
        assert len(one.parts) <= most_parts
        ranges = [part.range for part in (*one.parts, *one.after)]
        held = {
            s for p in ranges for s in range(p.first_sentence, p.first_sentence + p.n_sentences)
        }
        needed = {
            s
            for c in range(one.first_chunk, one.stop_chunk)
            for s in range(c * chunk, (c + 1) * chunk)
            if s < sum(sizes)
        }
        assert needed <= held
        first = one.parts[0].range.first_sentence if one.parts else 0
        assert all(first <= c * chunk for c in range(one.first_chunk, one.stop_chunk))


@examples(25)  # each example writes a store's worth of files
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 9),
)
def test_any_parts_give_the_same_starts_and_ids(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    per_part: int,
    parts_of_group: int,
    chunk: int,
) -> None:
    root = Root(tmp_path_factory.mktemp("numbered"))
    parts = []
    for part in range(0, len(lengths), per_part):
        own = lengths[part : part + per_part]
        table = pa.table(
            {
                "id": [f"s{part + i}" for i in range(len(own))],
                "source": ["a.txt"] * len(own),
                "position": list(range(len(own))),
                "ordinal": [-1] * len(own),
                "within": [-1] * len(own),
                "document_sentence": [-1] * len(own),
                "document_start": [-1] * len(own),
                "document": [""] * len(own),
                "n_tokens": pa.array(own, pa.int32()),
                "tokens": pa.array([["w"] * n for n in own], pa.list_(pa.string())),
            }
        )
        sink = BytesIO()
        pq.write_table(table, sink)
        root.put(f"_work/parts/{part}.parquet", sink.getvalue())
        digest = hashlib.sha256(sink.getvalue()).hexdigest()
        nonempty = sum(n > 0 for n in own)
        parts.append(
            ScratchPart(
                f"_work/parts/{part}.parquet", "", len(own), sum(own), nonempty, 0, 0, 9, digest
            )
        )
    corpus = make_plan(
        [result(i, part) for i, part in enumerate(parts)], shard_rows=16, boundaries=True
    )
    manifest = make_manifest(
        lengths=lengths,
        parts=[part.n_sentences for part in parts],
        boundaries=True,
        sentence_chunk=chunk,
    )
    write_manifest(root, manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "GROUP_PARTS", parts_of_group)
        patch.setattr(layout, "IDS_OF_TABLE", 4)
        found = part_groups(corpus.parts, len(lengths), chunk)
        bits = layout.id_bits(len(lengths))
        root.put_json(
            PLAN, {"id": "p", "n_part_groups": len(found), "n_id_runs": 1 << bits, "resumed": False}
        )
        for one in found:
            number_parts(one, root)
            assert read_marker(root, PartGroupMarker, one.number) is not None
        write_manifest(root, manifest.__class__(**{**vars(manifest), "complete": False}))
        assert list(runs_to_do([], root)) == list(range(1 << bits))
        for run in runs_to_do([], root):
            merged = merge_ids(run, root)
            assert not [
                id_hashes(run, one.number)
                for one in found
                if root.exists(id_hashes(run, one.number))
            ]
            assert merge_ids(run, root) == merged  # a second copy of the task
        by_kind = [
            [pq.read_table(BytesIO(root.get(path_of(i)))) for i in range(1 << bits)]
            for path_of in (layout.id_table, layout.text_table)
        ]
    rows = [n + 2 if n else 0 for n in lengths]
    starts = [0, *np.cumsum(rows).tolist()]
    entries = np.concatenate(read_sentence_chunks(root, manifest, range(-(-len(starts) // chunk))))
    assert entries[: len(starts)].tolist() == starts
    of_ids, of_texts = (
        hashes(f"s{i}" for i in range(len(lengths))),
        hash_texts([["w"] * n for n in lengths], None),
    )
    for tables, wanted in zip(by_kind, (of_ids, of_texts), strict=True):
        found_keys = [
            key
            for t in tables
            for key in zip(*(t[name].to_pylist() for name in t.column_names), strict=True)
        ]
        assert found_keys == sorted((high, low, i) for i, (high, low) in enumerate(wanted.tolist()))
