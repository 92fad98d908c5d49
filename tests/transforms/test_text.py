"""Running text: sentences, paragraphs, ids, positions, refused lines, windows; tokens after the Penn Treebank."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.reading import one_piece, records, rejects, tokens, write
from transforms.readers import read_piece, text
from transforms.records import ReadSettings, Reject, Sentence
from transforms.sentences import sentence_spans
from transforms.tokenizers import describe, get, name_for, ptb, whitespace


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


@settings(deadline=None)
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

    with lzma.open(shared_dir / "corpus/raw/heldout/us_gov_web.txt.xz", "rt", encoding="utf-8") as file:
        ours = {" ".join(ptb(one)) for line in file for one in split(line.strip())}
    with lzma.open(shared_dir / "corpus/tokenised/heldout/us_gov_web.txt.xz", "rt", encoding="utf-8") as file:
        theirs = {line.rstrip("\n") for line in file}
    assert len(theirs & ours) / len(theirs) > 0.98


def test_tokens_do_not_depend_on_time() -> None:
    import nltk

    assert ptb("One. Two.") == ["One", ".", "Two", "."]
    assert getattr(getattr(nltk, "redos", None), "DEFAULT_TIMEOUT", None) is None


def test_whitespace_tokens() -> None:
    assert whitespace(" a\t b\u00a0c  \u2028 ") == ["a", "b\u00a0c", "\u2028"]


def test_tokenizers_by_name() -> None:
    assert [name_for("auto", kind) for kind in ("lines", "text", "jsonl", "parquet")] == ["whitespace", "ptb", "ptb", "ptb"]
    assert get("whitespace", "text") is whitespace
    assert describe("whitespace", "lines") == "whitespace/1"
    assert describe("auto", "jsonl").startswith("ptb/1+nltk ")
    assert describe("auto", "text") == describe("auto", "jsonl")
    assert re.fullmatch(r"sentences/1\+nltk \S+ whitespace/1", describe("whitespace", "text"))
    assert describe("auto", "conllu") == "as given"
    with pytest.raises(ValueError, match="no tokenizer 'moses': take one of auto, ptb, whitespace"):
        name_for("moses", "text")


def test_paragraphs_ids_and_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\n\nOne is\r\nhere. Two is\nhere.\n\n \t\n\nThree.\nFour.")
    found = records(path)
    assert found == [
        Sentence(("One", "is", "here", "."), "a.txt:0:0", 2),
        Sentence(("Two", "is", "here", "."), "a.txt:0:1", 3),
        Sentence(("Three", "."), "a.txt:1:0", 8),
        Sentence(("Four", "."), "a.txt:1:1", 9),
    ]
    by_file = records(path, settings=ReadSettings(document="file"))
    assert [record.id for record in by_file] == ["a.txt:0", "a.txt:1", "a.txt:2", "a.txt:3"]


def test_a_sentence_never_crosses_a_blank_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"A Heading\n\nand text that goes on.\n")
    assert tokens(records(path)) == [["A", "Heading"], ["and", "text", "that", "goes", "on", "."]]


def test_a_bad_line_is_refused_by_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"One. And\nbad \xff.\nThree.\n\nFour.")
    found = records(path)
    assert tokens(found) == [["One", "."], ["And"], [], ["Three", "."], ["Four", "."]]
    assert rejects(found) == [Reject(1, "invalid UTF-8 at byte 4 of the line (0xff)", "bad \\xff.", "a.txt:0:2")]
    assert len({record.id for record in found}) == len(found)


def test_whitespace_tokenizer_still_splits_sentences(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"I don't. You do.")
    assert tokens(records(path, settings=ReadSettings(tokenizer="whitespace"))) == [["I", "don't."], ["You", "do."]]


WORDS = st.sampled_from(["The", "cat", "sat.", "He", "said", "no!", "And", "then", "it", "rained?", "Well,", "Dr.", "Who"])


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.lists(WORDS, max_size=7).map(" ".join), max_size=25), window=st.integers(1, 80))
def test_a_paragraph_split_in_windows_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], window: int
) -> None:
    path = write(tmp_path_factory.mktemp("windows") / "a.txt", "\n".join(lines).encode())
    piece = one_piece(path)
    whole = list(read_piece(piece, ReadSettings()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "WINDOW", window)
        assert list(read_piece(piece, ReadSettings())) == whole


def test_a_sentence_without_end_is_cut_at_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "WINDOW", 50)
    monkeypatch.setattr(text, "LONGEST", 100)
    path = write(tmp_path / "a.txt", b"word and more\n" * 100)
    found = records(path)
    assert [token for sentence in tokens(found) for token in sentence] == ["word", "and", "more"] * 100
    assert 10 < len(found) < 100
    assert all(len(" ".join(sentence)) <= 120 for sentence in tokens(found))
    assert [record.position for record in found] == sorted(record.position for record in found)
