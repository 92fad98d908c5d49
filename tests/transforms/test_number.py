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
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_store.format import layout
from elmo_store.format.ids import hashes
from elmo_store.format.layout import SENTENCES_SCHEMA, ids_marker, rejects_part, sentences_part
from elmo_store.format.manifest import write_manifest
from elmo_store.format.markers import IdsMarker, read_stretch_marker, write_marker
from elmo_store.forms.zarr_form import read_sentence_chunks
from elmo_store.storage.root import Root
from tests.store.support import make_manifest
from transforms.runtime.work import PLAN, id_hashes
from transforms.stages import plan
from transforms.stages.index_ids import merge_ids, runs_to_do
from transforms.stages.number import NumberTask, is_numbered, number_parts
from transforms.stages.plan import PartCounts, PartPlan, Stretch, make_plan, stretches

SENTENCES = [["a", "b"], [], ["c"], []]
N_SENTENCES, N_ROWS = 54, 203  # of the corpus, whose part 7 is `SENTENCES`


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    write_manifest(root, make_manifest(lengths=(N_ROWS, *[0] * (N_SENTENCES - 1)), parts=(N_SENTENCES,), shard_rows=64))
    return root


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
    part = PartPlan(7, counts, first_sentence=50, first_row=200, n_rows=counts.n_rows(boundaries))
    return NumberTask(Stretch(3, (part,), (), 1, 1), boundaries, N_SENTENCES, N_ROWS)  # its sentences begin no chunk


def test_numbers_go_on_from_where_the_part_begins(root: Root) -> None:
    assert number_parts(root, task(root)).n_sentences == 4
    table = pq.read_table(BytesIO(root.get(sentences_part(7))))
    assert table.schema.equals(SENTENCES_SCHEMA)
    assert table["sentence"].to_pylist() == [50, 51, 52, 53]
    assert table["first_row"].to_pylist() == [200, 202, 202, 203]
    assert table["position"].to_pylist() == [100, 101, 102, 103]
    assert table["id"].to_pylist() == ["a.txt:100", "a.txt:35:2", "x", "a.txt:103"]
    assert table["tokens"].to_pylist() == SENTENCES


def test_boundaries_add_two_rows_to_sentences_that_have_tokens(root: Root) -> None:
    number_parts(root, task(root, boundaries=True))
    table = pq.read_table(BytesIO(root.get(sentences_part(7))), columns=["first_row"])
    assert table["first_row"].to_pylist() == [200, 204, 204, 207]


def test_rejects_get_the_sentence_they_hold_the_place_of(root: Root) -> None:
    number_parts(root, task(root, rejects=True))
    lines = root.get(rejects_part(7)).decode().split("\n")
    assert len(lines) == 2
    reject = json.loads(lines[0])
    assert (reject["sentence"], reject["position"], reject["id"]) == (53, 103, "a.txt:103")
    assert reject["raw"] == "\u2028é"


def test_a_part_that_was_numbered_is_known_by_its_place_and_text(root: Root) -> None:
    root.put_json(PLAN, {"id": "plan"})
    done = task(root)
    assert not is_numbered(root, done)
    number_parts(root, done)
    assert is_numbered(root, done)
    assert not is_numbered(root, task(root, boundaries=True))
    assert not is_numbered(root, task(root, ids=("", "", "y", "")))
    done = task(root)
    root.remove(id_hashes(0, 3))
    assert not is_numbered(root, done)
    write_marker(root, IdsMarker(0, 0, 1, (), plan="other"))
    assert not is_numbered(root, done)
    write_marker(root, IdsMarker(0, 0, 1, (), plan="plan"))  # the hashes have become tables
    assert is_numbered(root, done)
    root.remove(ids_marker(0))
    number_parts(root, done)
    assert is_numbered(root, done)
    root.put(sentences_part(7), root.get(sentences_part(7))[:-3])
    assert not is_numbered(root, done)


def test_a_resumed_task_writes_nothing_that_an_earlier_run_wrote(root: Root) -> None:
    root.put_json(PLAN, {"id": "plan"})
    first = number_parts(root, task(root))
    again = replace(task(root), resumed=True)
    before = {rel: root.stamp(rel) for rel in root.list()}
    assert number_parts(root, again) == first
    assert {rel: root.stamp(rel) for rel in root.list()} == before
    root.remove(sentences_part(7))
    number_parts(root, again)
    assert root.size(sentences_part(7))


def test_numbering_twice_gives_the_same_bytes(root: Root) -> None:
    number_parts(root, task(root))
    first = root.get(sentences_part(7))
    number_parts(root, task(root))
    assert root.get(sentences_part(7)) == first


def test_a_scratch_part_that_changed_is_refused_by_name(root: Root) -> None:
    given = task(root)
    root.put("_work/parts/x.parquet", root.get("_work/parts/x.parquet") + b" ")
    with pytest.raises(ValueError, match=r"_work/parts/x\.parquet"):
        number_parts(root, given)


def counts_of(n_sentences: int, n_tokens: int) -> PartCounts:
    return PartCounts("x", "", n_sentences, n_tokens, min(n_sentences, n_tokens), 0, 0, 0, 0, "0" * 64)


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 9), st.integers(1, 20), st.integers(1, 5))
def test_stretches_tile_the_parts_and_the_chunks(sizes: list[int], chunk: int, most: int, most_parts: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "STRETCH_SENTENCES", most)
        patch.setattr(plan, "STRETCH_PARTS", most_parts)
        parts = make_plan([counts_of(n, n) for n in sizes], shard_rows=4, boundaries=False).parts
        found = stretches(parts, sum(sizes), chunk)
    assert [part.part for one in found for part in one.parts] == list(range(len(sizes)))
    assert [c for one in found for c in range(one.first_chunk, one.stop_chunk)] == list(range(-(-(sum(sizes) + 1) // chunk)))
    for one in found:
        assert len(one.parts) <= most_parts
        held = {s for p in (*one.parts, *one.after) for s in range(p.first_sentence, p.first_sentence + p.counts.n_sentences)}
        needed = {s for c in range(one.first_chunk, one.stop_chunk) for s in range(c * chunk, (c + 1) * chunk) if s < sum(sizes)}
        assert needed <= held
        first = one.parts[0].first_sentence if one.parts else 0
        assert all(first <= c * chunk for c in range(one.first_chunk, one.stop_chunk))


@settings(max_examples=25, deadline=None)  # each example writes a store's worth of files
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 9))
def test_any_parts_give_the_same_starts_and_ids(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], per_part: int, parts_of_stretch: int, chunk: int
) -> None:
    root = Root(tmp_path_factory.mktemp("numbered"))
    counts = []
    for part in range(0, len(lengths), per_part):
        own = lengths[part : part + per_part]
        table = pa.table(
            {
                "id": [f"s{part + i}" for i in range(len(own))],
                "source": ["a.txt"] * len(own),
                "position": list(range(len(own))),
                "ordinal": [-1] * len(own),
                "within": [-1] * len(own),
                "n_tokens": pa.array(own, pa.int32()),
                "tokens": pa.array([["w"] * n for n in own], pa.list_(pa.string())),
            }
        )
        sink = BytesIO()
        pq.write_table(table, sink)
        root.put(f"_work/parts/{part}.parquet", sink.getvalue())
        digest = hashlib.sha256(sink.getvalue()).hexdigest()
        nonempty = sum(n > 0 for n in own)
        counts.append(PartCounts(f"_work/parts/{part}.parquet", "", len(own), sum(own), nonempty, 0, 0, part, 0, digest))
    corpus = make_plan(counts, shard_rows=16, boundaries=True)
    manifest = make_manifest(lengths=lengths, parts=[c.n_sentences for c in counts], boundaries=True, sentence_chunk=chunk)
    write_manifest(root, manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "STRETCH_PARTS", parts_of_stretch)
        patch.setattr(layout, "IDS_OF_TABLE", 4)
        found = stretches(corpus.parts, len(lengths), chunk)
        for one in found:
            number_parts(root, NumberTask(one, True, corpus.n_sentences, corpus.n_rows))
            assert read_stretch_marker(root, one.number) is not None
        bits = layout.id_bits(len(lengths))
        root.put_json(PLAN, {"id": "p", "n_stretches": len(found), "n_id_runs": 1 << bits})
        write_manifest(root, manifest.__class__(**{**vars(manifest), "complete": False}))
        assert list(runs_to_do(root)) == list(range(1 << bits))
        for run in runs_to_do(root):
            merged = merge_ids(root, run)
            assert not [id_hashes(run, one.number) for one in found if root.exists(id_hashes(run, one.number))]
            assert merge_ids(root, run) == merged  # a second copy of the task
        assert list(runs_to_do(root)) == []
        tables = [pq.read_table(BytesIO(root.get(layout.id_table(i)))) for i in range(1 << bits)]
    rows = [n + 2 if n else 0 for n in lengths]
    starts = [0, *np.cumsum(rows).tolist()]
    entries = np.concatenate(read_sentence_chunks(root, manifest, range(-(-len(starts) // chunk))))
    assert entries[: len(starts)].tolist() == starts
    pairs = [(h, low, s) for t in tables for h, low, s in zip(*(t[name].to_pylist() for name in t.column_names), strict=True)]
    wanted = hashes(f"s{i}" for i in range(len(lengths))).tolist()
    assert pairs == sorted((high, low, i) for i, (high, low) in enumerate(wanted))
