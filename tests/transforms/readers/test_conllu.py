"""The format conllu: words, ids, ranges and empty nodes, refused sentences; the real treebank where it is at hand."""

from pathlib import Path

import pytest

from tests.transforms.reading import records, rejects, tokens, write
from transforms.inputs.records import InDocument, ReadSentence, ReadSettings


def row(number: str, form: str) -> str:
    return "\t".join([number, form, *["_"] * 8])


def block(*rows: str) -> str:
    return "\n".join(rows) + "\n\n"


def test_words_ids_and_positions(tmp_path: Path) -> None:
    text = block(
        "# newdoc",
        "# sent_id = s-1",
        "# text = …",
        row("1-2", "vámonos"),
        row("1", "vamos"),
        row("2", "nos"),
        row("2.1", "x"),
    )
    text += (
        block(row("1", "a b"), row("2", "_")).rstrip("\n")
        + "\n\n\n# a comment alone\n\n"
        + block("#sent_id=s 3", row("1", "End")).rstrip()
    )
    assert records(write(tmp_path / "a.conllu", text.encode())) == [
        ReadSentence(("vamos", "nos"), "s-1", 0, document=InDocument(0, 0)),
        ReadSentence(("a b", "_"), "", 8, document=InDocument(1, 0)),
        ReadSentence(("End",), "s 3", 14, document=InDocument(2, 0)),
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1\tword", "2 columns between tabs instead of 10 (line 2 of the sentence)"),
        (row("2", "word"), "ID '2' where 1 is due (line 2 of the sentence)"),
        (row("one", "word"), "ID 'one' where 1 is due (line 2 of the sentence)"),
        (row("01", "word"), "ID '01' where 1 is due (line 2 of the sentence)"),
        (row("1", ""), "the FORM is empty (line 2 of the sentence)"),
        (row("1", "a\0"), "NUL character at character 3 of the line (line 2 of the sentence)"),
        (row("1", "\udcff"), "invalid UTF-8 at byte 2 of the line (0xff) (line 2 of the sentence)"),
        (row("1.1", "empty"), "the sentence has no words"),
        (row("1", "x" * 200), "the sentence is longer than 100 bytes (line 2 of the sentence)"),
    ],
)
def test_a_sentence_with_a_bad_line_is_refused_whole(tmp_path: Path, bad: str, reason: str) -> None:
    text = (
        block("# sent_id = a", row("1", "one"))
        + "\n"
        + block("# sent_id = b", bad, row("1", "next"))
        + block("# sent_id = c", row("1", "two"))
    )
    if "1.1" in bad:
        text = text.replace(row("1", "next") + "\n", "")
    path = write(tmp_path / "a.conllu", text.encode("utf-8", "surrogateescape"))
    found = records(path, settings=ReadSettings(max_line_bytes=100))
    assert [record.id for record in found] == ["a", "b", "c"]
    assert tokens(found) == [["one"], [], ["two"]]
    (reject,) = rejects(found)
    assert (reject.position, reject.reason) == (4, reason)
    assert reject.raw.startswith("# sent_id = b\n")


def test_an_id_that_is_there_twice_rejects_the_sentence(tmp_path: Path) -> None:
    text = block("# sent_id = a", "# sent_id = b", row("1", "x")) + block(row("1", "y"))
    found = records(write(tmp_path / "a.conllu", text.encode()))
    assert tokens(found) == [[], ["y"]]
    assert rejects(found)[0].reason == "sent_id is there twice (line 2 of the sentence)"


def test_a_sentence_that_is_too_long_is_not_held(tmp_path: Path) -> None:
    rows = [row(str(i), "word") for i in range(1, 1000)]
    found = records(
        write(tmp_path / "a.conll", block(*rows).encode()),
        settings=ReadSettings(max_line_bytes=1000),
    )
    assert tokens(found) == [[]]
    assert rejects(found)[0].reason.startswith("the sentence is longer than 1000 bytes")


def test_the_real_treebank(shared_dir: Path) -> None:
    path = shared_dir / "eval/ud_english_ewt/en_ewt-ud-test.conllu.xz"
    found = records(path)
    assert len(found) == 2077
    assert sum(map(len, tokens(found))) == 25094
    assert not rejects(found)
    assert (
        found[0].id == "weblog-blogspot.com_zentelligence_20040423000200_ENG_20040423_000200-0001"
    )
