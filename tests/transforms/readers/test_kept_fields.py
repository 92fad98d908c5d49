"""Fields of records that sentences keep: their types by a sample, values that fit and do not, token columns, documents."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elmo_store.format.fields import KeptField, check_fields
from elmo_store.storage.root import Root
from tests.transforms.reading import read_split, rejects, write
from transforms.inputs.records import InDocument, InputError, ReadSentence, ReadSettings, Record
from transforms.readers import field_sample
from transforms.readers.field_sample import find_fields, type_of
from transforms.readers.kept import fitted
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import scratch_schema, task_result, tokenise_task

NEW = {"2": "pos", "4": "ner"}
CONLL = b"-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n-DOCSTART-\n\n1 CD\nshort JJ X Y\n"
WORD = "{0}\t{1}\t_\tNOUN\tN1\t_\t{2}\troot\t_\t_\n"


def kept(
    path: Path, input_format: str = "auto", **settings: Any
) -> tuple[tuple[KeptField, ...], list[Record]]:
    """All fields of a file by its sample, and its records as they keep them."""
    names = settings.pop("names", {})
    every, types = settings.pop("every", not names), settings.pop("types", {})
    read = ReadSettings(**settings)
    splits = plan_splits([str(path)], input_format, read)
    fields = find_fields(splits, read, names, types=types, every=every)
    read = ReadSettings(**settings, fields=fields)
    return fields, [record for split in splits for record in read_split(split, read)]


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize(("values", "kind"), [
    ((1, None, -3), "int64"), ((1, 2.5), "float64"), ((True, False), "bool"), ((1, True), "string"), ((1, "1"), "string"),
    (("2024-01-05", "2024-02-29"), "date"), (("2024-01-05", "2024-01-05T10:00:00Z"), "timestamp"), (("2024-02-30",), "string"),
    ((1 << 63,), "string"), ((1.5, 2**53 + 1), "string"), ((None,), "string"),
    (([1], [None, 2.5], []), ["float64"]), (([],), ["string"]),
    (({"a": 1}, {"b": ["x"]}, {}), {"a": "int64", "b": ["string"]}), (({"a": 1}, "x"), "string"),
    (({str(i): i for i in range(65)},), "string"),
    ((date(2024, 1, 5), datetime(2024, 1, 5, 1)), "timestamp"), ((b"x",), "string"),
])  # fmt: skip
def test_a_type_takes_all_values_of_a_sample(values: tuple[Any, ...], kind: Any) -> None:
    assert type_of(values) == kind


@pytest.mark.parametrize(("text", "kind"), [
    ("12", "int64"), ("-0.5e3", "float64"), ("007", "string"), ("True", "bool"), ("99999999999999999999", "string"),
    ("", "string"), ("9223372036854775808", "string"), ("nan", "string"),
])  # fmt: skip
def test_text_that_spells_a_number_is_one_where_all_is_text(text: str, kind: str) -> None:
    assert type_of([text], spelt=True) == kind
    assert type_of([text]) == "string"


@pytest.mark.parametrize(("value", "kind", "fits"), [
    ("12", "int64", 12), (3.0, "int64", 3), (3, "float64", 3.0), (2**60, "float64", 2.0**60),
    ("1.5", "float64", 1.5), ("true", "bool", True),
    (5, "string", "5"), ({"a": "ü"}, "string", '{"a": "ü"}'), (date(2024, 1, 5), "string", "2024-01-05"), (b"x", "string", "x"),
    ("2024-01-05T10:00:00+02:00", "timestamp", datetime(2024, 1, 5, 8, tzinfo=UTC)),
    ([1, None], ["float64"], [1.0, None]), ("2024-01-05", "timestamp", datetime(2024, 1, 5, tzinfo=UTC)),
    ({"a": 1, "new": 2}, {"a": "int64", "b": "string"}, {"a": 1, "b": None}),
])  # fmt: skip
def test_values_that_fit(value: Any, kind: Any, fits: Any) -> None:
    result = fitted(value, kind)
    assert result == fits
    assert type(result) is type(fits)


@pytest.mark.parametrize(("value", "kind"), [
    (True, "int64"), (2.5, "int64"), (1 << 63, "int64"), ("x", "int64"), (float("inf"), "int64"), (float("nan"), "int64"),
    ("1,5", "float64"), (2**53 + 1, "float64"), ("-9007199254740993", "float64"), (10**400, "float64"),
    (1, "bool"), ("2024-02-30", "date"), (datetime(2024, 1, 5), "date"),
    ("0001-01-01T00:00:00+10:00", "timestamp"), ("half a \ud800", "string"), (b"\xff", "string"),
    ("x", ["string"]), ([1], {"a": "int64"}),
    ([["x"]], ["int64"]),
])  # fmt: skip
def test_values_that_do_not_fit(value: Any, kind: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        fitted(value, kind)


def test_all_sentences_of_a_record_keep_its_fields_and_a_misfit_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_sample, "SAMPLED_RECORDS", 2)
    bad = {"doc": "c", "text": "Not. Kept.", "year": "many", "more": 1}
    path = write(
        tmp_path / "a.jsonl",
        lines({"doc": "a", "text": "One. Two.", "year": 1}, {"doc": "b", "text": ""}, bad),
    )
    fields, found = kept(path, id_field="doc")
    assert fields == (
        KeptField("year", "year", "int64", "sentence"),
    )  # not its text, nor its id, nor what came late
    assert [(r.id, r.within, r.fields) for r in found if isinstance(r, ReadSentence)] == [
        ("a", 0, (1,)),
        ("a", 1, (1,)),
        ("b", 0, (None,)),
    ]
    assert [(reject.id, reject.reason) for reject in rejects(found)] == [
        ("c", "field 'year' does not fit its column (int64): 'many' is no int64")
    ]


def test_lists_as_long_as_the_tokens_are_values_of_the_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(
        {"tokens": ["a", "b"], "tags": [1, 2], "spans": [0, 2]}, {"tokens": [], "tags": [], "spans": [1]},
        {"tokens": ["c"], "tags": None, "spans": [7]}, {"tokens": [["d"], ["e", "f"]], "tags": [[3], [4, 5]], "spans": []},
    ))  # fmt: skip
    fields, found = kept(path, text_field="tokens")
    assert fields == (
        KeptField("tags", "tags", "int64", "token"),
        KeptField("spans", "spans", ["int64"], "sentence"),
    )
    assert [record.fields for record in found if isinstance(record, ReadSentence)] == [
        ([1, 2], [0, 2]), ([], [1]), (None, [7]), ([3], []), ([4, 5], []),
    ]  # fmt: skip
    late = write(
        tmp_path / "b.jsonl", lines({"tokens": [["d"], ["e", "f"], ["g"]], "tags": [[3], [4]]})
    )
    settings = ReadSettings(text_field="tokens", fields=fields[:1])
    (split,) = plan_splits([str(late)], settings=settings)
    first, short, gone = read_split(split, settings)
    assert (first.id, first.within, first.fields) == ("", 0, ([3],))  # type: ignore[union-attr]
    assert [(r.within, r.reason.partition("): ")[2]) for r in rejects([short, gone])] == [
        (1, "1 values for 2 tokens"), (2, "0 values for 1 tokens"),
    ]  # fmt: skip


def test_a_kept_name_that_an_object_has_twice_is_rejected(tmp_path: Path) -> None:
    rows = ['{"text": "One.", "n": 1, "info": {"a": 1}}', '{"text": "Two.", "n": 2, "n": 3}']
    rows += ['{"text": "Three.", "info": {"a": 1, "a": 2}}']
    fields, found = kept(write(tmp_path / "a.jsonl", "\n".join(rows).encode()))
    assert {field.name: field.type for field in fields} == {"n": "int64", "info": {"a": "int64"}}
    assert [reject.reason for reject in rejects(found)] == [
        "field 'n' does not fit its column (int64): the object has this name twice",
        "field 'info' does not fit its column ({a: int64}): the object has this name twice",
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
@pytest.mark.parametrize("names", [{}, {"n": "n"}])
def test_a_kept_field_must_not_be_there_twice(
    tmp_path: Path, name: str, names: dict[str, str]
) -> None:
    if name == "a.parquet":
        table = pa.table([pa.array([value]) for value in "abc"], names=["text", "n", "n"])
        pq.write_table(table, tmp_path / name)
    else:
        text = "text,n,n\na,b,c\n".replace(",", "," if name == "a.csv" else "\t")
        write(tmp_path / name, text.encode())
    with pytest.raises(InputError, match="2 of its fields are called 'n': rename all but one"):
        kept(tmp_path / name, names=names)


def test_a_kept_parquet_object_must_not_have_a_name_twice(tmp_path: Path) -> None:
    twins = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    columns = [pa.array(["x"]), pa.ListArray.from_arrays([0, 1], twins)]
    pq.write_table(pa.table(columns, names=["text", "n"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="objects of the field 'n' have 'a' twice"):
        kept(tmp_path / "a.parquet")


def test_csv_spells_types_and_empty_is_null(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", b"text,n,x,day,zip,flag\nOne.,1,,2024-01-05,007,true\n,2,1.5,,12,\n"
    )
    fields, found = kept(path)
    assert {field.name: field.type for field in fields} == {
        "n": "int64", "x": "float64", "day": "date", "zip": "string", "flag": "bool",
    }  # fmt: skip
    assert [r.fields for r in found if isinstance(r, ReadSentence)] == [
        (1, None, date(2024, 1, 5), "007", True), (2, 1.5, None, "12", None),
    ]  # fmt: skip
    assert kept(path, names={"n": "n"}, types={"n": "string"})[0] == (
        KeptField("n", "n", "string", "sentence"),
    )
    numbered, _ = kept(
        write(tmp_path / "b.tsv", b"One.\t7\n"), text_field="1", names={"2": "label"}
    )
    assert numbered == (KeptField("label", "2", "int64", "sentence"),)


def test_parquet_keeps_nested_values_and_times(tmp_path: Path) -> None:
    columns = {
        "text": ["One.", "Two. Three."], "info": [{"a": [1, 2], "b": {"c": "x"}}, None],
        "at": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "Europe/Berlin")),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    fields, found = kept(tmp_path / "a.parquet")
    assert {field.name: field.type for field in fields} == {
        "info": {"a": ["int64"], "b": {"c": "string"}},
        "at": "timestamp",
    }
    at = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert [r.fields for r in found if isinstance(r, ReadSentence)] == [
        ({"a": [1, 2], "b": {"c": "x"}}, at),
        (None, None),
        (None, None),
    ]
    only, _ = kept(tmp_path / "a.parquet", names={"at": "event_time"})
    assert [field.name for field in only] == ["event_time"]


def test_columns_of_conll(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", CONLL)
    fields, found = kept(path, names=NEW)
    assert fields == (
        KeptField("pos", "2", "string", "token"),
        KeptField("ner", "4", "string", "token"),
    )
    assert [record.fields for record in found if isinstance(record, ReadSentence)] == [
        (["NNP", "VBZ"], ["I-ORG", "O"]), (["CD", "JJ"], [None, "Y"]),
    ]  # fmt: skip
    assert [record.document for record in found] == [InDocument(0, 0), InDocument(0, 5)]


def test_comments_of_conllu_belong_to_their_sentences(tmp_path: Path) -> None:
    words = WORD.format(1, "x", 0)
    text = (
        "# global.columns = ID FORM\n# newdoc id = D\n# meta::genre = news\n# sent_id = 1\n# text = x = x\n# lemma = no\n"
        f"# newpar id = p1\n# checked\n{words}\n#genre=a b \n# text = y\n{words}\n# newdoc id = E\n{words}\n"
    )
    fields, found = kept(
        write(tmp_path / "a.conllu", text.encode()),
        names={"text": "raw", "newdoc id": "begins"},
        every=True,
    )
    comments = ["raw", "begins", "meta::genre", "newpar id", "genre"]
    assert [
        field.name for field in fields if field.per == "sentence"
    ] == comments  # nor the id, nor the file's own
    assert {field.type for field in fields if field.name in comments} == {"string"}
    sentences = [record for record in found if isinstance(record, ReadSentence)]
    names = [field.name for field in fields]
    assert [tuple(record.fields[names.index(name)] for name in comments) for record in sentences] == [
        ("x = x", "D", "news", "p1", None), ("y", None, None, None, "a b"), (None, "E", None, None, None),
    ]  # fmt: skip
    assert sentences[0].fields[names.index("lemma")] == ["_"]
    assert [record.document for record in sentences] == [
        InDocument(0, 0, "D"),
        InDocument(1, 0, "D"),
        InDocument(0, 14, "E"),
    ]
    every, _ = kept(tmp_path / "a.conllu")
    assert [field.name for field in every if field.per == "sentence"] == [
        "meta::genre",
        "newpar id",
        "genre",
    ]


def test_columns_of_conllu(tmp_path: Path) -> None:
    text = (
        "# newdoc id = D\n# sent_id = 1\n1-2\tdos\t_\t_\t_\t_\t_\t_\t_\t_\n"
        + WORD.format(1, "de", 2)
        + WORD.format(2, "os", 0)
    )
    text += (
        "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
        + WORD.format(1, "_", "_")
        + "\n# newdoc\n"
        + WORD.format(1, "x", "?")
    )
    path = write(tmp_path / "a.conllu", text.encode())
    fields, found = kept(path, names={"upos": "upos", "head": "head", "xpos": "tag"})
    assert [field.type for field in fields] == [
        "string",
        "string",
        "string",
    ]  # the sample has a head that is none
    _, found = kept(write(tmp_path / "b.conllu", text.replace("\t?\t", "\t0\t").encode()))
    assert [record.document for record in found] == [
        InDocument(0, 0, "D"),
        InDocument(1, 0, "D"),
        InDocument(0, 9),
    ]
    names = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
    first, second, _ = (
        dict(zip(names, r.fields, strict=True)) for r in found if isinstance(r, ReadSentence)
    )
    assert (first["upos"], first["head"], first["feats"]) == (["NOUN", "NOUN"], [2, 0], ["_", "_"])
    assert second["head"] == [None]


@pytest.mark.parametrize(("record", "names", "reason"), [
    ({"q": 1}, {"q": "row"}, r"the field 'q' can't be kept as 'row' \(.*rename it, q=new_name"),
    ({"\ud800f": 1}, {}, r"the field '\\ud800f' can't be kept.*surrogate"),
    ({"o": {"\udfff": 1}}, {}, r"'\\udfff', a key of an object, .*surrogate"),
    ({"id": 1}, {}, "the store has a column of that name itself.*rename it, id=new_name"),
    ({"Tokens": 1}, {}, "column of that name itself"), ({"a.b": 1}, {}, r"none of them \. , = "),
    ({"a": 1, "A": 2}, {}, "there is 'a' already"), ({"": 1}, {}, "up to 200 characters"),
    ({"a": 1, "b": 2}, {"a": "b"}, "there is 'b' already"),
    ({"label": 1}, {"lable": "lable"}, "no record of the sample.*they have 'text', 'label'"),
])  # fmt: skip
def test_names_that_are_refused_with_the_remedy(
    tmp_path: Path, record: dict[str, Any], names: dict[str, str], reason: str
) -> None:
    path = write(tmp_path / "a.jsonl", lines({"text": "One."} | record))
    with pytest.raises(InputError, match=reason):
        kept(path, names=names, every=True)
    if "id" in record:
        assert kept(path, names={"id": "number"}, every=True)[0] == (
            KeptField("number", "id", "int64", "sentence"),
        )


def test_the_sample_depends_on_the_files_alone(tmp_path: Path) -> None:
    for number in range(40):
        write(
            tmp_path / f"in/{number:02d}.jsonl",
            lines(*({"text": "One.", "n": 1 if number < 39 else 0.5} for _ in range(20))),
        )
    found = set()
    for range_bytes in (1 << 20, 100, 37):
        splits = plan_splits([str(tmp_path / "in")], range_bytes=range_bytes)
        found.add(find_fields(splits, ReadSettings(), {}, every=True))
    assert found == {(KeptField("n", "n", "float64", "sentence"),)}  # the last file is looked at


@pytest.mark.parametrize("kind", ["int", [], ["int64", "bool"], {}, None, [[[["x"]]]]])
def test_types_that_are_none(kind: Any) -> None:
    with pytest.raises(ValueError, match="is not a type of a field"):
        check_fields([KeptField("a", "a", kind, "sentence")])


def test_a_task_that_is_done_is_known_by_the_fields_too_and_parts_have_their_columns(
    tmp_path: Path,
) -> None:
    record = {"text": "One. Two.", "info": {"a": [1], "b": "x"}, "day": "2024-01-05"}
    path = write(tmp_path / "a.jsonl", lines(record, {"text": 7, "day": "2024-01-05"}))
    fields, _ = kept(path)
    settings = ReadSettings(fields=fields)
    root = Root(tmp_path / "store")
    (task,) = read_tasks(plan_splits([str(path)], settings=settings))
    done = tokenise_task(root, task, settings)
    assert task_result(root, task, settings) == done
    assert task_result(root, task, ReadSettings(fields=fields[:1])) is None
    (part,) = (pq.read_table(root.path(part.path)) for part in done.parts)
    assert part.schema.equals(scratch_schema(settings))
    assert part.select(["info", "day"]).to_pylist() == [
        *[{"info": record["info"], "day": date(2024, 1, 5)}] * 2, {"info": None, "day": None},
    ]  # fmt: skip
