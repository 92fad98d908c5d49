"""Text that somebody else wrote: each record is a sentence in its place or a reject in its place, in bounded time and memory."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from pipeline.cli.locations import is_url
from tests.transforms.reading import read_split
from transforms.inputs.decompress import BOMB_BYTES, BOMB_RATIO
from transforms.inputs.records import (
    MIB,
    DamagedInputError,
    InputError,
    ReadSentence,
    ReadSettings,
    Record,
    Reject,
)
from transforms.stages.split import plan_splits


def read(path: Path, kind: str = "lines", **settings: Any) -> list[Record]:
    """All records of a file."""
    how = ReadSettings(**settings)
    return [
        record for split in plan_splits([str(path)], kind, how) for record in read_split(split, how)
    ]


def of(
    folder: Path, data: bytes, kind: str = "lines", name: str = "in", **settings: Any
) -> list[Record]:
    """All records of a file of these bytes."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return read(path, kind, **settings)


def reason(record: Record) -> str:
    assert isinstance(record, Reject), record
    return record.reason


def tokens(record: Record) -> tuple[str, ...]:
    assert isinstance(record, ReadSentence), record
    return record.tokens


def test_a_line_of_100_mb_is_refused_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "in"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"word " * 200_000)
        file.write(b"\nthe next\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second = read(path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert reason(first) == "the line is longer than 16777216 bytes"
    assert isinstance(first, Reject)
    assert len(first.raw) <= 500
    assert tokens(second) == ("the", "next")
    assert grown_kib < 80 << 10


def test_a_word_of_1_mb_is_a_word(tmp_path: Path) -> None:
    first, second = of(tmp_path, b"x" * 1_000_000 + b" y\nok\n")
    assert [len(token) for token in tokens(first)] == [1_000_000, 1]
    assert tokens(second) == ("ok",)


@pytest.mark.parametrize("kind", ["lines", "jsonl", "text"])
def test_a_nul_is_refused_with_its_place(tmp_path: Path, kind: str) -> None:
    first, *_ = of(tmp_path, b"so far\0so good, and on it goes\nok.\n", kind)
    assert reason(first) == "NUL character at character 6 of the line"


def test_surrogates_are_refused_as_bytes_and_as_escapes(tmp_path: Path) -> None:
    first, second = of(tmp_path, b"ok \xed\xa0\x80\nok\n")
    assert reason(first) == "invalid UTF-8 at byte 3 of the line (0xed)"
    assert tokens(second) == ("ok",)
    (record,) = of(tmp_path, b'{"text": "a \\ud800 b"}\n', "jsonl")
    assert "half a surrogate pair" in reason(record)
    (record,) = of(tmp_path, b'[{"text": ["a", "\\udfff"]}]', "json")
    assert isinstance(
        record, ReadSentence | Reject
    )  # the parser's own replacement, or a reject: never half a pair
    json.dumps(
        record.tokens if isinstance(record, ReadSentence) else record.raw, ensure_ascii=False
    ).encode()


@pytest.mark.parametrize("kind", ["lines", "text", "jsonl", "conllu", "conll"])
@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16", "UTF-16"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")]
)
def test_utf_16_is_named_in_the_reject(
    tmp_path: Path, kind: str, encoding: str, named: str
) -> None:
    text = "the cat\nsat\n" if encoding in ("utf-16", "utf-32") else "\ufeffthe cat\nsat\n"
    first, *_ = of(tmp_path, text.encode(encoding), kind)
    assert f"the text is {named}, not UTF-8: read it with --encoding {named.lower()}" in reason(
        first
    )


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_utf_16_is_named_where_it_has_no_field(tmp_path: Path, kind: str) -> None:
    with pytest.raises(
        InputError, match="the text is UTF-16, not UTF-8: read it with --encoding utf-16"
    ):
        of(tmp_path, "id,text\n1,a\n".encode("utf-16"), kind)


def test_utf_16_without_a_mark_is_guessed_in_the_reject(tmp_path: Path) -> None:
    first, *_ = of(tmp_path, "the cat sat\nnext\n".encode("utf-16-le"))
    assert "it may be UTF-16" in reason(first)
    assert [
        tokens(one) for one in of(tmp_path, "the cat\n".encode("utf-16"), encoding="utf-16")
    ] == [("the", "cat")]


@pytest.mark.parametrize("kind", ["lines", "text", "jsonl", "csv", "conllu"])
def test_a_byte_order_mark_of_utf_8_is_no_character(tmp_path: Path, kind: str) -> None:
    row = "\t".join(("1", "word", *("_" * 8)))
    data = {"jsonl": '{"text": ["word"]}\n', "csv": "text\nword\n", "conllu": row + "\n\n"}.get(
        kind, "word\n"
    )
    (record,) = of(tmp_path, b"\xef\xbb\xbf" + data.encode(), kind)
    assert tokens(record) == ("word",)


def test_unicode_separators_neither_end_lines_nor_split_words(tmp_path: Path) -> None:
    text = "a\u2028b c\u0085d e\u00a0f g\u3000h\u2009i j\x0bk l\x0cm n\x1co\rp\n"
    records = of(tmp_path, text.encode())
    assert [tokens(record) for record in records] == [tuple(text[:-1].split(" "))]


def test_crlf_ends_a_line_and_a_lone_cr_does_not(tmp_path: Path) -> None:
    records = of(tmp_path, b"a b\r\n\r\nc\rd\r\ne\r")
    assert [tokens(record) for record in records] == [("a", "b"), (), ("c\rd",), ("e\r",)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lines", "text", "conllu"])
def test_a_million_empty_lines(tmp_path: Path, kind: str) -> None:
    records = of(tmp_path, b"\n" * 1_000_000, kind)
    assert len(records) == (1_000_000 if kind == "lines" else 0)
    assert not any(tokens(record) for record in records)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def zeros(suffix: str, n_bytes: int) -> bytes:
    """A stream of so many zeros, made of members that are joined."""
    member = PACK[suffix](bytes(64 * MIB))
    return member * (n_bytes // (64 * MIB))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    data = zeros(suffix, BOMB_BYTES + 64 * MIB)
    assert len(data) * BOMB_RATIO < BOMB_BYTES
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=f"more than {BOMB_RATIO} times as many"):
        of(tmp_path, data, name=f"in.txt.{suffix}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10


@pytest.mark.slow
def test_text_that_compresses_well_is_no_bomb(tmp_path: Path) -> None:
    data = PACK["zst"](b"the same line again\n" * 200_000)
    assert len(of(tmp_path, data, name="in.lines.zst")) == 200_000


@pytest.mark.parametrize("suffix", PACK)
def test_streams_of_several_members_and_cut_ones(tmp_path: Path, suffix: str) -> None:
    member = PACK[suffix](b"one line\n" * 50)
    name = f"in.lines.{suffix}"
    assert len(of(tmp_path, member * 3, name=name)) == 150
    for data in (member[:-5], member + member[: len(member) // 2]):
        with pytest.raises(InputError, match="cut short"):
            of(tmp_path, data, name=name)
    with pytest.raises(InputError, match=r"damaged|cut short"):
        of(tmp_path, member + b"garbage", name=name)
    with pytest.raises(InputError, match="but its first bytes"):
        of(tmp_path, b"plain text\n", name=name)
    assert of(tmp_path, b"", name=name) == []


@pytest.mark.parametrize(
    "name",
    ["with space.lines", "a...lines", "a..b/c...lines", "new\nline.lines", 'quo"te.lines', "x::y.lines", "zip::x.lines",
     "a[b]c?.lines", "*.lines", "%2e%2e%2f.lines", "naïve-東京.lines", "tab\t.lines", "-.lines", "a://b.lines"],
)  # fmt: skip
def test_names_of_files_are_names(tmp_path: Path, name: str) -> None:
    assert [tokens(record) for record in of(tmp_path, b"a b\n", name=name)] == [("a", "b")]
    below = [split.url for split in plan_splits([str(tmp_path)], "lines")]
    assert below == [str(tmp_path / name)]
    (record,) = [
        record
        for split in plan_splits([str(tmp_path)], "lines")
        for record in read_split(split, ReadSettings())
    ]
    assert tokens(record) == ("a", "b")


def test_names_of_outputs_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`::` joins filesystems only after the name of one; the working folder does not matter."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "my::store",
        "a b/../my::store",
        str(tmp_path / "s3::x"),
        "new\nline",
        "a[b]*",
        "%2e%2e",
        "naïve-東京",
    ):
        root = Root(name)
        root.put("a/b", b"1")
        (place,) = tmp_path.rglob("a/b")
        assert str(place) == os.path.abspath(name) + "/a/b"
        assert pickle.loads(pickle.dumps(root)).list() == ["a/b"]
        assert is_url(name) is False
        shutil.rmtree(place.parent.parent)
    assert is_url("simplecache::memory://x")
    assert is_url("zip::x.zip")
    with pytest.raises(StoreError, match="outputs and stores can't be on zip"):
        Root("zip::no").list()


def test_dots_in_the_name_that_is_given_are_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "in.lines").write_text("a b\n")
    (split,) = plan_splits([str(tmp_path / "a" / ".." / "in.lines")], "lines")
    assert split.url == str(tmp_path / "in.lines")


DEEP = 100_000


def test_json_nested_100_000_deep_is_refused_in_its_place(tmp_path: Path) -> None:
    deep = '{"text": ' + "[" * DEEP + "]" * DEEP + "}"
    first, second = of(tmp_path, f'{deep}\n{{"text": "ok."}}\n'.encode(), "jsonl")
    assert reason(first) == "JSON nested too deeply"
    assert tokens(second) == ("ok", ".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second, third = of(
        tmp_path, f'[{deep}, {{"text": "ok."}}, {"[" * DEEP + "]" * DEEP}]'.encode(), "json"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # it took 25 GB
    assert reason(first) == reason(third) == "JSON nested too deeply"
    assert tokens(second) == ("ok", ".")


def test_an_element_of_a_json_array_has_a_limit(tmp_path: Path) -> None:
    text = '[{"text": "ok."}, {"text": "' + "word " * 200_000 + '"}, {"text": "ok."}]'
    first, second, third = of(tmp_path, text.encode(), "json", max_line_bytes=100_000)
    assert tokens(first) == tokens(third) == ("ok", ".")
    assert reason(second) == "the element is longer than 100000 bytes"


@pytest.mark.parametrize(
    "value",
    ["1" + "0" * 5000, "1e400", "NaN", "-Infinity", "true", "null", "{}", "[[[]]]", "[1, 2]"],
)
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_json_values_that_are_no_text(tmp_path: Path, value: str, kind: str) -> None:
    record = f'{{"text": {value}}}'
    first, *_ = of(tmp_path, (f"[{record}]" if kind == "json" else f"{record}\n").encode(), kind)
    assert reason(first)


@pytest.mark.parametrize(
    "column",
    [pa.array([1]), pa.array([1.5]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([[[["a"]]]]), pa.array([None]),
     pa.array([True]), pa.array([[1.5]], pa.list_(pa.float64(), 1))],
)  # fmt: skip
def test_parquet_of_wrong_types_is_refused_by_its_field(tmp_path: Path, column: Any) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "in.parquet")
    (record,) = read(tmp_path / "in.parquet", "parquet")
    assert "field 'text' is" in reason(record)


def test_parquet_without_the_field_nulls_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"other": ["a"]}), path)
    with pytest.raises(InputError, match="it has no field 'text', but 'other'"):
        read(path, "parquet")
    pq.write_table(pa.table({"text": pa.array([b"ok.", None, b"\xff", b"a\0b"])}), path)
    first, *others = read(path, "parquet")
    assert tokens(first) == ("ok", ".")
    assert [bool(reason(one)) for one in others] == [True] * 3


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"not parquet at all", b"\0" * 5000]
)
def test_parquet_that_is_none(tmp_path: Path, data: bytes) -> None:
    if not data:
        assert of(tmp_path, data, "parquet") == []
        return
    with pytest.raises(InputError, match="can't be read as Parquet"):
        of(tmp_path, data, "parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stretch",
    [
        ". ",
        "U.S. ",
        "A.",
        "(",
        "'",
        '"',
        "-",
        "$1",
        "a\u2028",
        "e\u0301",
        "\u202e",
        "n't ",
        "cannot ",
        "0,",
        "http://a",
    ],
)
def test_tokenising_takes_time_that_grows_with_the_text_alone(tmp_path: Path, stretch: str) -> None:
    """A pattern that tries every way takes hours for this; the slowest of these takes 12 µs a character."""
    began = time.monotonic()
    of(tmp_path, stretch.encode() * (100_000 // len(stretch)) + b"\n", "text")
    assert time.monotonic() - began < 60


def test_names_of_csv_fields_in_an_error_are_cut(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it has no field 'text'") as caught:
        of(tmp_path, b"x" * 1_000_000 + b"\n", "csv")
    assert len(str(caught.value)) < 1000


def test_a_csv_field_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedInputError, match="the row is longer than 10000 bytes"):
        of(tmp_path, b'text\n"' + b"never closed\n" * 5_000, "csv", max_line_bytes=10_000)


def test_a_pickle_is_text_that_is_none(tmp_path: Path) -> None:
    import pickle

    assert all(reason(record) for record in of(tmp_path, pickle.dumps({"a": 1})))
