"""Running text: sentences, paragraphs, ids, positions, refused lines, windows; tokens after the Penn Treebank."""

import random
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.transforms.reading import one_split, read_split, records, rejects, tokens, write
from transforms.inputs.records import InputError, ReadSentence, ReadSettings, Record, Reject
from transforms.readers import open_split
from transforms.stages.split import plan_splits
from transforms.text import sentences
from transforms.text.ptb import record_tokens as ptb
from transforms.text.sentences import sentence_spans
from transforms.text.tokenizers import describe, get, name_for, whitespace


def split(running: str) -> list[str]:
    return [running[start:stop] for start, stop in sentence_spans(running)]


@pytest.mark.parametrize(
    "expected",
    [
        ["Mr. Smith met Dr. Jones at 3 p.m. in St. Louis.", "They talked."],
        ["He lives in the U.S. Army base.", "We left."],
        ["He left the U.S.", "He came back."],
        ['"What is it?" he asked.', '"Nothing!"', "She left."],
        ["See Fig. 3 and No. 5 of vol. 2.", "No.", "Never."],
        ["It cost $3.50.", "Pi is 3.14159, e.g. in Eq. 2."],
        ["Wait... what?", "(He did not know.)", "Then J. R. Smith came."],
        ["Under E.O. 12065 of the F.B.I. Director they met.", "1. The first.", "2. The second."],
        ["One sentence without an end"],
    ],
)
def test_sentences(expected: list[str]) -> None:
    assert split(" ".join(expected)) == expected


@given(st.text(alphabet="aB. !?\"'(\n\u2028é", max_size=60))
def test_sentences_leave_out_nothing_but_white_space(running: str) -> None:
    spans = sentence_spans(running)
    assert all(start < stop for start, stop in spans)
    assert spans == sorted(spans)
    assert "".join("".join(running[a:b].split()) for a, b in spans) == "".join(running.split())


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("They don't, can't and won't.", "They do n't , ca n't and wo n't ."),
        ("John's dog cost $3.50 (or so).", "John 's dog cost $ 3.50 ( or so ) ."),
        ("“Well,” she said—“yes”.", '" Well , " she said -- " yes " .'),
        ('He said "no."', 'He said " no . "'),
        ("the years 1914–1918 – a war…", "the years 1914-1918 -- a war ..."),
        ("‘Oh’, said Tom, the dogs’ food.", "' Oh ' , said Tom , the dogs ' food ."),
        ("He left the U.S.", "He left the U.S ."),
        ("gonna cannot AT&T [1] {x}", "gon na can not AT & T [ 1 ] { x }"),
        ("a\u00a0b . . . c", "a b ... c"),
    ],
)
def test_ptb_tokens(sentence: str, expected: str) -> None:
    assert " ".join(ptb(sentence)) == expected


def test_ptb_tokens_are_those_of_the_training_text(shared_dir: Path) -> None:
    """Where sentences agree, so do tokens, on held-out text that another program tokenised."""
    import lzma

    with lzma.open(
        shared_dir / "corpus/raw/heldout/us_gov_web.txt.xz", "rt", encoding="utf-8"
    ) as file:
        ours = {" ".join(ptb(one)) for line in file for one in split(line.strip())}
    with lzma.open(
        shared_dir / "corpus/tokenised/heldout/us_gov_web.txt.xz", "rt", encoding="utf-8"
    ) as file:
        theirs = {line.rstrip("\n") for line in file}
    assert len(theirs & ours) / len(theirs) > 0.98


def test_tokens_do_not_depend_on_time() -> None:
    import nltk

    assert ptb("One. Two.") == ["One", ".", "Two", "."]
    assert getattr(getattr(nltk, "redos", None), "DEFAULT_TIMEOUT", None) is None


def test_whitespace_tokens() -> None:
    assert whitespace(" a\t b\u00a0c  \u2028 ") == ["a", "b\u00a0c", "\u2028"]


def test_tokenizers_by_name() -> None:
    assert [name_for("auto", kind) for kind in ("lines", "text", "jsonl", "parquet")] == [
        "whitespace",
        "ptb",
        "ptb",
        "ptb",
    ]
    assert get("whitespace", "text").sentence is whitespace
    by_spaces = ReadSettings(tokenizer="whitespace")
    assert describe(by_spaces, "lines") == "whitespace/1"
    assert describe(ReadSettings(), "jsonl").startswith("ptb/1+nltk ")
    assert describe(ReadSettings(), "text") == describe(ReadSettings(), "jsonl")
    assert re.fullmatch(r"sentences/1\+nltk \S+ whitespace/1", describe(by_spaces, "text"))
    assert describe(by_spaces, "csv") == describe(by_spaces, "text")
    assert (
        describe(ReadSettings(tokenizer="whitespace", document="sentence"), "csv") == "whitespace/1"
    )
    assert describe(ReadSettings(), "conll") == "as given"
    assert describe(ReadSettings(), "conllu") == "as given"


WRAPPED = ReadSettings(document="paragraph")


def test_paragraphs_places_and_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\n\nOne is\r\nhere. Two is\nhere.\n\n \t\n\nThree.\nFour.")
    assert records(path, settings=WRAPPED) == [
        ReadSentence(("One", "is", "here", "."), "", 2, 0, 0),
        ReadSentence(("Two", "is", "here", "."), "", 3, 0, 1),
        ReadSentence(("Three", "."), "", 8, 1, 0),
        ReadSentence(("Four", "."), "", 9, 1, 1),
    ]
    by_file = records(path, settings=ReadSettings(document="file"))
    assert [(record.ordinal, record.within) for record in by_file] == [(i, -1) for i in range(6)]
    by_line = records(path, settings=ReadSettings(document="line"))
    assert tokens(by_line) == [
        ["One", "is"],
        ["here", "."],
        ["Two", "is"],
        ["here", "."],
        ["Three", "."],
        ["Four", "."],
    ]
    assert [(record.ordinal, record.within) for record in by_line] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
        (4, 0),
    ]


def test_a_sentence_never_crosses_a_blank_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"A Heading\n\nand text that goes on.\n")
    assert tokens(records(path)) == [["A", "Heading"], ["and", "text", "that", "goes", "on", "."]]


def test_a_bad_line_is_refused_by_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"One. And\nbad \xff.\nThree.\n\nFour.")
    found = records(path, settings=WRAPPED)
    assert tokens(found) == [["One", "."], ["And"], [], ["Three", "."], ["Four", "."]]
    assert rejects(found) == [
        Reject(1, "invalid UTF-8 at byte 4 of the line (0xff)", "bad \\xff.", "", 0, 2)
    ]
    assert len({(record.ordinal, record.within) for record in found}) == len(found)


PROSE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. It was the "
    "epoch of belief, it was the epoch of incredulity. It was the season of Light; it was the season of Darkness. We had "
    "everything before us, we had nothing before us, and we were all going direct to Heaven. "
)


@pytest.mark.parametrize("width", [40, 60, 72, 100])
def test_hard_wrapped_prose_reads_as_if_it_were_not(tmp_path: Path, width: int) -> None:
    paragraphs = [PROSE * 2, PROSE, PROSE[:100], PROSE[120:]]
    wrapped = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs)
    found = tokens(records(write(tmp_path / "wrapped.txt", wrapped.encode())))
    assert found == tokens(records(write(tmp_path / "a.txt", "\n\n".join(paragraphs).encode())))
    assert max(map(len, found)) < 40


def test_lower_case_lines_and_lists_of_words_are_not_one_endless_sentence(tmp_path: Path) -> None:
    rng = random.Random(7)
    vocabulary = [
        "usually",
        ",",
        "he",
        "would",
        "be",
        "tearing",
        "around",
        "the",
        "room",
        "playing",
        "with",
        "toys",
        "a",
    ]
    books = [" ".join(rng.choices(vocabulary, k=rng.randrange(2, 25))) for _ in range(300)]
    assert len(records(write(tmp_path / "books.txt", "\n".join(books).encode()))) == len(books)
    words = ["aardvark", "abacus", "ability", "able", "about the house"] * 50
    assert tokens(records(write(tmp_path / "words.txt", "\n".join(words).encode()))) == [
        word.split() for word in words
    ]
    headed = [
        "The title of a talk about nothing at all",
        PROSE,
        "Another title, of another talk",
        PROSE * 2,
    ]
    assert len(records(write(tmp_path / "headed.txt", "\n".join(headed).encode()))) == 1 + 4 + 1 + 8


def test_a_sentence_has_at_most_so_many_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"word and " * 1000)
    assert [len(s) for s in tokens(records(path))] == [512, 512, 512, 464]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["lower case words without any stop", "The end. And more", "x" * 3000 + ". Y"]
)
def test_the_work_of_splitting_is_linear(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Characters given to the splitter, whatever the text is like: at most two for one of the text."""
    seen = 0

    def counted(text: str) -> list[tuple[int, int]]:
        nonlocal seen
        seen += len(text)
        return sentence_spans(text)

    monkeypatch.setattr(sentences, "sentence_spans", counted)
    data = (line + "\n").encode() * (600_000 // len(line))
    assert records(write(tmp_path / "a.txt", data), settings=WRAPPED)
    assert len(data) <= seen < 2 * len(data)


def test_whitespace_tokenizer_still_splits_sentences(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"I don't. You do.")
    assert tokens(records(path, settings=ReadSettings(tokenizer="whitespace"))) == [
        ["I", "don't."],
        ["You", "do."],
    ]


WORDS = st.sampled_from(
    [
        "The",
        "cat",
        "sat.",
        "He",
        "said",
        "no!",
        "And",
        "then",
        "it",
        "rained?",
        "Well,",
        "Dr.",
        "Who",
    ]
)


@examples(60)
@given(
    lines=st.lists(st.lists(WORDS, min_size=1, max_size=7).map(" ".join), max_size=60),
    window=st.integers(400, 900),
)
def test_a_paragraph_split_in_windows_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], window: int
) -> None:
    path = write(tmp_path_factory.mktemp("windows") / "a.txt", " It ended.\n".join(lines).encode())
    split = one_split(path)
    whole = list(read_split(split, WRAPPED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "WINDOW", window)
        assert list(read_split(split, WRAPPED)) == whole


def test_a_sentence_without_end_is_cut_at_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "WINDOW", 50)
    path = write(tmp_path / "a.txt", b"word and more\n" * 100)
    found = records(path, settings=WRAPPED)
    assert [token for sentence in tokens(found) for token in sentence] == [
        "word",
        "and",
        "more",
    ] * 100
    assert 10 < len(found) < 100
    assert all(len(" ".join(sentence)) <= 120 for sentence in tokens(found))
    assert [record.position for record in found] == sorted(record.position for record in found)


@examples(60)
@given(
    lines=st.lists(
        st.sampled_from(["", "", "One is here. Two", "is there.", "A", " ", "Three words more.\r"]),
        max_size=40,
    ),
    size=st.integers(1, 90),
    document=st.sampled_from(["paragraph", "line"]),
)
def test_ranges_of_text_read_what_the_whole_does(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, document: str
) -> None:
    """Each paragraph is read by exactly one range, and counts of paragraphs and lines go on from range to range."""
    path = write(tmp_path_factory.mktemp("ranges") / "a.txt", "\n".join(lines).encode())
    read = ReadSettings(document=document)
    found: list[Record] = []
    line = paragraph = 0
    for split in plan_splits([str(path)], "text", read, range_bytes=size):
        source, own = open_split(split, read)
        found += [
            replace(r, position=r.position + line, ordinal=r.ordinal + paragraph) for r in own
        ]
        line, paragraph = line + source.n_positions, paragraph + source.n_ordinals
    assert found == records(path, settings=read)


def test_running_text_without_line_ends_is_refused_at_once(tmp_path: Path) -> None:
    settings = ReadSettings(max_line_bytes=1 << 19)
    path = write(tmp_path / "a.txt", b"One more sentence. " * 30_000)
    for range_bytes in (1 << 18, 1 << 30):
        with pytest.raises(InputError, match=r"its first line is longer than 524,288 bytes: "):
            plan_splits([str(path)], settings=settings, range_bytes=range_bytes)


def test_a_line_over_many_ranges_is_one_reject(tmp_path: Path) -> None:
    settings = ReadSettings(max_line_bytes=1 << 16)
    path = write(tmp_path / "a.txt", b"So it is.\n\n" + b"word " * 60_000 + b"\n\nAnd so on.\n")
    splits = plan_splits([str(path)], settings=settings, range_bytes=1 << 12)
    found = [record for split in splits for record in read_split(split, settings)]
    assert tokens(found) == [["So", "it", "is", "."], [], ["And", "so", "on", "."]]
    assert [reject.reason for reject in rejects(found)] == ["the line is longer than 65536 bytes"]
