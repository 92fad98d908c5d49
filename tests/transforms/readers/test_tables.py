"""CSV, TSV, JSON arrays, encodings, blobs of large streams: what people have."""

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.root import Root
from tests.examples import examples
from tests.transforms.reading import read_split, records, rejects, tokens, write
from transforms.inputs.boundaries import BLOCK, LINE, TEXT, boundary, range_bounds
from transforms.inputs.records import (
    DamagedInputError,
    InputError,
    ReadSentence,
    ReadSettings,
)
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import tokenise_task

WORDS = ReadSettings(tokenizer="whitespace")


def test_csv_has_names_quotes_and_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        '﻿id,text,n\r\n7,"One, two.\nThree ""x"".",1\r\n\r\n8,,2\r\n9,a b\r\n'.encode(),
    )
    found = records(path, settings=replace(WORDS, id_field="id"))
    assert found[:-1] == [
        ReadSentence(("One,", "two."), "7", 0, within=0),
        ReadSentence(("Three", '"x".'), "7", 0, within=1),
        ReadSentence((), "8", 1, within=0),
    ]
    assert [(reject.position, reject.reason, reject.raw) for reject in rejects(found)] == [
        (2, "2 fields instead of 3", "9\ta b")
    ]


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_the_separator_is_the_one_under_which_the_text_field_is_there(
    tmp_path: Path, separator: str
) -> None:
    path = write(tmp_path / "a.csv", f"n{separator}text\n1{separator}a b\n".encode())
    assert tokens(records(path, settings=WORDS)) == [["a", "b"]]


def test_tsv_has_no_quotes_and_a_number_is_a_column_of_a_file_without_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b'x\t"a b\ny\tc"\n')
    assert tokens(records(path, settings=replace(WORDS, text_field="2"))) == [['"a', "b"], ['c"']]
    with pytest.raises(
        InputError, match="no field 'text', but 'x', '\"a b': name one with --text-field"
    ):
        records(path)


QUOTE_FAULTS = {  # a table after its first row → what the message says
    '1,"An open quote\n2,Lost row.\n3,Lost too.\n': "line 2: a quote is opened in the row and not closed",
    '1,"An open quote\n2,Lost row.\n3,"Quoted."\n': "line 2, where the row of line 4 begins: text follows the quote",
    '1,"He said \\"hi\\" twice."\n2,Next.\n': "the file seems to write \\\\\" for a quote, as Spark does",
    '1,"5" pipe"\n2,Next.\n': "line 2: text follows the quote that closes a field",
    '1,a\rb "c\n2,Next.\n': "line 2: a carriage return without a line feed",
    '\n1,"One line\n\n' + "and one more\n" * 2000: "line 3.*: the row is longer than 4096 bytes",
    '1,"' + "x" * 5000 + '"\n2,Next.\n': "line 2: the row is longer than 4096 bytes",
}  # fmt: skip


@pytest.mark.parametrize("rows", QUOTE_FAULTS)
def test_a_quote_that_makes_no_sense_damages_a_csv_file(tmp_path: Path, rows: str) -> None:
    text = "id,text\n" + rows
    path = write(tmp_path / "a.csv", text.encode())
    settings = replace(WORDS, max_line_bytes=4096)
    message = f"it can't be read as CSV from {QUOTE_FAULTS[rows]}".replace(
        "from the file", "from .*the file"
    )
    with pytest.raises(DamagedInputError, match=message):
        records(path, settings=settings)
    before = write(tmp_path / "b.csv", ("id,text\n0,Before.\n" + rows).encode())
    found = records(before, settings=replace(settings, on_bad_file="reject"))
    assert tokens(found) == [["Before."], []]
    assert rejects(found)[0].position == 1


def test_a_lone_carriage_return_rejects_its_row(tmp_path: Path) -> None:
    reason = "a carriage return without a line feed: convert the line ends to LF or CRLF"
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        rows = ["id,text", "1,One.", "2,T\rwo.", "3,Three.\r", ""]
        text = "\r\n".join(rows).replace(",", separator)
        found = records(write(tmp_path / name, text.encode()), settings=WORDS)
        assert tokens(found) == [["One."], [], ["Three."]]
        assert [(reject.position, reject.reason) for reject in rejects(found)] == [(1, reason)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_bad_first_row_is_not_replaced_by_the_second(tmp_path: Path, name: str) -> None:
    text = "te\rxt,text\nnote,text\n7,A row.\n".replace(",", "," if name == "a.csv" else "\t")
    with pytest.raises(InputError, match="the first row can't be read: a carriage return"):
        records(write(tmp_path / name, text.encode()))


def test_a_long_line_without_quotes_is_one_reject_of_a_tsv_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"text\nOne.\n" + b'"x' * 3000 + b"\nThree.\n")
    found = records(path, settings=replace(WORDS, max_line_bytes=4096))
    assert tokens(found) == [["One."], [], ["Three."]]
    assert rejects(found)[0].reason == "the line is longer than 4096 bytes"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_field_that_is_read_must_not_be_there_twice(tmp_path: Path, name: str) -> None:
    def table(*names: str) -> Path:
        path = tmp_path / name
        if name == "a.parquet":
            pq.write_table(pa.table([pa.array([f"In {one}."]) for one in names], names=names), path)
            return path
        separator = "," if name == "a.csv" else "\t"
        rows = [names, [f"In {one}." for one in names]]
        return write(path, "".join(separator.join(row) + "\n" for row in rows).encode())

    for names in (("text", "n", "text"), ("id", "id", "text")):
        twin = names[0]
        with pytest.raises(InputError, match=f"2 of its fields are called '{twin}': rename all"):
            records(table(*names), settings=ReadSettings(id_field="id" if twin == "id" else ""))
    assert tokens(records(table("n", "n", "text"))) == [["In", "text", "."]]


QUOTED = (
    'id\ttext\n1\t"She said ""yes"" to it."\n2\tPlain.\n',
    'id\ttext\n1\t"Two\nlines here."\n',
    '"id"\t"text"\n"1"\t"A\ttab."\n',
    "id\ttext\n" + '1\t"Two ""quoted""\nlines here."\n' * 20_000,
    "id\ttext\n" + '1\t"One ""quoted"" line."\n' * 20_000,
)
UNQUOTED = (
    'id\ttext\n1\t"Yes," he said.\n2\t"No."\n',
    'id\ttext\n1\t"Yes."\n2\t"No."\n',
    'id\ttext\n1\t"Yes,\n2\tof course."\n',
    'id\ttext\n1\t5" pipe\n2\ta ""b""\n3\t"\n',
)


@pytest.mark.parametrize("text", [*QUOTED, *UNQUOTED])
def test_a_tsv_file_with_quotes_as_in_csv_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.tsv", text.encode())
    if text in UNQUOTED:
        assert (
            tokens(records(path, settings=WORDS))[0] == text.split("\n")[1].split("\t")[1].split()
        )
        return
    with pytest.raises(InputError, match="in quotes as in CSV: read it with --input-format csv"):
        records(path)
    assert not rejects(records(path, "csv"))
    assert records(path, "tsv", ReadSettings(text_field="2"))  # asked for


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_utf_16_names_the_option_before_the_work(tmp_path: Path, name: str, ends: str) -> None:
    text = f"id,text{ends}1,Good.{ends}".replace(",", "," if name == "a.csv" else "\t")
    path = write(tmp_path / name, text.encode("utf-16"))
    with pytest.raises(InputError, match=f"{path}: the text is UTF-16.*--encoding utf-16$"):
        plan_splits([str(path)])
    assert tokens(records(path, settings=ReadSettings(encoding="utf-16"))) == [["Good", "."]]
    write(path, text.encode("utf-16-le"))
    with pytest.raises(InputError, match="--encoding utf-16-le"):
        plan_splits([str(path)])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_tables_without_the_field_are_named_at_once(
    tmp_path: Path, suffix: str, encoding: str
) -> None:
    separator = "\t" if suffix == ".tsv" else ";"
    settings = ReadSettings(encoding=encoding if encoding == "utf-16" else "utf-8")
    for name, field in (("a", "body"), ("b", "text"), ("c", "para")):
        data = f"id{separator}{field}\n1{separator}Good.\n".encode(encoding)
        write(tmp_path / f"{name}{suffix}", gzip.compress(data) if suffix == ".csv.gz" else data)
    with pytest.raises(InputError) as caught:
        plan_splits([str(tmp_path)], settings=settings)
    assert [(Path(one.url).name[0], one.reason) for one in (caught.value, *caught.value.also)] == [
        (name, f"it has no field 'text', but 'id', '{field}': name one with --text-field")
        for name, field in (("a", "body"), ("c", "para"))
    ]


def test_a_parquet_file_without_the_field_is_named_wherever_it_stands(tmp_path: Path) -> None:
    for name, field in (("a", "text"), ("b", "text"), ("c", "body")):
        pq.write_table(pa.table({"n": [1], field: ["Good."]}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: it has no field 'text', but 'n', 'body'"):
        plan_splits([str(tmp_path)])
    (tmp_path / "c.parquet").unlink()
    assert [split.is_range for split in plan_splits([str(tmp_path)])] == [True, False]


def test_what_is_not_utf8_refuses_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text\ngood\nb\xffd\nlast\n")
    found = records(path)
    assert tokens(found) == [["good"], [], ["last"]]
    assert [reject.reason for reject in rejects(found)] == ["field 'text' has invalid UTF-8 (0xff)"]


def test_a_json_array_is_read_element_by_element(tmp_path: Path) -> None:
    values = [{"text": "One here. Two."}, {"text": ["a", "b c"]}, 3, {"id": 1}, {"text": "x"}]
    path = write(tmp_path / "a.json", json.dumps(values, indent=1).encode())
    found = records(path)
    assert tokens(found) == [["One", "here", "."], ["Two", "."], ["a", "b c"], [], [], ["x"]]
    assert [(r.position, r.reason) for r in rejects(found)] == [
        (2, "the element is a number, not a JSON object"), (3, "field 'text' is missing"),
    ]  # fmt: skip


def test_a_bad_element_is_one_reject_and_the_next_is_read(tmp_path: Path) -> None:
    bad = ["nothing", '{"text": "a",}', '{"text": "\\x"}', '{"text": "\udcff"}', "1 2", ""]
    array = '[{"text": "One."}, ' + ", ".join(bad) + ', {"text": "Two ]}, ["}]'
    path = write(tmp_path / "a.json", array.encode("utf-8", "surrogateescape"))
    found = records(path, settings=WORDS)
    assert tokens(found) == [["One."], *[[]] * len(bad), ["Two", "]},", "["]]
    assert [reject.position for reject in rejects(found)] == [1, 2, 3, 4, 5, 6]
    assert rejects(found)[0].reason.startswith("not JSON: Expecting value")
    assert rejects(found)[3].reason == "invalid UTF-8 at byte 10 of the element (0xff)"
    assert [found[0].position, found[-1].position] == [0, 7]


def test_an_array_and_json_lines_read_the_same_records(tmp_path: Path) -> None:
    lines = [
        '{"text": "One."}',
        '{"text": "Two.", "s": NaN}',
        '{"text": "T\\ud800"}',
        "3",
        '{"text": 1e999}',
    ]
    array = records(write(tmp_path / "a.json", f"[{','.join(lines)}]".encode()))
    by_line = records(write(tmp_path / "b.jsonl", "\n".join(lines).encode()))
    assert tokens(array) == tokens(by_line) == [["One", "."], ["Two", "."], [], [], []]
    reasons = [reject.reason.replace("element", "line") for reject in rejects(array)]
    assert reasons == [reject.reason for reject in rejects(by_line)]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ('[{"text": "a"}, {"tex', "cut short: it ends at byte 21 of the text, in element 1"),
        ('[{"text": "a"}, {"text": "b"}', "cut short: it ends at byte 29 of the text, in element 1"),
        ('[{"text": "a"}, {"text": "b}]', "cut short: it ends at byte 29 of the text, in element 1"),
        ('[{"text": "a"} {"text": "b"}]', "(byte 15 of the text, element 0): no comma before the next element"),
        ('[{"text": "a"}, {"text": ["b"}]', "(byte 29 of the text, element 1): } closes a bracket of the other kind"),
        ('[{"text": "a"}]\n[{"text": "b"}]', "(byte 15 of the text, element 1): more follows after the array's end"),
    ],
)  # fmt: skip
def test_an_array_with_wrong_brackets_is_damaged(tmp_path: Path, array: str, reason: str) -> None:
    path = write(tmp_path / "a.json", array.encode())
    with pytest.raises(DamagedInputError) as caught:
        records(path)
    assert caught.value.reason.endswith(reason)
    *found, last = records(path, settings=ReadSettings(on_bad_file="reject"))
    assert tokens(found) == ([] if "element 0" in reason else [["a"]])
    assert rejects([last])[0].position == len(found)


@examples(200)
@given(
    values=st.lists(
        st.recursive(
            st.none() | st.floats(allow_nan=False) | st.text(alphabet='ab"\\[]{},\nü'),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\]}'), inner),
            max_leaves=10,
        ),
        max_size=4,
    ),
    step=st.integers(1, 7),
)
def test_elements_are_the_same_wherever_pieces_of_the_text_end(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], step: int
) -> None:
    path = write(
        tmp_path_factory.mktemp("array") / "a.json", json.dumps([{"text": values}]).encode()
    )
    wrapped = write(path.with_name("b.json"), json.dumps([[value] for value in values]).encode())
    whole = records(path), records(wrapped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transforms.readers.jsonl.PIECE_BYTES", step)
        assert (records(path), records(wrapped)) == whole
    assert len(whole[1]) == len(values)


def test_a_json_file_may_be_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'\n{"text": "a"}\n{"text": "b"}\n')
    assert tokens(records(path)) == [[], ["a"], ["b"]]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252", "utf-8-sig"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "naïve café ünder\nzwei\n"
    path = write(tmp_path / "a.tok", text.encode(encoding))
    assert tokens(records(path, settings=ReadSettings(encoding=encoding))) == [
        ["naïve", "café", "ünder"],
        ["zwei"],
    ]


def test_what_an_encoding_does_not_have_is_refused_by_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tok", b"good\nb\x81d\nlast\n")
    found = records(path, settings=ReadSettings(encoding="cp1252"))
    assert tokens(found) == [["good"], [], ["last"]]


@examples(200)
@given(
    text=st.text(alphabet="a. \n\r", max_size=60).map(str.encode),
    unit=st.sampled_from([LINE, BLOCK, TEXT]),
    step=st.integers(1, 7),
)
def test_boundaries_never_fall_and_begin_units(text: bytes, unit: str, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transforms.inputs.boundaries.STEP", step)
        found = [
            boundary(lambda a, b: text[a:b], place, len(text), unit)
            for place in range(len(text) + 2)
        ]
    assert found == sorted(found)
    assert all(cut >= place for place, cut in enumerate(found) if place <= len(text))
    for cut in found:
        if 0 < cut < len(text):
            before = text[:cut].replace(b" ", b"").replace(b"\r", b"")
            assert before.endswith(b"\n" if unit == LINE else b"\n\n")


@given(
    text=st.text(alphabet="a. \n\r", max_size=120).map(str.encode),
    unit=st.sampled_from([LINE, BLOCK, TEXT]),
    step=st.integers(1, 7),
    limit=st.integers(1, 9),
    range_bytes=st.integers(1, 20),
)
def test_ranges_share_a_text_whose_lines_are_longer_than_they(
    text: bytes, unit: str, step: int, limit: int, range_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transforms.inputs.boundaries.STEP", step)
        patch.setattr("transforms.inputs.boundaries.LIMIT", limit)
        patch.setattr("transforms.inputs.boundaries.LONGEST_LOOK", 0)
        bounds = [
            range_bounds(
                lambda a, b: text[a:b], start, min(start + range_bytes, len(text)), len(text), unit
            )
            for start in range(0, len(text), range_bytes)
        ]
    assert b"".join(text[first:last] for first, last in bounds) == text


@pytest.mark.parametrize("unit", [LINE, BLOCK, TEXT])
@pytest.mark.parametrize("filling", [b"a", b"a ", b"word " * 30 + b"\n"])
def test_a_unit_over_many_ranges_takes_linear_time_and_little_memory(
    unit: str, filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kib = 1 << 10
    size, n_fetched = 4096 * kib, 0
    data = filling * (size // len(filling))

    def fetch(start: int, stop: int) -> bytes:
        nonlocal n_fetched
        n_fetched += stop - start
        return data[start:stop]

    for name, value in (("STEP", 4 * kib), ("LIMIT", 64 * kib), ("LONGEST_LOOK", 256 * kib)):
        monkeypatch.setattr(f"transforms.inputs.boundaries.{name}", value)
    tracemalloc.start()
    try:
        for start in range(0, size, 64 * kib):
            range_bounds(fetch, start, start + 64 * kib, size, unit)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_fetched < 12 * size
    assert peak_bytes < 1024 * kib


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["lines", "text", "jsonl"])
def test_a_large_file_that_cannot_be_cut_reads_as_a_plain_one(
    tmp_path: Path, kind: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {
        "lines": "word {} here\n",
        "text": "It is {} here. And there.\n\n",
        "jsonl": '{{"text": "It is {}. So."}}\n',
    }[kind]
    data = "".join(line.format(i) for i in range(3000)).encode()
    whole = records(write(tmp_path / "plain", data), kind)
    path = write(
        tmp_path / f"a{suffix}", gzip.compress(data) if suffix else data.decode().encode("utf-16")
    )
    read = ReadSettings(encoding="utf-8" if suffix else "utf-16")
    for place in (
        "stages.split.SAMPLE_BYTES",
        "inputs.byte_source.READ_BYTES",
        "inputs.decompress.OUTPUT_BYTES",
    ):
        monkeypatch.setattr(f"transforms.{place}", 3000)
    (task,) = read_tasks(plan_splits([str(path)], kind, read, range_bytes=1000))
    (split,) = task.splits
    assert not split.is_range
    assert list(read_split(split, read)) == whole
    assert len(whole) >= 3000


def test_small_files_share_a_task_and_large_ones_do_not(tmp_path: Path) -> None:
    for i in range(600):
        write(tmp_path / f"in/{i:03d}.tok", b"a b\n" * 3)
    tasks = list(read_tasks(plan_splits([str(tmp_path / "in")])))
    assert [len(task.splits) for task in tasks] == [256, 256, 88]
    root = Root(tmp_path / "store")
    result = tokenise_task(root, tasks[0], ReadSettings())
    assert [part.n_sentences for part in result.parts] == [768]


CSV_TEXT = (
    'id,"text\n",rest\r\n'  # names over two lines
    + "".join(f'{i},"Row ""{i}"", over\ntwo lines. And so on.",x\r\n' for i in range(40))
    + "short,row\n\n"
    + 'bad,"\udcff",x\n'
    + "".join(f'{i},plain {i} text,x"y"\n' for i in range(40))
    + "last,no end\n"
)
TABLES: dict[str, tuple[str, str, str]] = {  # name → format, text, text field
    "csv": ("csv", CSV_TEXT.replace("text\n", "text"), "text"),
    "csv by number": (
        "csv",
        "\ufeff" + "".join(f'{i};"a; b {i}";c\n' for i in range(99)) + "1;2\n" + "x;y;z\n" * 9,
        "2",
    ),
    "tsv": (
        "tsv",
        "id\ttext\n" + "".join(f'{i}\tsome "text {i}\n' for i in range(99)) + "\n1\n",
        "text",
    ),
    "json array": (
        "json",
        "\ufeff["
        + ", ".join(json.dumps({"text": f"It is {i}. \ud83d ü", "n": i / 7}) for i in range(60))
        + ', 17, {"text": 3}, '
        + "[" * 300
        + "]" * 300
        + "]",
        "text",
    ),
    "broken array": (
        "json",
        "[" + "".join(f'{{"text": "It is {i}."}},' for i in range(60)) + '{"text": nothing}]',
        "text",
    ),
    "lines called json": (
        "json",
        "".join(f'{{"text": "It is {i}."}}\n' for i in range(600)),
        "text",
    ),
    "empty": ("csv", "", "text"),
}


@pytest.mark.parametrize("name", list(TABLES))
def test_a_compressed_table_reads_as_a_plain_one(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, text, field = TABLES[name]
    data = text.encode("utf-8", "surrogateescape" if "\udcff" in text else "strict")
    read = ReadSettings(text_field=field, max_line_bytes=4096)
    whole = records(write(tmp_path / "plain", data), kind, read)
    for place in ("inputs.byte_source.READ_BYTES", "inputs.decompress.OUTPUT_BYTES"):
        monkeypatch.setattr(f"transforms.{place}", 300)
    assert records(write(tmp_path / "packed", gzip.compress(data)), kind, read) == whole
    assert len(whole) > 60 or name == "empty"
