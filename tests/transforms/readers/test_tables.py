"""CSV, TSV, JSON arrays, columns as in CoNLL-2003, encodings, blobs of large streams: what people have."""

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.root import Root
from tests.examples import examples
from tests.transforms.reading import read_split, records, rejects, tokens, write
from transforms.inputs.boundaries import BLOCK, LINE, TEXT, boundary, range_bounds
from transforms.inputs.records import (
    InDocument,
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
    cut = write(tmp_path / "b.json", json.dumps(values[:2]).encode()[:-20])
    found = records(cut)
    assert tokens(found)[:2] == [["One", "here", "."], ["Two", "."]]
    assert rejects(found)[-1].reason == "not JSON from here on: parse error: premature EOF"
    broken = write(tmp_path / "c.json", json.dumps(values[:2]).encode()[:-1] + b", \xff]")
    assert (
        rejects(records(broken))[-1].reason
        == "not JSON from here on: lexical error: invalid char in json text."
    )


def test_a_json_file_may_be_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'\n{"text": "a"}\n{"text": "b"}\n')
    assert tokens(records(path)) == [[], ["a"], ["b"]]


CONLL = b"""-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# a comment
1 CD O O
short
"""


def test_columns_as_in_conll_2003(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", CONLL)
    assert records(path) == [
        ReadSentence(("EU", "rejects"), "", 2, document=InDocument(0, 0)),
        ReadSentence(("1", "short"), "", 6, document=InDocument(1, 0)),
    ]
    found = records(path, settings=ReadSettings(text_field="2"))
    assert tokens(found) == [["NNP", "VBZ"], []]
    assert rejects(found)[0].reason == "no column 2 in 1 (line 2 of the sentence)"
    universal = b"# sent_id = s1\n1\tGo\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
    assert records(write(tmp_path / "b.conll", universal)) == [
        ReadSentence(("Go",), "s1", 0, document=InDocument(0))
    ]


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
    + "".join(f'{i},plain {i} text,"x"y"\n' for i in range(40))
    + 'last,"no end of the quote\nat all,x\n'
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
