"""The format conll: which lines are words, comments or documents, and which column has the words."""

from pathlib import Path

import pytest

from elmo_store.format.fields import KeptField
from tests.transforms.reading import records, rejects, tokens, write
from transforms.inputs.records import (
    InDocument,
    InputError,
    ReadSentence,
    ReadSettings,
    Record,
    Split,
)
from transforms.readers import open_split
from transforms.stages.split import plan_splits

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


# A word ``#`` at a sentence's start, in a sentence of its own, and in the middle of one, as in CoNLL-2000.
POUNDS = """# # B-NP
200 CD I-NP
million CD I-NP

# # B-NP

The DT B-NP
# # I-NP
"""
GERMEVAL = """#\tsource A [2009]
1\tAnna\tB-PER\tO
2\tging\tO\tO

#\tsource B [2010]
1\tBo\tB-PER\tO
"""
# Comments with as many words as there are columns, when a tab is taken for a space.
MULTICONER = """# id 1d5b-0a\tdomain=en
eli _ _ B-PER
left _ _ O

# id 77aa-1b\tdomain=en
# _ _ O
"""
ONTONOTES = """#begin document (bc/own/00/own_0001); part 000
bc/own/00/own_0001   0    0          The    DT   (TOP(S(NP*
bc/own/00/own_0001   0    1         bank    NN            *)

bc/own/00/own_0001   0    0           It   PRP   (TOP(S(NP*)

#end document
#begin document (bc/own/00/own_0001); part 001
bc/own/00/own_0001   1    0          Yes    UH     (TOP(INTJ*

#end document
"""
PLUS = """# global.columns = ID FORM UPOS NER
# sent_id = s1
1\tAnna\tPROPN\tB-PER
2\tging\tVERB\tO

# text = Zum Haus.
1-2\tZum\t_\t_
1\tzu\tADP\tO
2\tdem\tDET\tO
2.1\tging\tVERB\tO
3\tHaus\tNOUN\tO
"""
# SemEval-2010, which has the lines of OntoNotes between documents, but numbers words.
SEMEVAL = """#begin document 1_2
1\tAnna\tO\t0
2\tleft\tO\t1

#end document
#begin document 1_3
1\tYes\tO\t0

#end document
"""
WIDE = "".join(
    "\t".join([number, form, *"__________"]) + "\n" if number else "\n"
    for number, form in [("1-2", "Zum"), ("1", "zu"), ("2", "dem"), ("", ""), ("1", "Go"), ("1.1", "x")]
)  # fmt: skip
OF_PLUS = [["Anna", "ging"], ["zu", "dem", "Haus"]]
FILES: dict[str, tuple[str, list[list[str]]]] = {  # name → text, tokens
    "pounds.conll": (POUNDS, [["#", "200", "million"], ["#"], ["The", "#"]]),
    "germeval.conll": (GERMEVAL, [["Anna", "ging"], ["Bo"]]),
    "multiconer.conll": (MULTICONER, [["eli", "left"], ["#"]]),
    "a.gold_conll": (ONTONOTES, [["The", "bank"], ["It"], ["Yes"]]),
    "semeval.conll": (SEMEVAL, [["Anna", "left"], ["Yes"]]),
    "a.conllup": (PLUS, OF_PLUS),
    "plus.conll": (PLUS, OF_PLUS),
    "wide.conll": (WIDE, [["zu", "dem"], ["Go"]]),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", FILES)
def test_words_are_found_in_layouts_that_people_have(tmp_path: Path, name: str, ends: str) -> None:
    text, expected = FILES[name]
    found = records(write(tmp_path / name, text.replace("\n", ends).encode()))
    assert tokens(found) == expected
    assert not rejects(found)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("germeval.conll", "2"),
        ("a.gold_conll", "4"),
        ("plus.conll", "2"),
        ("wide.conll", "2"),
    ],
)
def test_a_column_that_is_passed_is_read_by_the_same_rules(
    tmp_path: Path, name: str, column: str
) -> None:
    text, expected = FILES[name]
    path = write(tmp_path / name, text.encode())
    assert tokens(records(path, settings=ReadSettings(text_field=column))) == expected


def test_documents_of_ontonotes_have_the_names_of_e2e_coref(tmp_path: Path) -> None:
    found = records(write(tmp_path / "a.gold_conll", ONTONOTES.encode()))
    name = "bc/own/00/own_0001"
    assert [record.document for record in found] == [
        InDocument(0, 0, f"{name}_0"),
        InDocument(1, 0, f"{name}_0"),
        InDocument(0, 7, f"{name}_1"),
    ]
    text = "#begin document 12_4.xml\na b c d\n#end document\na b c e\n"
    found = records(write(tmp_path / "b.conll", text.encode()))
    assert [record.document for record in found] == [InDocument(0, 0, "12_4.xml"), InDocument(0, 2)]


def test_columns_of_aligned_lines_are_between_runs_of_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", " Anna   NNP  B-PER\n left\u00a0x VBD  O \n".encode())
    fields = (KeptField("ner", "3", "string", "token"),)
    (found,) = records(path, settings=ReadSettings(fields=fields))
    assert isinstance(found, ReadSentence)
    assert (found.tokens, found.fields) == (("Anna", "left\u00a0x"), (["B-PER", "O"],))


HASHES = {  # the first line of a sentence with the columns of CoNLL-2000 → its tokens, or why it is rejected
    "# a comment that is longer": ["It", "is"],
    "# text = a": ["It", "is"],
    "# sent_id = 3": ["It", "is"],
    "# newdoc id": ["It", "is"],
    "#": ["It", "is"],
    "# # B-NP": ["#", "It", "is"],
    "# SYM is-unseen": "the line may be a comment or a word (line 1 of the sentence)",
    "# two words": "the line may be a comment or a word (line 1 of the sentence)",
    "#hashtag NN": "the line begins with # and has 2 columns instead of 3 (line 1 of the sentence)",
    "#hashtag NN B-NP": ["#hashtag", "It", "is"],
    "# # B-NP\n# comment": "the line begins with # and has 2 columns instead of 3 (line 2 of the sentence)",
    "# first\n# # B-NP": ["#", "It", "is"],
    "# c\rA DT B-NP": "a carriage return without a line feed: convert the line ends to LF or CRLF (line 1 of the sentence)",
}  # fmt: skip


@pytest.mark.parametrize("line", HASHES)
def test_a_line_with_a_hash_is_a_word_by_the_columns_of_the_file(tmp_path: Path, line: str) -> None:
    text = f"The DT B-NP\nbank NN I-NP\n\n{line}\nIt PRP B-NP\nis VBZ B-VP\n\nYes UH O\n"
    first, second, third = records(write(tmp_path / "a.conll", text.encode()))
    assert tokens([first, third]) == [["The", "bank"], ["Yes"]]
    expected = HASHES[line]
    if isinstance(expected, list):
        assert tokens([second]) == [expected]
    else:
        assert [reject.reason for reject in rejects([second])] == [expected]


def test_a_word_a_line_has_comments_and_hashes_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", b"# a comment\n#\n#hashtag\nsold\n")
    assert tokens(records(path)) == [["#", "#hashtag", "sold"]]


@pytest.mark.parametrize("data", [b"EU ORG\rrejects O\r\rPeter PER\r", b"# c\rEU ORG\r", b"-DOCSTART-\r\rEU ORG\r"])  # fmt: skip
@pytest.mark.parametrize("name", ["a.conll", "a.conllu"])
def test_lone_carriage_returns_are_rejected(tmp_path: Path, name: str, data: bytes) -> None:
    found = records(write(tmp_path / name, data))
    (reject,) = rejects(found)
    assert "a carriage return without a line feed" in reject.reason
    assert len(found) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7 1 x\n7 2 y\n", "its column 1 has numbers only: pass the number of the column"),
        ("d x 1\nd y 2\nd z 3\n\ne x 1\n", "its column 1 has one value in all lines of a sentence"),
        ("# global.columns = ID UPOS\n1\tX\n", "its global.columns must have FORM"),
    ],
)
def test_a_file_without_a_column_of_words_is_bad_usage(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path / "a.conll", text.encode())
    with pytest.raises(InputError, match=message):
        plan_splits([str(path)])
    with pytest.raises(InputError, match="--text-field form: columns have no names here"):
        plan_splits([str(path)], settings=ReadSettings(text_field="form"))
    assert records(path, settings=ReadSettings(text_field="2"))


def test_a_number_that_is_not_due_rejects_the_sentence(tmp_path: Path) -> None:
    text = GERMEVAL + "\n1\tOne\tO\tO\n1\tTwo\tO\tO\n" + "\n" * 70_000
    path = write(tmp_path / "a.conll", ("\n" * 10 + GERMEVAL + "\n" * 70_000 + text).encode())
    (reject,) = rejects(records(path))
    assert reject.reason == "ID '1' where 2 is due (line 2 of the sentence)"


@pytest.mark.parametrize("name", FILES)
def test_ranges_of_a_file_read_as_the_whole_file(tmp_path: Path, name: str) -> None:
    text = "\ufeff" + (FILES[name][0] + "\n") * 4
    path = write(tmp_path / name, text.encode())
    (whole,) = plan_splits([str(path)])
    expected = _placed([whole])
    assert len(expected) == 4 * len(FILES[name][1])
    for range_bytes in (7, 40, 150):
        splits = plan_splits([str(path)], range_bytes=range_bytes)
        assert all(split.is_range for split in splits)
        assert _placed(splits) == expected


def _placed(splits: list[Split]) -> list[tuple[int, tuple[str, ...], str]]:
    """Return position, tokens and document of each sentence of a file."""
    found: list[tuple[int, tuple[str, ...], str]] = []
    offset = 0
    document = ""
    for split in splits:
        source, records_of_split = open_split(split, ReadSettings())
        for record in records_of_split:
            name = record.document.name if record.document.start >= 0 else document
            found.append((record.position + offset, _tokens(record), name))
        offset += source.n_positions
        document = source.ends_in.name if source.ends_in.start >= 0 else document
    return found


def _tokens(record: Record) -> tuple[str, ...]:
    return record.tokens if isinstance(record, ReadSentence) else ()
