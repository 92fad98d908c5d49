"""The format lines: what ends a line, what splits a token, ranges against one sequential read, bounded memory."""

import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transforms.reading import one_split, read_split, records, rejects, tokens, write
from transforms.inputs.records import InDocument, ReadSentence, ReadSettings, Reject
from transforms.readers import open_split
from transforms.readers.lines import split_lines
from transforms.stages.split import plan_splits

NO_SEPARATORS = [
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\xa0",
    "\u2003",
    "\u2028",
    "\u2029",
    "\u3000",
    "\r",
]
FRAGMENTS = [
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\t",
    b"a",
    b"word",
    "é".encode(),
    b"\xff",
    b"\xc3",
    "\u2028".encode(),
    b"\x85",
    b"\0",
]
CONTENT = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map(b"".join)


def oracle(data: bytes) -> list[bytes]:
    """Lines by the definition, with a regular expression."""
    return [m[1] if m[2] else m[3] for m in re.finditer(rb"([^\n]*?)(\r?\n)|([^\n]+)$", data)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_sentence_i_is_line_i(tmp_path: Path, ending: bytes) -> None:
    path = write(
        tmp_path / "a.tok", ending.join([b"The  cat\tsat .", b"", b" \t ", b"It slept ."]) + ending
    )
    found = records(path)
    assert tokens(found) == [["The", "cat", "sat", "."], [], [], ["It", "slept", "."]]
    assert [record.position for record in found] == [0, 1, 2, 3]
    assert not rejects(found)


@pytest.mark.parametrize("character", NO_SEPARATORS)
def test_only_ascii_space_and_tab_split_tokens_and_only_line_feeds_split_lines(
    tmp_path: Path, character: str
) -> None:
    path = write(tmp_path / "a.tok", f"a{character}b c\nd\n".encode())
    assert tokens(records(path)) == [[f"a{character}b", "c"], ["d"]]


@given(
    st.lists(
        st.text(st.characters(max_codepoint=0x3100, exclude_characters="\0\r"), max_size=12),
        max_size=12,
    )
)
def test_the_tokenizer_unicode_splits_as_allennlp_elmo_and_bilm_tf_do(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = write(tmp_path_factory.mktemp("lines") / "a.tok", "\n".join(["first", *lines]).encode())
    with path.open(encoding="utf-8") as file:
        theirs = [line.strip().split() for line in file]
    assert tokens(records(path, settings=ReadSettings(tokenizer="unicode"))) == theirs


@pytest.mark.parametrize("character", NO_SEPARATORS)
def test_every_white_space_of_unicode_splits_tokens_where_that_is_asked_for(
    tmp_path: Path, character: str
) -> None:
    path = write(tmp_path / "a.tok", f"a{character}b c\n".encode())
    assert tokens(records(path, settings=ReadSettings(tokenizer="unicode"))) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [[]]),
        (b"a", [["a"]]),
        (b"a\n", [["a"]]),
        (b"a\n\n", [["a"], []]),
        (b"a\r", [["a\r"]]),
        (b"a\r\r\nb", [["a\r"], ["b"]]),
        (b"\xef\xbb\xbfa b\n\xef\xbb\xbfc", [["a", "b"], ["\ufeffc"]]),
    ],
)
def test_ends_of_files(tmp_path: Path, data: bytes, expected: list[list[str]]) -> None:
    assert tokens(records(write(tmp_path / "a.tok", data))) == expected


def test_bad_lines_keep_their_place_and_say_why(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.tok",
        b"one\nbad \xff here\nthree\nnul \0 here\nfive\n" + b"x" * 40 + b"\nseven",
    )
    found = records(path, settings=ReadSettings(max_line_bytes=20))
    assert tokens(found) == [["one"], [], ["three"], [], ["five"], [], ["seven"]]
    assert rejects(found) == [
        Reject(
            1,
            "invalid UTF-8 at byte 4 of the line (0xff)",
            "bad \\xff here",
            document=InDocument(1),
        ),
        Reject(
            3, "NUL character at character 4 of the line", "nul \0 here", document=InDocument(3)
        ),
        Reject(5, "the line is longer than 20 bytes", "x" * 40, document=InDocument(5)),
    ]


def test_encoded_surrogates_are_no_utf8(tmp_path: Path) -> None:
    (reject,) = records(write(tmp_path / "a.tok", b"a \xed\xa0\x80"))
    assert isinstance(reject, Reject)
    assert "invalid UTF-8" in reject.reason


def test_tokenizer_named_for_lines_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tok", b"I don't.\n")
    assert tokens(records(path, settings=ReadSettings(tokenizer="ptb"))) == [
        ["I", "do", "n't", "."]
    ]


@given(data=CONTENT, size=st.integers(1, 9), limit=st.integers(1, 12))
def test_lines_do_not_depend_on_how_chunks_fall(data: bytes, size: int, limit: int) -> None:
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    found = list(split_lines(iter(chunks), limit))
    assert [len(line) > limit for line in found] == [len(line) > limit for line in oracle(data)]
    for line, whole in zip(found, oracle(data), strict=True):
        assert whole.startswith(line[:limit])
        assert line == whole or limit < len(line) <= 2 * limit + size + 4


@given(data=CONTENT, size=st.integers(1, 40))
def test_ranges_read_what_one_sequential_read_does(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int
) -> None:
    path = write(tmp_path_factory.mktemp("ranges") / "a.tok", data)
    settings = ReadSettings()
    whole = list(read_split(one_split(path, "lines"), settings))
    splits = plan_splits([str(path)], "lines", range_bytes=size)
    assert len(splits) == max(1, -(-len(data) // size))
    ranged: list[ReadSentence | Reject] = []
    n_bytes = 0
    for split in splits:
        source, found = open_split(split, settings)
        own = list(found)
        assert [record.position for record in own] == list(range(len(own)))
        ranged += own
        n_bytes += source.bytes_read
    assert n_bytes == len(data)
    assert [key(record) for record in ranged] == [key(record) for record in whole]


def key(record: ReadSentence | Reject) -> tuple[object, ...]:
    return (record.tokens,) if isinstance(record, ReadSentence) else (record.reason, record.raw)


def test_one_huge_line_is_refused_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    with path.open("wb") as file:
        file.write(b"before\n")
        for _ in range(100):
            file.write(b"word " * 200_000)
        file.write(b"\nafter\n")
    settings = ReadSettings(max_line_bytes=1 << 20)
    splits = plan_splits([str(path)], "lines", settings)
    assert len(splits) > 2  # the line straddles them
    tracemalloc.start()
    try:
        found = [record for split in splits for record in read_split(split, settings)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tokens(found) == [["before"], [], ["after"]]
    assert [reject.position for reject in rejects(found)] == [1]
    assert len(rejects(found)[0].raw) <= 500
    assert peak < 32 << 20  # of 100 MB: what is fetched at once, and its splits
