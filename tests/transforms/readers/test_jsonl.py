"""The format jsonl: strings and token lists, ids, and every way for a record to be refused."""

import codecs
import json
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.transforms.reading import one_split, read_split, records, rejects, tokens, write
from transforms.inputs.decompress import compression_of_bytes
from transforms.inputs.records import ReadSentence, ReadSettings, Reject
from transforms.stages.split import plan_splits


def test_strings_and_token_lists(tmp_path: Path) -> None:
    lines = [
        '{"text": "I don\'t. Go."}',
        '{"text": ["I", "don\'t", "a b"]}',
        '{"text": ""}',
        '{"text": []}',
        '{"text": "é\\u00e9"}',
    ]
    path = write(tmp_path / "a.jsonl", "\r\n".join(lines).encode())
    found = records(path)
    assert tokens(found) == [
        ["I", "do", "n't", "."],
        ["Go", "."],
        ["I", "don't", "a b"],
        [],
        [],
        ["éé"],
    ]
    assert [(record.position, record.within) for record in found] == [
        (0, 0),
        (0, 1),
        (1, -1),
        (2, 0),
        (3, -1),
        (4, 0),
    ]
    whole = records(path, settings=ReadSettings(document="sentence"))
    assert tokens(whole) == [
        ["I", "do", "n't", ".", "Go", "."],
        ["I", "don't", "a b"],
        [],
        [],
        ["éé"],
    ]
    assert [(record.position, record.within) for record in whole] == [(i, -1) for i in range(5)]
    assert not rejects(found)


def test_fields_and_tokenizer_by_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.ndjson",
        b'{"t.x": "don\'t go.", "key": "first"}\n{"key": 18446744073709551616, "t.x": "x"}',
    )
    found = records(
        path, settings=ReadSettings(text_field="t.x", id_field="key", tokenizer="whitespace")
    )
    assert found == [
        ReadSentence(("don't", "go."), "first", 0, within=0),
        ReadSentence(("x",), "18446744073709551616", 1, within=0),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "the line is blank: not JSON"),
        ("  \t", "the line is blank: not JSON"),
        ("{", "not JSON: Expecting property name"),
        ('{"text": "a"} {}', "not JSON: Extra data"),
        ('{"text": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
        ("[" * 100_000, "JSON nested too deeply"),
        ('["a"]', "the line is a list, not a JSON object"),
        ("null", "the line is null, not a JSON object"),
        ('{"id": "k"}', "field 'text' is missing"),
        ('{"id": "k", "text": null}', "field 'text' is null, not a string or a list of strings"),
        ('{"id": "k", "text": 3}', "field 'text' is a number"),
        ('{"id": "k", "text": NaN}', "field 'text' is a number"),
        ('{"id": "k", "text": {"a": "b"}}', "field 'text' is an object"),
        ('{"id": "k", "text": ["a", 1]}', "token 1 of field 'text' is a number, not a string"),
        ('{"id": "k", "text": ["a", true]}', "token 1 of field 'text' is a boolean, not a string"),
        ('{"id": "k", "text": [null, ["a"]]}', "token 0 of field 'text' is null, not a string"),
        ('{"id": "k", "text": ["a", ["b"]]}', "token 1 of field 'text' is a list, not a string"),
        (
            '{"id": "k", "text": [[["a"]]]}',
            "token 0 of sentence 0 of field 'text' is a list, not a string",
        ),
        ('{"id": "k", "text": ["a", ""]}', "token 1 of field 'text' is an empty string"),
        (
            '{"id": "k", "text": ["\\ud800"]}',
            "token 0 of field 'text' has half a surrogate pair (U+D800)",
        ),
        ('{"id": "k", "text": "a \\udfff b"}', "field 'text' has half a surrogate pair (U+DFFF)"),
        ('{"id": "k", "text": ["a\\u0000"]}', "token 0 of field 'text' has a NUL character"),
        ('{"text": "a"}', "id field 'id' is missing"),
        ('{"id": null, "text": "a"}', "id field 'id' is null, not a string or an integer"),
        ('{"id": true, "text": "a"}', "id field 'id' is a boolean"),
        ('{"id": 1.5, "text": "a"}', "id field 'id' is a number"),
        ('{"id": "", "text": "a"}', "id field 'id' is empty"),
        ('{"id": "\\ud800", "text": "a"}', "id field 'id' has half a surrogate pair"),
    ],
)
def test_refused_with_position_reason_and_raw_text(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"id": "good", "text": ["a"]}'
    path = write(tmp_path / "a.jsonl", f"{good}\n{line}\n{good}\n".encode())
    found = records(path, settings=ReadSettings(id_field="id"))
    assert tokens(found) == [["a"], [], ["a"]]
    (reject,) = rejects(found)
    assert reject.position == 1
    assert reject.reason.startswith(reason)
    assert reject.raw == line[:500]
    assert reject.id in ("", "k")


def test_lines_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "\xff"}\n{"text": "b"}\n')
    found = records(path)
    assert rejects(found) == [
        Reject(0, "invalid UTF-8 at byte 10 of the line (0xff)", '{"text": "\\xff"}')
    ]
    assert tokens(found) == [[], ["b"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
)
LINES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"text": JSON}),
        st.fixed_dictionaries({"text": st.text(max_size=20)}),
        JSON,
    ).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    | st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
    max_size=12,
)


@pytest.mark.slow
@given(lines=LINES, size=st.integers(1, 60))
@example(lines=[b'{"text": ""}', codecs.BOM_UTF8], size=1)
def test_any_line_is_one_record_and_ranges_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assume(
        not compression_of_bytes(data)
    )  # by its first bytes such a file is a compressed one, and damaged
    path = write(tmp_path_factory.mktemp("jsonl") / "a.jsonl", data)
    whole = records(path)
    assert list(dict.fromkeys(record.position for record in whole)) == list(range(len(lines)))
    for record in whole:
        fields = [record.reason, record.raw] if isinstance(record, Reject) else list(record.tokens)
        assert all(field.encode() for field in fields if field)
    ranged = [
        r
        for split in plan_splits([str(path)], range_bytes=size)
        for r in read_split(split, ReadSettings())
    ]
    assert tokens(ranged) == tokens(whole)
    assert [reject.reason for reject in rejects(ranged)] == [
        reject.reason for reject in rejects(whole)
    ]
    assert one_split(path).format == "jsonl"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_name_that_an_object_has_twice_is_rejected_where_it_is_read(
    tmp_path: Path, name: str
) -> None:
    lines = [
        '{"text": "One.", "text": "Two."}',
        '{"id": "a", "text": "Three.", "id": "b"}',
        '{"id": "c", "text": "Four.", "n": 1, "n": {"m": 1, "m": 2}}',
    ]
    text = f"[{','.join(lines)}]" if name == "a.json" else "\n".join(lines)
    found = records(write(tmp_path / name, text.encode()), settings=ReadSettings(id_field="id"))
    assert tokens(found) == [[], [], ["Four", "."]]
    assert [reject.reason for reject in rejects(found)] == [
        "id field 'id' is missing",
        "id field 'id' is there twice",
    ]
    (first, *_) = records(tmp_path / name)
    assert isinstance(first, Reject)
    assert first.reason == "field 'text' is there twice"
