"""``embed --keep-fields``: what sentences keep of their records, in the store, through every way of reading and deriving it."""

import json
import tarfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elmo_store
from elmo_store import collecting
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.fields import PLAIN
from pipeline.cli.exit_codes import Exit
from pipeline.jobs.spec import FIELD_TYPES, EmbedOptions
from pipeline.main import main
from tests.pipeline.conftest import Command, store_of_records
from tests.store import json_schemas
from tests.store.deep import all_faults
from tests.store.support import make_store
from transforms.readers import field_sample
from transforms.stages import split

RECORDS = [
    {
        "doc": "a",
        "text": "One here. Two there.",
        "label": "x",
        "year": 2001,
        "day": "2024-01-05",
        "info": {"n": [1, 2]},
    },
    {"doc": "b", "text": ["three", "words", "."], "label": "y", "tags": ["D", "N", "P"], "id": 7},
    {
        "doc": "d",
        "text": "",
        "label": "",
        "day": "2024-01-06",
        "info": {"at": "2024-01-06T07:08:09Z"},
    },
    {
        "doc": "c",
        "text": "Late.",
        "label": "z",
        "year": "not one",
    },  # behind what the sample of the test has
]
OPTIONS = [
    "--input-format",
    "jsonl",
    "--shard-rows",
    "64",
    "--id-field",
    "doc",
    "--keep-fields",
    "all,id=number,label=category",
]
NAMES = ["number", "category", "year", "day", "info", "tags"]
FIRST = {
    "number": None,
    "category": "x",
    "year": 2001,
    "day": date(2024, 1, 5),
    "info": {"n": [1, 2], "at": None},
    "tags": None,
}
AT = datetime(2024, 1, 6, 7, 8, 9, tzinfo=UTC)
NOTHING = dict.fromkeys(NAMES)
CONLL = "-DOCSTART-\n\none A\n\ntwo B\nwords C\n\n-DOCSTART-\n\nthree A\n\nfour D\n\n" * 3


def write_records(path: Path) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """With a store of `RECORDS`."""
    folder = tmp_path_factory.mktemp("kept")
    command = [
        "embed",
        write_records(folder / "a.jsonl"),
        "--output",
        str(folder / "store"),
        "--model",
        str(tiny_model),
        "--quiet",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_sample, "SAMPLED_RECORDS", 3)
        assert main([*command, *OPTIONS]) == Exit.COMPLETE
    return folder


def test_sentences_keep_the_fields_of_their_record(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = elmo_store.open(folder / "store")
    assert [sentence.id for sentence in store] == ["a:0", "a:1", "b", "d:0", "c"]
    first, second, words, empty, refused = (sentence.fields for sentence in store)
    assert first == second == FIRST
    assert words == NOTHING | {"number": 7, "category": "y", "tags": ["D", "N", "P"]}
    assert empty == NOTHING | {
        "category": "",
        "day": date(2024, 1, 6),
        "info": {"n": None, "at": AT},
    }
    assert refused == NOTHING
    (reject,) = (
        json.loads(line)
        for line in (folder / "store" / layout.rejects_part(0)).read_text().splitlines()
    )
    assert (reject["sentence"], reject["reason"]) == (
        4,
        "field 'year' does not fit its column (int64): 'not one' is no int64",
    )
    assert [(s.document, s.document_sentence) for s in store] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("d", 0),
        ("c", 0),
    ]
    assert store.table(["category", "id"], slice(1, 3)).to_pylist() == [
        {"category": "x", "id": "a:1"}, {"category": "y", "id": "b"},
    ]  # fmt: skip
    assert store.table(["year"], slice(5, None)).schema == pa.schema({"year": pa.int64()})
    with pytest.raises(
        StoreError, match=r"no column 'label' of sentences: it has sentence, id, .*, tags"
    ):
        store.table(["label"])
    assert all_faults(store) == []
    jsonschema.validate(store.manifest.to_json(), json_schemas.manifest_schema())
    assert main(["info", str(folder / "store")]) == Exit.COMPLETE
    told = "category (string), year (int64), day (date), info ({n: list of int64, at: timestamp}), tags (string, one a token)"
    assert f"number (int64), {told}" in capsys.readouterr().out


def test_the_folder_is_one_table_with_typed_columns(folder: Path) -> None:
    table = pq.read_table(folder / "store" / layout.SENTENCES)
    assert table.column_names[len(layout.SENTENCES_SCHEMA) :] == [
        *layout.DOCUMENT_SCHEMA.names,
        *NAMES,
    ]
    assert table.schema.field("info").type == pa.struct(
        {"n": pa.list_(pa.field("element", pa.int64())), "at": pa.timestamp("us", "UTC")}
    )
    parts = folder / "store" / layout.SENTENCES
    query = (
        f"select category, year + 1, info.n[2], tags[1] from '{parts}/*.parquet' order by sentence"
    )
    assert duckdb.connect().execute(query).fetchall()[1:3] == [
        ("x", 2002, 2, None),
        ("y", None, None, "D"),
    ]


def test_stores_that_are_made_of_it_keep_them(folder: Path, tmp_path: Path) -> None:
    store = elmo_store.open(folder / "store")
    (tmp_path / "mix.json").write_text('{"s": [1, 0, 0], "gamma": 1}')
    commands = (["convert", "--dtype", "float32"], ["mix", "--weights", str(tmp_path / "mix.json")])
    for name, *options in commands:
        assert (
            main([name, str(store.url), "--output", str(tmp_path / name), *options, "--quiet"])
            == Exit.COMPLETE
        )
        made = elmo_store.open(tmp_path / name)
        assert made.table(store.columns).equals(store.table(store.columns))
        assert made.fields == store.fields
    chosen = store.select([2, 0])
    written = chosen.write(str(tmp_path / "chosen"))
    assert all_faults(written) == []
    joined = elmo_store.concat([written, store])
    for view in (chosen, written, joined[: len(chosen)]):
        assert [sentence.fields["category"] for sentence in view] == ["y", "x"]
        assert view.table(["sentence", "first_row", "document"]).to_pylist() == [
            {"sentence": 0, "first_row": 0, "document": "b"}, {"sentence": 1, "first_row": 3, "document": "a"},
        ]  # fmt: skip
    numbers = joined.table(["sentence", "first_row", "category"]).to_pydict()
    assert numbers["sentence"] == list(range(7))
    assert numbers["first_row"] == [joined.sentence(i).first_row for i in range(7)]
    assert numbers["category"] == ["y", "x", "x", "x", "y", "", None]


@pytest.mark.slow
def test_how_a_file_is_cut_changes_neither_fields_nor_documents(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.conll").write_text(CONLL)
    tables = []
    for range_bytes in (1 << 20, 7):
        monkeypatch.setattr("pipeline.jobs.embed_input.plan_splits", _cutting(range_bytes))
        out = tmp_path / str(range_bytes)
        options = ["--input-format", "conll", "--shard-rows", "64", "--keep-fields", "2=tag"]
        assert embed(out, *options, inputs=[str(tmp_path / "a.conll")]) == Exit.COMPLETE
        store = elmo_store.open(out)
        assert all_faults(store) == []
        tables.append(store.table(store.columns))
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0]["tag"].to_pylist()[:4] == [["A"], ["B", "C"], ["A"], ["D"]]
    starts = [0, 7, 13, 20, 26, 33]
    assert tables[0]["document"].to_pylist() == [
        f"a.conll:{start}" for start in starts for _ in range(2)
    ]
    assert tables[0]["document_sentence"].to_pylist() == [0, 1] * 6


def _cutting(range_bytes: int) -> object:
    plan = split.plan_splits
    return lambda *arguments, **options: plan(*arguments, **options, range_bytes=range_bytes)


@pytest.mark.slow
def test_other_fields_are_another_job_and_formats_without_any_have_none(
    embed: Command, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_records(tmp_path / "a.jsonl"), tmp_path / "store"
    fields = ["--input-format", "jsonl", "--shard-rows", "64", "--keep-fields", "label"]
    assert embed(out, *fields, inputs=[path]) == Exit.COMPLETE
    assert embed(out, *fields[:-1], "label=kind", inputs=[path]) == Exit.REFUSED
    assert "keep_fields" in capsys.readouterr().err
    assert embed(out, *fields[:-1], "source", inputs=[path]) == Exit.BAD_LOCATION
    assert "--keep-fields source: no record of the sample" in capsys.readouterr().err
    assert embed(tmp_path / "lines", "--keep-fields", "all") == Exit.BAD_USAGE
    assert "--keep-fields belongs to jsonl" in capsys.readouterr().err
    assert not (tmp_path / "lines").exists()
    assert embed(tmp_path / "id", *fields[:-1], "all", inputs=[path]) == Exit.BAD_LOCATION
    mixed = tmp_path / "mixed"
    assert (
        embed(mixed, "--input-format", "auto", "--keep-fields", "label", inputs=[path, str(corpus)])
        == Exit.COMPLETE
    )
    store = elmo_store.open(mixed)
    assert [s.fields["label"] for s in store][:6] == ["x", "x", "y", "", "z", None]
    assert (store.sentence(5).document, store.sentence(6).document_sentence) == ("a.txt:0", 0)


def test_a_store_of_before_has_no_documents(folder: Path) -> None:
    golden = elmo_store.open(Path(__file__).parents[1] / "store" / "golden" / "zarr")
    assert golden.sentence(0).fields == {}
    with pytest.raises(StoreError, match="no column 'document'"):
        assert golden.sentence(0).document
    assert golden.table(["id"]).num_rows == len(golden)
    assert elmo_store.concat([golden]).fields == {}


def test_a_collection_keeps_them_and_its_members_agree_in_them(
    folder: Path, tmp_path: Path
) -> None:
    store = elmo_store.open(folder / "store")
    members = [
        store.select(numbers).write(str(tmp_path / name))
        for name, numbers in (("a", [2]), ("b", [0, 4]))
    ]
    members.append(store.select([1]).write(str(tmp_path / "c"), shard_rows=32))
    collecting.collect(str(tmp_path / "all"), members)
    whole = elmo_store.open(tmp_path / "all")
    assert whole.fields == store.fields
    numbers = [2, 3, 0]
    table = pa.concat_tables(
        [whole.table(["id", "category"]).slice(number, 1) for number in numbers]
    )
    assert whole.table(["id", "category"], numbers).equals(table)
    assert [sentence.fields["category"] for sentence in whole] == ["y", "x", None, "x"]
    places = whole.table(["sentence", "first_row", "document_sentence"]).to_pydict()
    assert places == {
        "sentence": [0, 1, 2, 3],
        "first_row": [0, 3, 6, 6],
        "document_sentence": [0, 0, 0, 1],
    }
    chosen = whole.select([3, 0]).write(str(tmp_path / "chosen"))
    assert [sentence.fields["category"] for sentence in chosen] == ["x", "y"]
    other = make_store(str(tmp_path / "other"))
    with pytest.raises(StoreError, match="fields"):
        collecting.collect(str(tmp_path / "all"), [elmo_store.open(other.root.url())])


NUMBERS = [
    {"text": ["one", "two", "three"], "year": 2001, "score": 0.5, "good": True, "label": "a", "heads": [2, None, 0]},
    {"text": [], "year": None, "score": None, "good": None, "label": None, "heads": []},
    {"text": ["four"], "year": 2003, "score": 2, "good": False, "label": "b", "heads": None},
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "boundaries"])
def numbers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> elmo_store.Store:
    return store_of_records(
        tmp_path_factory.mktemp("numbers"), NUMBERS, tiny_model, *["--boundaries"] * request.param
    )


def test_batches_have_tensors_of_numbers_and_lists_of_the_rest(numbers: elmo_store.Store) -> None:
    torch = pytest.importorskip("torch")
    from elmo_store.torch import SentenceDataset, SentenceStream, collate

    names = ["year", "score", "good", "label", "heads"]
    data = SentenceDataset(numbers, fields=names)
    edge = [-100] * numbers.boundaries
    assert data[0]["fields"]["heads"].tolist() == [*edge, 2, -100, 0, *edge]
    assert data[2]["fields"]["heads"].tolist() == [-100, *edge, *edge]
    stream = SentenceStream(numbers, fields=names, batch_sentences=3, shuffle=False, bucket=False)
    loaded = next(iter(torch.utils.data.DataLoader(data, batch_size=3, collate_fn=collate)))
    for batch in (loaded, collate([data[i] for i in range(3)]), next(iter(stream))):
        fields = batch["fields"]
        assert fields["year"].tolist() == [2001, -100, 2003]
        assert fields["good"].tolist() == [1, -100, 0]
        assert fields["score"].nan_to_num(-1).tolist() == [0.5, -1, 2]
        assert (fields["score"].dtype, fields["heads"].dtype) == (torch.float32, torch.int64)
        assert fields["label"] == ["a", None, "b"]
        assert fields["heads"].shape == batch["mask"].shape
        assert fields["heads"][1].eq(-100).all()
    assert "fields" not in SentenceDataset(numbers)[0]
    with pytest.raises(
        StoreError, match="keeps no field 'lable': it has year, score, good, label, heads"
    ):
        SentenceDataset(numbers, fields=["lable"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_datasets_have_the_fields_in_their_types(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    store = elmo_store.open(folder / "store")
    assert (
        main(
            [
                "export",
                store.url,
                "--format",
                "datasets",
                "--output",
                str(tmp_path / "out"),
                "--quiet",
            ]
        )
        == Exit.COMPLETE
    )
    found = datasets.load_from_disk(str(tmp_path / "out"))
    columns = store.table(NAMES)
    assert found.select_columns(NAMES)[:] == columns.to_pydict()
    assert found.features["day"].dtype == "date32"
    assert found.filter(lambda row: row["category"] == "x").num_rows == 2


def test_a_webdataset_has_the_fields_beside_the_tokens(folder: Path, tmp_path: Path) -> None:
    store = str(folder / "store")
    assert (
        main(
            [
                "export",
                store,
                "--format",
                "webdataset",
                "--output",
                str(tmp_path / "out"),
                "--quiet",
            ]
        )
        == Exit.COMPLETE
    )
    (path,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(path) as archive:
        names = [name for name in archive.getnames() if name.endswith(".json")]
        members: list[Any] = [archive.extractfile(name) for name in names]
        facts = [json.load(member) for member in members]
    assert [fact["category"] for fact in facts] == ["x", "x", "y", "", None]
    assert facts[3]["info"] == {"n": None, "at": "2024-01-06T07:08:09+00:00"}
    assert facts[0] == {"sentence": 0, "id": "a:0", "tokens": ["One", "here", "."]} | FIRST | {
        "day": "2024-01-05"
    }


@pytest.mark.slow
def test_what_is_kept_is_told_and_a_collection_s_types_are_those_of_what_comes_later(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = str(tmp_path / "whole")

    def into(name: str, *options: str, n: str) -> int:
        (tmp_path / name).write_text(f"text,n\nOne.,{n}\n")
        return main(
            ["embed", str(tmp_path / name), "--into", whole, "--model", str(tiny_model), *options]
        )

    assert into("a.csv", "--keep-fields", "n", n="0.5") == Exit.COMPLETE
    assert "sentences keep n (float64)\n" in capsys.readouterr().err
    assert into("b.csv", "--keep-fields", "n:string", n="2") == Exit.REFUSED
    assert "fields: ['n (float64)'] there, ['n (string)'] here" in capsys.readouterr().err
    assert (
        into("b.csv", "--keep-fields", "all", "--quiet", n="2") == Exit.COMPLETE
    )  # a whole number by itself
    assert "sentences keep" not in capsys.readouterr().err
    assert (
        into("d.csv", n="") == Exit.COMPLETE
    )  # the collection's own fields without being asked for
    assert "sentences keep n (float64)\n" in capsys.readouterr().err
    assert elmo_store.open(whole).table(["n"]).to_pydict() == {"n": [0.5, 2.0, None]}
    same = [
        "embed",
        str(tmp_path / "d.csv"),
        "--into",
        whole,
        "--model",
        str(tiny_model),
        "--keep-fields",
        "n",
    ]
    assert main(same) == Exit.COMPLETE
    assert len(elmo_store.open(whole)) == 3
    (tmp_path / "e.txt").write_text("One.\n")
    assert (
        main(["embed", str(tmp_path / "e.txt"), "--into", whole, "--model", str(tiny_model)])
        == Exit.REFUSED
    )
    assert "fields: ['n (float64)'] there, [] here" in capsys.readouterr().err
    assert into("c.csv", "--keep-fields", "n=m", "--quiet", n="3") != Exit.COMPLETE
    assert "['n (float64)'] there, ['m (int64)'] here" in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "names", "types"), [
    ("a, b=c,all", {"a": "a", "b": "c"}, {}), ("a:string,b=c:date", {"a": "a", "b": "c"}, {"a": "string", "b": "date"}),
    ("meta::genre,:string,x:y=z:int64", {"meta::genre": "meta::genre", ":string": ":string", "x:y": "z"}, {"x:y": "int64"}),
])  # fmt: skip
def test_fields_columns_and_types_are_told_apart(
    asked: str, names: dict[str, str], types: dict[str, str]
) -> None:
    assert EmbedOptions(("in",), keep_fields=asked).kept_fields == (names, types, "all" in asked)
    assert tuple(PLAIN) == FIELD_TYPES
